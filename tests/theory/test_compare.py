"""`compare`: bound and best peak against their formula; ratios, names, text and HTML; errors."""

import tracemalloc
from unittest.mock import patch
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import MAX_STEP
from support.examples import examples
from support.numerics.oracle import can_join
from support.numerics.shapes import SAMPLES
from support.raises import raises

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve, compare
from plateau_jax.tools.theory.bounds import Comparison


def bound_and_peak(curve):
    """Evaluate the formula at every step, on most machines with more digits than the product."""
    s = np.asarray(curve(np.arange(curve.total_steps)), np.longdouble)
    s = s[s > 0]
    sums = sums_from(s)
    tails = np.append(sums[1:], 0)  # Σ_{t>E} s
    predictions = []
    for end in np.flatnonzero(s > tails):
        until_end = s[: end + 1]
        predictions.append(bound_and_peak_until(until_end, tails[end]))
    return min(predictions)


def bound_and_peak_until(s, tail):
    """Evaluate the formula without the steps whose multipliers add up to `tail`."""
    sums = sums_from(s)  # Σ_{t≥k} s
    squares = sums_from(s**2)  # Σ_{t≥k} s²
    means = squares / sums
    t_1 = 1 / (2 * sums[0])
    t_2 = squares[0] / (2 * sums[0])
    t_2 += np.sum(s[:-1] / sums[1:] * means[:-1]) / 2
    t_2 += 4 * tail
    return 2 * float(np.sqrt(t_1 * t_2)), float(np.sqrt(t_1 / t_2))


def sums_from(values):
    """Return the sum of each value and all later ones."""
    return np.cumsum(values[::-1])[::-1]


def check_prediction(curve, tolerance):
    prediction = compare(curve)
    bound, peak = bound_and_peak(curve)
    assert prediction.bound == pytest.approx(bound, rel=tolerance, abs=0)
    assert prediction.peak == pytest.approx(peak, rel=tolerance, abs=0)


def is_short_and_positive(curve):
    """Return True if the curve can be added up step by step, and is not 0 everywhere."""
    if curve.total_steps > 100_000:
        return False
    multipliers = curve(range(curve.total_steps))
    return multipliers.any()


@examples(60)
@given(descriptions(scaled=True))
def test_bound_and_peak_match_formula(description):
    curve = build(description)
    assume(is_short_and_positive(curve))
    check_prediction(curve, 1e-12)


LEVELS = st.sampled_from([1.0, 0.7, 0.1, 1e-3, 1e-6, 1e-12])
SHAPES = st.sampled_from([shape for shape in SAMPLES if can_join(shape, 1.0, 1e-12)])
STAGES = st.one_of(
    st.tuples(st.sampled_from([1, 2, 5, 1000, 100_000])),
    st.tuples(st.sampled_from([64, 5000, 100_000]), LEVELS, SHAPES),
)


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")  # levels like learning rates
@examples(28)
@given(
    start=LEVELS,
    stages=st.lists(STAGES, max_size=4),
    end=LEVELS,
    scale=st.sampled_from([1.0, 1e-4]),
    jumps_at_the_end=st.booleans(),
)
def test_any_stages_are_within_1e_5(start, stages, end, scale, jumps_at_the_end):
    """Even if the curve jumps to a level that it holds for a step or two."""
    first = StagedCurve([(50_000, end, "cosine"), *stages], start=start)
    if jumps_at_the_end:
        second = StagedCurve([*stages, (2,)], start=1.0)
    else:
        second = StagedCurve([(3,), (800, 1e-12, "exponential")], start=1.0)
    curve = first.then(second, scale=scale)
    with patch("plateau_jax.tools.theory.step_bins.MAX_SINGLE_STEPS", 2**14):
        check_prediction(curve, 1e-5)


def test_plateau_before_zeros_is_within_1e_5():
    """The sums change fastest at its end, which is far from the end of the curve."""
    curve = StagedCurve([(50_000,), (0, 0.0), (50_000,)], start=1.0)
    with patch("plateau_jax.tools.theory.step_bins.MAX_SINGLE_STEPS", 2**14):
        check_prediction(curve, 1e-5)


def test_longest_curve_follows_its_sum_in_little_memory():
    tracemalloc.start()
    longest = compare(StagedCurve([(MAX_STEP,)], start=0.3))
    compare(PlateauCurve(MAX_STEP, plateaus=[(0, 50)]))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**28
    harmonic = np.log(MAX_STEP - 1) + np.euler_gamma
    bound = np.sqrt((1 + harmonic) / MAX_STEP)
    assert longest.bound == pytest.approx(bound, rel=1e-5)


def curve_of_zeros(steps):
    return build({"kind": "staged", "stages": [(steps,)]})


@given(st.floats(2**-6, 1.0, width=32), st.integers(0, 5))
def test_one_step_is_exact(level, zeros):
    one_step = StagedCurve([(1,)], start=level)
    curve = one_step.then(curve_of_zeros(1 + zeros))
    prediction = compare(curve)
    assert prediction.bound == 1.0
    assert prediction.peak == 1 / level


@examples(20)
@given(st.lists(descriptions(range(7), scaled=True), min_size=1, max_size=4))
def test_ratios_are_relative_to_first_curve(described):
    curves = list(filter(is_short_and_positive, map(build, described)))
    assume(curves)
    comparison = compare(*curves)
    first = compare(curves[0])
    assert comparison.bound == first.bound
    assert comparison.peak == first.peak
    for index, curve in enumerate(curves):
        prediction = compare(curve)
        assert comparison.bounds[index] == prediction.bound / first.bound
        # A peak falls as 1/√steps, which does not count as a difference.
        longer = np.sqrt(curve.total_steps / curves[0].total_steps)
        ratio = prediction.peak / first.peak * longer
        assert comparison.peaks[index] == pytest.approx(ratio, rel=1e-12)
    assert len(set(comparison.names)) == len(curves)
    with_names = dict(zip(comparison.names, curves, strict=True))
    named = compare(with_names)
    assert named == comparison
    assert hash(named) == hash(comparison)


def test_text_and_notebook_show_the_table_and_a_note():
    comparison = Comparison(("a < b", "c"), (1.0, 1.03219), (1.0, 0.0123456), 0.1, 0.05)
    lines = str(comparison).splitlines()
    assert lines[:4] == [
        "       bound  best peak",
        "a < b  1.000       1.00",
        "c      1.032     0.0123",
        "",
    ]
    assert max(map(len, lines)) <= 90
    assert "at one fixed peak" in " ".join(lines[4:])
    root = ElementTree.fromstring(comparison._repr_html_())
    assert "".join(root.itertext()) == str(comparison)


def test_note_on_curves_with_a_batch_plan():
    """Their bounds count steps, which are not the updates of the run."""
    curve = PlateauCurve(1000)
    plan = BatchPlan([(0, 8), (4000, 16)])
    scaled = plan.scale(curve, 8, reference=16)
    note = "this is not the bound of a run with BatchPlan.scale"
    comparison = compare(curve, scaled)
    assert note in " ".join(str(comparison).split())
    assert note in " ".join(comparison._repr_html_().split())


# Errors. `plot` has the same checks of its curves: `drawing/test_plots` has more.


@raises(ValueError, "StagedCurve(", "has no positive")
def test_curve_of_zeros():
    compare(PlateauCurve(1000), curve_of_zeros(5))
