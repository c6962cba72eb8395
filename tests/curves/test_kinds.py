"""The registered kinds of curves: no class that another library derives takes their place."""

import importlib
import pickle
from typing import Any

import pytest
from support.wrong import wrong

from plateau_jax import Curve, PlateauCurve, StagedCurve, check_resume, resume_record
from plateau_jax.curves.derived_curves import Cooldown


def configurable(curve_type: Any) -> Any:
    """Return what gin's `external_configurable` does: a subclass that builds the original."""
    meta = type(curve_type)

    class ConfiguredMeta(meta):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return meta.__call__(curve_type, *args, **kwargs)

    names = {"__module__": curve_type.__module__}
    return ConfiguredMeta(curve_type.__name__, (curve_type,), names)


@pytest.mark.parametrize("curve_type", [PlateauCurve, StagedCurve, Cooldown])
def test_a_subclass_of_a_kind_replaces_no_kind(curve_type: Any) -> None:
    curves = [
        PlateauCurve(100),
        StagedCurve([(9, 1.0)]),
        PlateauCurve(100).cooldown(50, 9),
    ]
    before = [resume_record(curve, 0.5) for curve in curves]
    configurable(curve_type)
    for curve, record in zip(curves, before, strict=True):
        assert Curve.from_dict(curve.to_dict()) == curve
        after = resume_record(curve, 0.5)
        check_resume(record, after, 5)


def test_curve_that_gin_builds_is_the_original() -> None:
    configured = configurable(PlateauCurve)
    curve = configured(100, warmup_steps="10%")
    expected = PlateauCurve(100, warmup_steps=10)
    assert type(curve) is PlateauCurve
    assert curve == expected
    assert hash(curve) == hash(expected)
    assert pickle.loads(pickle.dumps(curve)) == curve
    copied = configured.from_dict(curve.to_dict())
    assert type(copied) is PlateauCurve
    staged = configurable(StagedCurve).wsd(100, warmup_steps=5, decay_steps=20)
    assert staged.total_steps == 100


def test_gin_itself() -> None:
    gin = pytest.importorskip("gin")
    gin.external_configurable(PlateauCurve, "curve")
    config = ["curve.total_steps = '10k'", "curve.warmup_steps = '2%'"]
    with gin.unlock_config():
        gin.parse_config(config)
    curve = gin.get_configurable("curve")()
    gin.clear_config()
    assert type(curve) is PlateauCurve
    assert curve == PlateauCurve(10_000, warmup_steps=200)


@wrong(TypeError, "this StagedCurve is not plateau_jax.StagedCurve", "derived from it")
def test_curve_of_a_subclass() -> None:
    configurable(StagedCurve).through([(0, 1.0), (9, 0.0)])


def test_a_module_that_is_loaded_again_replaces_no_kind() -> None:
    module = importlib.import_module(PlateauCurve.__module__)
    before = dict(vars(module))
    curve = PlateauCurve(100)
    try:
        importlib.reload(module)
        assert Curve.from_dict(curve.to_dict()) == curve
        with pytest.raises(TypeError, match="the module was loaded twice"):
            module.PlateauCurve(100)
    finally:
        vars(module).update(before)
