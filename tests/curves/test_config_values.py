"""`Curve.from_dict`: curves as YAML, TOML, OmegaConf and command lines give them."""

import json
import re
import tomllib
import warnings
from collections import UserDict, UserList
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.rejections import rejects

from plateau_jax import Curve, CurveWarning, PlateauCurve, StagedCurve

SHARES = StagedCurve([(200, 1.0), (7800,), (2000, 0.0, "1-sqrt")])


def _rewrite(value, random):
    """Return the value in one of the forms in which a configuration may hold it, at every depth."""
    if isinstance(value, dict):
        items = {name: _rewrite(item, random) for name, item in value.items()}
        if items.get("kind") == "staged" and random.random() < 0.5:
            del items["kind"]
        return random.choice([dict, MappingProxyType, UserDict])(items)
    if isinstance(value, list):
        return random.choice([list, tuple, UserList])([_rewrite(item, random) for item in value])
    if isinstance(value, int):
        return random.choice([value, str(value), f"{value:_}", f" {value} "])
    return random.choice([value, repr(value)]) if isinstance(value, float) else value


@given(descriptions(scaled=True), st.randoms(use_true_random=False))
def test_every_form_of_a_dict_gives_the_same_curve(description, random):
    curve = build(description)
    again = Curve.from_dict(_rewrite(json.loads(json.dumps(curve.to_dict())), random))
    assert again == curve
    assert (hash(again), repr(again), again.to_dict()) == (hash(curve), repr(curve), curve.to_dict())
    assert again.rows == curve.rows


@examples(40)
@given(descriptions(depth=1, scaled=True))
def test_yaml_gives_the_same_curve(description):
    yaml = pytest.importorskip("yaml")
    curve = build(description)
    # As JSON, since YAML writes 1e-05 with a point, and then reads it as a number.
    again = Curve.from_dict(yaml.safe_load(json.dumps(curve.to_dict())))
    assert (again, repr(again)) == (curve, repr(curve))


@examples(40)
@given(descriptions(depth=1, scaled=True))
def test_omegaconf_gives_the_same_curve(description):
    omegaconf = pytest.importorskip("omegaconf")
    curve = build(description)
    again = Curve.from_dict(omegaconf.OmegaConf.create(curve.to_dict()))
    assert (again, repr(again)) == (curve, repr(curve))


def test_configuration_files_may_hold_shares():
    text = 'total_steps = 10_000\nstages = [["2%", 1.0], ["rest"], ["20%", 0.0, "1-sqrt"]]'
    assert Curve.from_dict(tomllib.loads(text)) == StagedCurve.from_dict(tomllib.loads(text)) == SHARES
    text = 'total_steps = 10_000\nwarmup_steps = "2%"\nplateaus = [[0, 80]]'
    curve = PlateauCurve(10_000, warmup_steps=200, plateaus=[(0, 80)])
    assert Curve.from_dict(tomllib.loads(text)) == PlateauCurve.from_dict(tomllib.loads(text)) == curve


def test_interpolation_and_overrides_are_resolved():
    omegaconf = pytest.importorskip("omegaconf")
    file = omegaconf.OmegaConf.create(
        """
        steps: 5000
        curve:
          total_steps: ${steps}
          stages: [[2%, 1.0], [rest], [20%, 0, 1-sqrt]]
        """
    )
    overrides = omegaconf.OmegaConf.from_dotlist(["steps=10000"])
    assert Curve.from_dict(omegaconf.OmegaConf.merge(file, overrides).curve) == SHARES


def _derived_number(kind):
    """Return a subclass of a kind of number, as parsers that keep comments have them."""
    return type("Parsed", (kind,), {"__add__": lambda self, other: self})


def test_numbers_become_plain():
    integer, real = _derived_number(int), _derived_number(float)
    stages = [[integer(5), real(0.5)], [np.int64(5), np.float32(0.1)]]
    curve = Curve.from_dict({"stages": stages, "start": real(0.25), "total_steps": integer(10)})
    assert curve == StagedCurve([(5, 0.5), (5, 0.1)], start=0.25)
    numbers = [number for stage in curve.stages for number in stage[:2]]
    assert {type(number) for number in (*numbers, curve.start)} == {int, float}


STAGED = {"kind": "staged", "stages": [[5, 1.0]]}


@pytest.mark.parametrize(
    ("arguments", "error", "parts"),
    [
        ({"total_steps": "ten"}, TypeError, ["total_steps = 'ten' must be an integer"]),
        ({"total_steps": "10.5"}, TypeError, ["total_steps = 10.5 must be an integer"]),
        ({"total_steps": "10%"}, TypeError, ["total_steps = '10%' must be an integer"]),
        ({"total_steps": 1e4}, TypeError, ["total_steps = 10000.0 must be an integer"]),
        ({"total_steps": True}, TypeError, ["total_steps = True must be an integer"]),
        ({"total_steps": "100%", "stages": [["rest"]]}, TypeError, ["total_steps = '100%' must be"]),
        ({"total_steps": 9, "min_lr_ratio": "nan"}, TypeError, ["min_lr_ratio = 'nan' must be a number"]),
        ({"total_steps": 9, "min_lr_ratio": "2"}, ValueError, ["min_lr_ratio = 2 must lie in [0, 1]"]),
        ({"total_steps": 9, "min_lr_ratio": "1e999"}, TypeError, ["min_lr_ratio = '1e999' must be"]),
        ({"total_steps": 9, "min_lr_ratio": True}, TypeError, ["min_lr_ratio = True must be a number"]),
        ({"total_steps": 9, "min_lr_ratio": None}, TypeError, ["min_lr_ratio = None must be a number"]),
        ({"total_steps": 9, "plateaus": [[0, "b"]]}, TypeError, ["plateaus[0].duration = 'b' must be"]),
        ({"total_steps": 9, "plateaus": "0"}, TypeError, ["plateaus = 0 must be a sequence of pairs"]),
        ({"total_steps": 9, "warmup_steps": "200%"}, ValueError, ["warmup_steps = '200%' must be a perc"]),
        ({"total_steps": 9, "min_lr_ratio": "10%"}, TypeError, ["'10%' must be a number"]),
        ({"stages": [[5, 1.0], ["rest"]]}, ValueError, ["stages[1].steps = 'rest'", "total_steps"]),
        ({"stages": [[5, 1.0], [5, "2"]]}, ValueError, ["stages[1].to = 2 must lie in [0, 1]"]),
        ({"stages": {"warmup": 5}}, TypeError, ["stages = {'warmup': 5} must be a sequence of stages"]),
        ({"kind": None, "stages": [[5]]}, ValueError, ["kind = None must be one of"]),
        ({"kind": "cooldown", "curve": STAGED, "at": "x", "steps": 5}, TypeError, ["at = 'x' must be"]),
    ],
    ids=str,
)
def test_errors_name_the_key(arguments, error, parts):
    rejects(error, *parts, call=Curve.from_dict, arguments=arguments)


@pytest.mark.parametrize("arguments", [{"warmup_steps": "0.5%"}, {"stages": [["0.5%", 1.0], ["rest"]]}])
def test_share_that_rounds_to_no_step_warns(arguments):
    (name,) = arguments
    with pytest.warns(CurveWarning, match=rf"^{name}.* = '0\.5%' of 100 steps rounds down to 0") as caught:
        curve = Curve.from_dict({"total_steps": 100, **arguments})
    assert caught[0].filename == __file__
    assert re.search(r"(warmup_)?steps=0, ", repr(curve))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_steps": 100, "min_lr_ratio": 1e-5}, "min_lr_ratio = 1e-05 looks like a learning rate"),
        ({"total_steps": 100, "plateaus": [[0.5, 0.3]]}, "look like fractions"),
        ({"total_steps": 100, "stages": [[5, 3e-4], ["rest"]], "start": 0}, "look like learning rates"),
        (
            {"kind": "cooldown", "curve": {"total_steps": 9}, "at": 9, "steps": 5},
            "at = 9: the learning rate is 0",
        ),
        ({"kind": "then", "curve": STAGED, "other": {"stages": [[5]]}}, "0 at every step"),
    ],
    ids=str,
)
def test_written_by_hand_warns_as_the_constructor(arguments, message):
    with pytest.warns(CurveWarning, match=message) as caught:
        curve = Curve.from_dict(arguments)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Curve.from_dict(json.loads(json.dumps(curve.to_dict()))) == curve
