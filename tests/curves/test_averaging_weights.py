"""`merge_weights`: averaging weights that turn checkpoints into a cooldown."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions_and_steps
from support.curves.strategies import MAX_STEP, Words
from support.errors import pairs
from support.examples import examples

from plateau_jax import StagedCurve


def _expected(values: list[Fraction], steps: list[int]) -> list[Fraction]:
    """Compute the weights from their definition in exact numbers; `values` begin at steps[0]."""
    means = [
        sum(values[before - steps[0] : after - steps[0]]) / (after - before) / values[0]
        for before, after in pairwise(steps)
    ]
    return [before - after for before, after in pairwise([Fraction(1), *means, Fraction(0)])]


@given(descriptions_and_steps(counts=range(6), size=24, depth=2, scaled=True))
@examples(160)
def test_weights_match_definition_on_generated_curves(drawn):
    """A curve that rises or begins at 0 is rejected."""
    description, steps = drawn
    read = Words([abs(step) * 2654435761 for step in steps])
    start = min(max(steps[0], 0), MAX_STEP - 3000)
    taken = sorted({start, *(start + read.magnitude(1, 3000) for _ in range(1 + read.below(20)))})
    curve = build(description)
    values = [Fraction(float(value)) for value in curve(range(start, taken[-1]))]
    if values[0] == 0:
        with pytest.raises(ValueError, match=rf"the curve is 0 at steps\[0\] = {start}, and must be above"):
            curve.merge_weights(taken)
    elif any(before < after for before, after in pairwise(values)):
        with pytest.raises(ValueError, match=rf"the curve rises from step \d+ to step \d+, .* = {start} to"):
            curve.merge_weights(taken)
    else:
        weights, expected = curve.merge_weights(np.array(taken)), _expected(values, taken)
        assert weights.dtype == np.float64
        assert not np.signbit(weights).any()
        for order in (weights, weights[::-1], np.sort(weights)):
            assert sum(order) == 1  # in any order, not a bit is lost
        assert not (weights * 2**53 % 1).any()
        for weight, exact in pairs(weights, expected):
            assert abs(Fraction(float(weight)) - exact) < Fraction(1, 2**51)


@pytest.mark.filterwarnings("ignore:at = :plateau_jax.CurveWarning")  # from 0 to 0
@given(descriptions_and_steps(counts=range(6), size=1, depth=1, scaled=True))
@examples(20)
def test_many_checkpoints_and_long_intervals_agree(drawn):
    """Weights do not depend on whether an interval is evaluated at once or in chunks."""
    description, (step,) = drawn
    curve = build(description).cooldown(max(step, 0) % 10**6, 100_000, shape="linear")
    start = curve.total_steps - 100_000
    if curve(start) == 0:
        return
    steps = [start, start + 1, start + 70_000, start + 130_000]
    values = curve(range(start, start + 130_000)).astype(np.float64)
    means = [math.fsum(values[a - start : b - start]) / (b - a) / values[0] for a, b in pairwise(steps)]
    np.testing.assert_allclose(curve.merge_weights(steps), -np.diff([1.0, *means, 0.0]), rtol=0, atol=1e-15)


@examples(60)
@given(st.floats(0.0625, 1), st.sets(st.integers(10, MAX_STEP), min_size=3, max_size=8))
@example(0.7, {81_939_729, 915_054_082, 969_300_353, 1_026_687_485})
def test_rounded_means_give_no_negative_weight(level, steps):
    """The sum of a level over 2³⁰ steps has more digits than float64 holds, and its mean may exceed it."""
    curve = StagedCurve([(10, level), (1000,)], start=1.0)
    weights = curve.merge_weights(sorted(steps))
    assert np.all(weights >= 0)
    assert sum(weights) == 1
    np.testing.assert_allclose(weights, [0] * (len(steps) - 1) + [1], atol=1e-15)
