"""The sums of the law of the loss equal their formulas, summed term by term."""

import numpy as np
import pytest
from forecasts.loss_oracle import N, S, lrs_of
from hypothesis import assume, given, strategies as st
from numpy.testing import assert_allclose
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, descriptions
from support.examples import examples

from plateau_jax import PlateauCurve, StagedCurve
from plateau_jax.tools.forecasts.loss_law import schedule_sums
from plateau_jax.tools.theory.step_bins import largest_multiplier


def check_sums(curve, peak, steps, tolerance):
    """Compare with sums up to each step, term by term."""
    lrs = lrs_of(curve, peak)
    step_array = np.array(steps)
    expected_progress = [S(lrs[:step]) for step in step_array.flat]
    expected_noise = [N(lrs[:step]) for step in step_array.flat]
    progress, noise = schedule_sums(curve, peak, step_array)
    assert progress.shape == step_array.shape
    assert noise.shape == step_array.shape
    assert_allclose(progress.flat, expected_progress, rtol=tolerance)
    assert_allclose(noise.flat, expected_noise, rtol=tolerance)


@examples(60)
@given(
    descriptions(range(4), scaled=True),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.floats(1e-6, 10),
)
def test_sums_equal_their_formula(description, fractions, peak):
    curve = build(description)
    assume(curve.total_steps <= 20_000)
    steps = np.rint(np.array(fractions) * curve.total_steps).astype(int)
    check_sums(curve, peak, np.maximum(steps, 1), 1e-11)


def lines_between(total, count):
    """Return lines between noisy levels with jumps, as logs of many learning rates give."""
    rng = np.random.default_rng(0)
    levels = np.cos(np.linspace(0, 1.55, count))
    levels += 1e-3 * rng.standard_normal(count)
    levels = np.abs(levels) / 2
    levels[rng.integers(0, count, 5)] *= 1e-3
    levels[count // 2 :] *= 0.05
    borders = np.linspace(0, total, count + 1).astype(int)
    steps = np.diff(borders)
    stages = list(zip(steps.tolist(), levels.tolist(), strict=True))
    with ignore_curve_warnings():
        return StagedCurve(stages)


JUMPS = [(5_000, 1.0), (20_000,), (0, 0.01), (40_000,), (0, 0.7), (20_000, 0.0)]
PAUSES = [(0, 1.0), (20_000,), (0, 0.0), (5_000,), (0, 0.5), (50_000, 0.0, "1-sqrt")]
EXPONENTIAL = [(100, 1.0), (80_000, 1e-6, "exponential"), (30_000, 0.0)]
LONG_CURVES = {
    "cosine": PlateauCurve(160_000, warmup_steps=3_000),
    "jumps": StagedCurve(JUMPS),
    "pauses": StagedCurve(PAUSES),
    "exponential": StagedCurve(EXPONENTIAL),
    "300 lines": lines_between(140_000, 300),
    "5000 lines": lines_between(150_000, 5_000),
}


@pytest.mark.parametrize("name", LONG_CURVES)
def test_sums_of_long_curves_equal_their_formula(name):
    """Bins of several steps stand for single ones. The steps may have any order and shape."""
    curve = LONG_CURVES[name]
    fractions = np.array([1.0, 0.33, 0.85, 0.999])
    within = (fractions * curve.total_steps).astype(int)
    borders = curve.table.begin[1:3]
    around = np.concatenate([borders - 1, borders + 50])
    steps = np.stack([within, np.maximum(around, 1)])
    check_sums(curve, 2e-3, steps, 1e-5)


@examples(40)
@given(descriptions(range(4), scaled=True), st.floats(0, 1))
def test_largest_multiplier_is_that_of_all_steps(description, fraction):
    curve = build(description)
    assume(curve.total_steps <= 100_000)
    updates = max(1, round(fraction * curve.total_steps))
    multipliers = curve(np.arange(updates))
    assert largest_multiplier(curve, updates) == multipliers.max()
