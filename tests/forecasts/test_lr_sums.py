"""The sums of the law of the loss: equal to their formulas, summed term by term."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.forecasts.lr_sums import largest_multiplier, schedule_sums
from plateau_jax.validation.curve_warning import suppress_warnings

LONGEST = 2**31 - 1


def formula(curve: Curve, peak: float, steps: Iterable[int]) -> list[tuple[float, float]]:
    """Sum up to each step term by term, from the formula, in extended precision."""
    steps = [int(step) for step in steps]
    rates = peak * np.asarray(curve(np.arange(max(steps))), np.longdouble)
    powers = rates ** np.longdouble(0.9)
    return [_formula(rates[:step], powers[:step]) for step in steps]


def _formula(rates: Any, powers: Any) -> tuple[float, float]:
    s = rates[rates > 0]
    if not len(s):
        return 0.0, 0.0
    sums, squares = np.cumsum(s[::-1])[::-1], np.cumsum((s * s)[::-1])[::-1]
    noise = squares[0] / (2 * sums[0])
    noise += (s[:-1] / (sums[1:] + s.max() / 10) * squares[:-1] / sums[:-1]).sum() / 2
    return float(powers.sum()), float(noise)


@examples(60)
@given(
    descriptions(range(4), scaled=True),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.floats(1e-6, 10),
)
def test_sums_equal_their_formula(description, shares, peak) -> None:
    curve = build(description)
    assume(curve.total_steps <= 20_000)
    steps = np.array([max(1, round(share * curve.total_steps)) for share in shares])
    actual = np.array(schedule_sums(curve, peak, steps)).T
    expected = formula(curve, peak, steps)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


LEVELS = st.sampled_from([1.0, 0.1, 1e-3, 1e-6, 1e-12])
SHAPES = st.sampled_from(["linear", "1-sqrt", "exponential", "(1-x)^20", "1-x^20", "t^-4"])


@examples(60)
@given(st.lists(st.tuples(st.sampled_from([1, 90]), LEVELS, SHAPES), min_size=12, max_size=40), st.data())
def test_sums_of_levels_of_every_magnitude_equal_their_formula(stages, data) -> None:
    """A learning rate may be larger than the sum of all that come after it."""
    curve = StagedCurve(stages, start=data.draw(LEVELS))
    steps = np.array([curve.total_steps])
    actual = np.array(schedule_sums(curve, 1.0, steps)).T
    np.testing.assert_allclose(actual, formula(curve, 1.0, steps), rtol=1e-5)


CURVES = {
    "cosine": PlateauCurve(400_000, warmup_steps=3_000),
    "plateaus": PlateauCurve(300_000, warmup_steps=100, plateaus=[(10, 20), (55, 40)], min_lr_ratio=0.1),
    "jumps": StagedCurve([(5_000, 1.0), (150_000,), (0, 0.01), (100_000,), (0, 0.7), (40_000, 0.0)]),
    "pauses": StagedCurve([(0, 1.0), (100_000,), (0, 0.0), (50_000,), (0, 0.5), (90_000, 0.0, "1-sqrt")]),
    "exponential": StagedCurve([(100, 1.0), (200_000, 1e-6, "exponential"), (70_000, 0.0)]),
    "sawteeth": PlateauCurve(50_000, warmup_steps=99).then(PlateauCurve(50_000)).then(PlateauCurve(99_999)),
}


def logged(total: int, stages: int, seed: int) -> StagedCurve:
    """Return straight lines between noisy levels, as a log of many learning rates gives, with jumps."""
    rng = np.random.default_rng(seed)
    steps = np.diff(np.linspace(0, total, stages + 1).astype(int))
    levels = np.abs(np.cos(np.linspace(0, 1.55, stages)) + 1e-3 * rng.standard_normal(stages))
    levels[rng.integers(0, stages, 5)] *= 1e-3
    levels[stages // 2 :] *= 0.05
    return StagedCurve([(int(n), float(to) / 2) for n, to in zip(steps, levels, strict=True)])


@pytest.mark.parametrize(("total", "stages"), [(140_000, 300), (400_000, 5_000)])
def test_curves_of_many_segments_agree_with_their_formula(total, stages) -> None:
    with suppress_warnings():
        curve = logged(total, stages, seed=0)
    steps = np.array([total // 3, total // 2 + 70_000, total])
    actual = np.array(schedule_sums(curve, 2e-3, steps)).T
    np.testing.assert_allclose(actual, formula(curve, 2e-3, steps), rtol=1e-5)


@pytest.mark.parametrize("name", CURVES)
def test_sums_of_long_curves_agree_with_their_formula(name) -> None:
    """Parts of several steps stand for single ones, and nodes for all steps."""
    curve, total = CURVES[name], 150_000
    few = (np.array([0.6, 0.8, 0.999, 1.0]) * curve.total_steps).astype(int)
    checked = np.unique(
        [*range(1, 40), *np.geomspace(40, total, 12).astype(int), *near_borders(curve, total)]
    )
    expected = formula(curve, 2e-3, [*checked, *few])
    every = np.array(schedule_sums(curve, 2e-3, np.arange(1, total + 1))).T[checked - 1]
    np.testing.assert_allclose(every, expected[: len(checked)], rtol=2e-5)
    actual = np.array(schedule_sums(curve, 2e-3, few)).T
    np.testing.assert_allclose(actual, expected[len(checked) :], rtol=1e-5)


def near_borders(curve: Curve, total: int) -> list[int]:
    begins = [row.begin + offset for row in curve.rows for offset in (-1, 1, 50)]
    return [step for step in begins if 0 < step <= total]


def test_many_steps_keep_their_order_and_shape() -> None:
    curve = PlateauCurve(3_000, warmup_steps=100, plateaus=[(0, 60)])
    steps = np.random.default_rng(0).integers(1, 3_001, (3, 2_000))
    actual = np.array(schedule_sums(curve, 1e-3, steps))
    assert actual.shape == (2, 3, 2_000)
    every = np.array(schedule_sums(curve, 1e-3, np.arange(1, 3_001)))
    np.testing.assert_allclose(actual, every[:, steps - 1], rtol=4e-5)
    assert schedule_sums(curve, 1.0, np.array(5))[0].shape == ()


def test_sums_at_all_steps_of_a_log_agree_with_their_formula() -> None:
    """Most of its segments are straight on; one drops."""
    lrs = np.cos(np.linspace(0, 1.5, 2_000)) * np.where(np.arange(2_000) < 1_500, 1, 0.1)
    curve = StagedCurve([(20, lr) for lr in lrs.tolist()])
    actual = np.array(schedule_sums(curve, 1e-3, np.arange(1, curve.total_steps + 1))).T
    checked = [1, 2, 30, *range(29_960, 30_060, 9), *range(7, 40_000, 1_999), 40_000]
    expected = formula(curve, 1e-3, checked)
    np.testing.assert_allclose(actual[np.array(checked) - 1], expected, rtol=2e-5)


@pytest.mark.parametrize("shape", ["cosine", "linear", "1-sqrt"])
def test_longest_curve_scales_like_a_shorter_one(shape) -> None:
    """Without a warmup, S grows with the length, and N hardly changes but for a logarithm."""
    sums = [
        schedule_sums(PlateauCurve(total, decay_shape=shape), 1.0, np.array([total]))
        for total in (LONGEST // 2**10, LONGEST)
    ]
    (progress, noise), (longer, longer_noise) = sums
    assert longer[0] / progress[0] == pytest.approx(LONGEST / (LONGEST // 2**10), rel=1e-5)
    assert noise[0] < longer_noise[0] < 1.5 * noise[0]


@examples(40)
@given(descriptions(range(4), scaled=True), st.floats(0, 1))
def test_largest_multiplier_is_that_of_all_steps(description, share) -> None:
    curve = build(description)
    assume(curve.total_steps <= 100_000)
    updates = max(1, round(share * curve.total_steps))
    assert largest_multiplier(curve, updates) == curve(np.arange(updates)).max()
