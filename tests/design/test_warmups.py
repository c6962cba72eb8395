"""The warmup that curves of the design page's buttons take over from the selected curve."""

import numpy as np
import pytest
from hypothesis import given
from support.curves.descriptions import build, descriptions

from plateau_jax import PlateauCurve, StagedCurve
from plateau_jax.design.answers import initial_curves, warmup_arguments

WARM = PlateauCurve(1_000, warmup_steps=100, init_lr_ratio=0.1, warmup_shape="cosine")


@pytest.mark.filterwarnings("ignore:(min|init)_lr_ratio:plateau_jax.CurveWarning")
@given(descriptions(counts=range(5)))
def test_warmup_ends_where_the_curve_stops_rising(description):
    curve = build(description)
    arguments = warmup_arguments(curve)
    end = arguments["warmup_steps"]
    warm = PlateauCurve(curve.total_steps, **arguments)
    steps = np.linspace(0, max(0, end - 1), 300).astype(np.int64)  # at the end itself, a stage may jump
    values = curve(steps)
    assert np.all(np.diff(values) >= 0)
    if isinstance(curve, PlateauCurve) and curve.init_lr_ratio < 1:
        assert np.array_equal(warm(steps), values)


@pytest.mark.parametrize(
    ("curve", "steps", "initial", "shape"),
    [
        (WARM, 100, 0.1, "cosine"),
        (WARM.cooldown(600, 200), 100, 0.1, "cosine"),
        (WARM.cooldown(40, 200), 40, 0.1 / WARM(40), "cosine"),
        (WARM.then(WARM, scale=0.5), 100, 0.1, "cosine"),
        (StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0)]), 500, 0, "linear"),
        (StagedCurve([(50, 0.5, "cosine"), (50, 1.0, "cosine"), (9, 0.0)]), 100, 0, "linear"),
        (StagedCurve([(20,), (80, 0.5), (9, 0.0)]), 100, 0, "linear"),
        (StagedCurve([(0, 0.2), (80, 0.4), (9, 0.0)]), 80, 0.5, "linear"),
        (StagedCurve([(80, 1.0)]), 79, 0, "linear"),
    ],
)
def test_warmup_of_any_curve(curve, steps, initial, shape):
    expected = {"warmup_steps": steps, "init_lr_ratio": pytest.approx(initial), "warmup_shape": shape}
    assert warmup_arguments(curve) == expected


def test_single_curve_is_compared_at_its_warmup():
    staged = StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0)])
    cosine, _ = initial_curves([("Staged", staged)], 3e-4)
    assert PlateauCurve.from_dict(cosine["curve"]) == PlateauCurve(10_000, warmup_steps=500)
    initial_curves([("staged", StagedCurve([(10, 1.0), (90,)], start=1e-6))], peak=1e-3)  # does not warn
