"""`compare`: its bound and best peak against their formula; ratios, names, text and HTML; its errors."""

import tracemalloc
from dataclasses import FrozenInstanceError
from itertools import pairwise
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import MAX_STEP
from support.errors import check_error, each_row
from support.examples import examples

from plateau_jax import Curve, PlateauCurve, StagedCurve, compare
from plateau_jax.theory.comparison import Comparison


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
    with patch("plateau_jax.theory.comparison.MAX_SINGLE_STEPS", 2**14):
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


COSINE, LINEAR = PlateauCurve(1000), PlateauCurve(1000, decay_shape="linear")
LIMITS = "neither the loss itself", "at one fixed peak", "0.87 and 0.88", "0.95 and 0.93", "keep the peak"


@examples(20)
@given(st.lists(descriptions(range(7), scaled=True), min_size=1, max_size=4))
def test_ratios_are_relative_to_first_curve(described: Any) -> None:
    curves = [build(description) for description in described]
    assume(all(curve.total_steps <= 10**5 for curve in curves))
    assume(all(curve(np.arange(curve.total_steps)).any() for curve in curves))
    comparison = compare(*curves)
    alone = [compare(curve) for curve in curves]
    assert (comparison.bound, comparison.peak) == (alone[0].bound, alone[0].peak)
    assert comparison.bounds == tuple(prediction.bound / comparison.bound for prediction in alone)
    peaks = [
        prediction.peak * curve.total_steps**0.5 for prediction, curve in zip(alone, curves, strict=True)
    ]
    assert comparison.peaks == pytest.approx([peak / peaks[0] for peak in peaks], rel=1e-12)
    assert len(set(comparison.names)) == len(curves)
    named = compare(dict(zip(comparison.names, curves, strict=True)))
    assert named == comparison
    assert hash(named) == hash(comparison)


def test_comparison_prints_table_and_note() -> None:
    comparison = Comparison(("first", "a long name"), (1.0, 1.03219), (1.0, 0.0123456), 0.1, 0.05)
    first, second, third, empty, *note = str(comparison).splitlines()
    assert [first, second, third, empty] == [
        "             bound  best peak",
        "first        1.000       1.00",
        "a long name  1.032     0.0123",
        "",
    ]
    assert max(map(len, note)) <= 90
    assert all(limit in " ".join(note) for limit in LIMITS)


def test_notebook_shows_same_table() -> None:
    comparison = Comparison(("a < b", "c"), (1.0, 1.03219), (1.0, 0.5), 0.1, 0.05)
    root = ElementTree.fromstring(comparison._repr_html_())
    cells = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    assert cells == [["", "bound", "best peak"], ["a < b", "1.000", "1.00"], ["c", "1.032", "0.500"]]
    assert all(limit in "".join(root.itertext()) for limit in LIMITS)


ZERO, LONG_ZERO = (build({"stages": [(5,)] * count, "start": 0.0}) for count in (1, 1000))
ERRORS = [
    # `plot` has the same checks: `drawing/test_plots` has more rows.
    (lambda: compare(), ValueError, "there is no curve"),
    (lambda: compare(COSINE, {"a": LINEAR}), ValueError, "curves[1]: 'a' is not an argument of PlateauCurve"),
    (lambda: compare({"a": COSINE, "b": 5}), TypeError, "curves['b'] = 5 must be a Curve"),
    (lambda: compare({"a": COSINE, "b": {}}), TypeError, "curves['b'].total_steps is missing"),
    (lambda: compare({"total_steps": 0}), ValueError, "curves[0].total_steps = 0 must lie in 1"),
    (lambda: compare(COSINE, ZERO), ValueError, "StagedCurve(", "has no positive"),
    (lambda: compare(LONG_ZERO), ValueError, "... has no positive learning rate"),
    (lambda: setattr(compare(COSINE), "names", ()), FrozenInstanceError),
]


@each_row(ERRORS)
def test_errors(row: Any) -> None:
    check_error(row, COSINE=COSINE)
