"""The sums of the law of the loss: equal to their formulas, summed term by term."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.forecasts.loss_oracle import LossOracle

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.forecasts.loss_law import schedule_sums
from plateau_jax.theory.curve_parts import largest_multiplier
from plateau_jax.validation.curve_warning import suppress_warnings


def check_sums(curve: Curve, peak: float, steps: Any, tolerance: float) -> None:
    """Compare with sums up to each step, term by term."""
    lrs = LossOracle.lrs(curve, peak)
    expected = [LossOracle.sums(lrs[:step]) for step in np.ravel(steps)]
    progress, noise = schedule_sums(curve, peak, np.array(steps))
    assert progress.shape == noise.shape == np.shape(steps)
    actual = np.stack([progress.ravel(), noise.ravel()], axis=1)
    np.testing.assert_allclose(actual, expected, rtol=tolerance)


@examples(60)
@given(
    descriptions(range(4), scaled=True),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.floats(1e-6, 10),
)
def test_sums_equal_their_formula(description, fractions, peak) -> None:
    curve = build(description)
    assume(curve.total_steps <= 20_000)
    steps = [max(1, round(fraction * curve.total_steps)) for fraction in fractions]
    check_sums(curve, peak, steps, 1e-11)


LEVELS = st.sampled_from([1.0, 0.1, 1e-3, 1e-6, 1e-12])
SHAPES = st.sampled_from(["linear", "1-sqrt", "exponential", "(1-x)^20", "1-x^20", "t^-4"])


@examples(60)
@given(st.lists(st.tuples(st.sampled_from([1, 90]), LEVELS, SHAPES), min_size=12, max_size=40), LEVELS)
def test_sums_of_levels_of_every_magnitude(stages, start) -> None:
    """A learning rate may be larger than the sum of all that come after it."""
    curve = StagedCurve(stages, start=start)
    steps = [curve.total_steps]
    check_sums(curve, 1.0, steps, 1e-11)


def logged(total: int, stages: int) -> StagedCurve:
    """Return straight lines between noisy levels, as a log of many learning rates gives, with jumps."""
    rng = np.random.default_rng(0)
    steps = np.diff(np.linspace(0, total, stages + 1).astype(int))
    levels = np.abs(np.cos(np.linspace(0, 1.55, stages)) + 1e-3 * rng.standard_normal(stages))
    levels[rng.integers(0, stages, 5)] *= 1e-3
    levels[stages // 2 :] *= 0.05
    with suppress_warnings():
        return StagedCurve([(int(n), float(to) / 2) for n, to in zip(steps, levels, strict=True)])


LRS = np.cos(np.linspace(0, 1.5, 2_000)) * np.where(np.arange(2_000) < 1_200, 1, 0.1)
CURVES = {
    "cosine": PlateauCurve(160_000, warmup_steps=3_000),
    "plateaus": PlateauCurve(120_000, warmup_steps=100, plateaus=[(10, 20), (55, 40)], min_lr_ratio=0.1),
    "jumps": StagedCurve([(5_000, 1.0), (20_000,), (0, 0.01), (40_000,), (0, 0.7), (20_000, 0.0)]),
    "pauses": StagedCurve([(0, 1.0), (20_000,), (0, 0.0), (5_000,), (0, 0.5), (50_000, 0.0, "1-sqrt")]),
    "exponential": StagedCurve([(100, 1.0), (80_000, 1e-6, "exponential"), (30_000, 0.0)]),
    "sawteeth": PlateauCurve(12_000, warmup_steps=99).then(PlateauCurve(12_000)).then(PlateauCurve(59_999)),
    "one drop": StagedCurve([(20, lr) for lr in LRS.tolist()]),
}


@pytest.mark.parametrize("curve", [*CURVES.values(), logged(140_000, 300), logged(150_000, 5_000)])
def test_sums_of_long_curves_equal_their_formula(curve) -> None:
    """Parts of several steps stand for single ones. The steps may have any order and shape."""
    borders = [row.begin + offset for row in curve.rows[1:3] for offset in (-1, 50)]
    fractions = (np.array([1.0, 0.33, 0.85, 0.999]) * curve.total_steps).astype(int)
    steps = np.array([fractions, np.maximum(borders, 1)])
    check_sums(curve, 2e-3, steps, 1e-5)


@examples(40)
@given(descriptions(range(4), scaled=True), st.floats(0, 1))
def test_largest_multiplier_is_that_of_all_steps(description, fraction) -> None:
    curve = build(description)
    assume(curve.total_steps <= 100_000)
    updates = max(1, round(fraction * curve.total_steps))
    assert largest_multiplier(curve, updates) == curve(np.arange(updates)).max()
