"""`merge_weights`: averaging weights that turn checkpoints into a cooldown."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions_and_steps
from support.curves.strategies import MAX_STEP, Words
from support.examples import examples

from plateau_jax import StagedCurve


def exact_weights(values, steps):
    """Compute the weights from their definition in exact numbers; `values` begin at steps[0]."""
    means = [Fraction(1)]
    for first, after in pairwise(steps):
        interval = values[first - steps[0] : after - steps[0]]
        means.append(sum(interval) / len(interval) / values[0])
    means.append(Fraction(0))
    return [before - after for before, after in pairwise(means)]


def rises(values):
    return any(before < after for before, after in pairwise(values))


def draw_checkpoint_steps(steps):
    """Return rising steps that begin at or near the first of these."""
    read = Words([abs(step) * 2654435761 for step in steps])
    start = min(max(steps[0], 0), MAX_STEP - 3000)
    checkpoints = {start}
    for _ in range(1 + read.below(20)):
        checkpoints.add(start + read.magnitude(1, 3000))
    return sorted(checkpoints)


@given(descriptions_and_steps(counts=range(6), size=24, depth=2, scaled=True))
@examples(160)
def test_weights_match_definition_on_generated_curves(drawn):
    """A curve that rises or begins at 0 is rejected."""
    description, drawn_steps = drawn
    curve = build(description)
    steps = draw_checkpoint_steps(drawn_steps)
    start = steps[0]
    values = [Fraction(float(value)) for value in curve(range(start, steps[-1]))]
    if values[0] == 0:
        at_0 = rf"the curve is 0 at steps\[0\] = {start}, and must be above"
        with pytest.raises(ValueError, match=at_0):
            curve.merge_weights(steps)
    elif rises(values):
        rising = rf"the curve rises from step \d+ to step \d+, .* = {start} to"
        with pytest.raises(ValueError, match=rising):
            curve.merge_weights(steps)
    else:
        weights = curve.merge_weights(np.array(steps))
        assert weights.dtype == np.float64
        check_sum(weights)
        for weight, exact in zip(weights, exact_weights(values, steps), strict=True):
            assert abs(Fraction(float(weight)) - exact) < Fraction(1, 2**51)


def check_sum(weights):
    """Check that the weights add up to 1: in any order, not a bit is lost."""
    assert not np.signbit(weights).any()
    assert not (weights * 2**53 % 1).any()
    assert sum(weights) == 1
    assert sum(weights[::-1]) == 1
    assert sum(np.sort(weights)) == 1


@pytest.mark.filterwarnings("ignore:at = :plateau_jax.CurveWarning")  # from 0 to 0
@given(descriptions_and_steps(counts=range(6), size=1, depth=1, scaled=True))
@examples(20)
def test_many_checkpoints_and_long_intervals_agree(drawn):
    """Weights do not depend on whether an interval is evaluated at once or in chunks."""
    description, (step,) = drawn
    parent = build(description)
    curve = parent.cooldown(max(step, 0) % 10**6, 100_000, shape="linear")
    start = curve.total_steps - 100_000
    if curve(start) == 0:
        return
    steps = [start, start + 1, start + 70_000, start + 130_000]
    values = curve(range(start, start + 130_000)).astype(np.float64)
    means = [1.0]
    for first, after in pairwise(steps):
        interval = values[first - start : after - start]
        means.append(math.fsum(interval) / len(interval) / values[0])
    means.append(0.0)
    np.testing.assert_allclose(curve.merge_weights(steps), -np.diff(means), rtol=0, atol=1e-15)


@examples(60)
@given(st.floats(0.0625, 1), st.sets(st.integers(10, MAX_STEP), min_size=3, max_size=8))
@example(0.7, {81_939_729, 915_054_082, 969_300_353, 1_026_687_485})
def test_rounded_means_give_no_negative_weight(level, steps):
    """A sum over 2³⁰ steps has more digits than float64, and the mean may exceed the level."""
    curve = StagedCurve([(10, level), (1000,)], start=1.0)
    weights = curve.merge_weights(sorted(steps))
    assert np.all(weights >= 0)
    assert sum(weights) == 1
    np.testing.assert_allclose(weights[:-1], 0, atol=1e-15)
    np.testing.assert_allclose(weights[-1], 1, atol=1e-15)
