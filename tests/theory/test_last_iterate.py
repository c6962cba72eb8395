"""The bound and the best peak of `compare` against their formula, and within 10⁻⁵ for long curves."""

import tracemalloc
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import MAX_STEP
from support.examples import examples

from plateau_jax import Curve, PlateauCurve, StagedCurve, compare
from plateau_jax.theory import comparison


def _added_up(curve: Curve) -> tuple[float, float]:
    """Evaluate the formula at every step, on most machines with more digits than the product has."""
    s = np.asarray(curve(np.arange(curve.total_steps)), np.longdouble)
    s = s[s > 0]
    tails = np.append(np.cumsum(s[::-1])[::-1][1:], 0)
    return min(_added_up_until(s[: end + 1], tails[end]) for end in np.flatnonzero(s > tails))


def _added_up_until(s: Any, tail: Any) -> tuple[float, float]:
    sums, squares = (np.cumsum(values[::-1])[::-1] for values in (s, s**2))
    first = 1 / (2 * sums[0])
    second = squares[0] * first + np.sum(s[:-1] / sums[1:] * (squares / sums)[:-1]) / 2 + 4 * tail
    return 2 * float(np.sqrt(first * second)), float(np.sqrt(first / second))


def _assert_near(curve: Curve, tolerance: float) -> None:
    prediction = compare(curve)
    assert (prediction.bound, prediction.peak) == pytest.approx(_added_up(curve), rel=tolerance, abs=0)


@examples(60)
@given(descriptions(scaled=True))
def test_bound_and_peak_match_formula(description: Any) -> None:
    curve = build(description)
    assume(curve.total_steps <= 100_000)
    assume(curve(np.arange(curve.total_steps)).any())
    _assert_near(curve, 1e-12)


def test_tiny_tail_counts_as_little_as_none() -> None:
    """The prediction is continuous in the tail's level, from none to the level before it."""
    without, levels = compare(StagedCurve([(900,)], start=1.0)), np.geomspace(1e-12, 1.0, 400).tolist()
    with_tail = [compare(StagedCurve([(900,), (0, level), (100,)], start=1.0)) for level in levels]
    for before, after in pairwise([without, *with_tail]):
        assert after.bound == pytest.approx(before.bound, rel=0.1)
        assert after.peak == pytest.approx(before.peak, rel=0.15)
    assert with_tail[0].bound == pytest.approx(without.bound, rel=1e-5)
    assert max(one.bound for one in with_tail) < 1.5 * without.bound


_LEVELS = st.sampled_from([1.0, 0.7, 0.1, 1e-3, 1e-6, 1e-12])
_HELD = st.tuples(st.sampled_from([1, 2, 5, 1000, 100_000]))
_POWERS = "1-x^0.05", "1-x^20", "(1-x)^0.05", "(1-x)^20", "t^-1", "t^-4"
_SHAPES = st.sampled_from(("linear", "cosine", "1-sqrt", "exponential", *_POWERS))
_MOVING = st.tuples(st.sampled_from([64, 5000, 100_000]), _LEVELS, _SHAPES)
_STAGES = st.lists(_HELD | _MOVING, max_size=4)


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")  # levels that look like learning rates
@examples(28)
@given(_LEVELS, _STAGES, _LEVELS, st.sampled_from([1.0, 1e-4]), st.booleans())
def test_any_stages_are_within_1e_5(start: float, stages: Any, end: float, scale: float, last: bool) -> None:
    """Even if the curve jumps to a level that it holds for a step or two."""
    first = StagedCurve([(50_000, end, "cosine"), *stages], start=start)
    other = StagedCurve([*stages, (2,)] if last else [(3,), (800, 1e-12, "exponential")], start=1.0)
    with patch.object(comparison, "MAX_SINGLE_STEPS", 2**14):
        _assert_near(first.then(other, scale=scale), 1e-5)


def test_longest_curve_follows_its_sum_in_little_memory() -> None:
    tracemalloc.start()
    longest = compare(StagedCurve([(MAX_STEP,)], start=0.3))
    compare(PlateauCurve(MAX_STEP, plateaus=[(0, 50)]))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**28
    harmonic = np.log(MAX_STEP - 1) + np.euler_gamma
    assert longest.bound == pytest.approx(np.sqrt((1 + harmonic) / MAX_STEP), rel=1e-5)


@given(st.floats(2**-6, 1.0, width=32), st.integers(0, 5))
def test_one_step_is_exact(level: float, zeros: int) -> None:
    curve = StagedCurve([(1,)], start=level).then(build({"stages": [(1 + zeros,)], "start": 0.0}))
    prediction = compare(curve)
    assert (prediction.bound, prediction.peak) == (1.0, 1 / level)
