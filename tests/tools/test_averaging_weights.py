"""`merge_weights`: averaging weights that turn checkpoints, or means, into a cooldown."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st
from support.curves.descriptions import build, descriptions_and_steps
from support.curves.strategies import MAX_STEP, draw_magnitude, randoms
from support.examples import examples

from plateau_jax import StagedCurve


def exact_weights(values, steps):
    """Compute the weights from their definition in exact numbers; `values` begin at steps[0]."""
    start = steps[0]
    means = [Fraction(1)]
    for first, after in pairwise(steps):
        interval = values[first - start : after - start]
        means.append(sum(interval) / len(interval) / values[0])
    means.append(Fraction(0))
    return [before - after for before, after in pairwise(means)]


def check_weights(weights, expected):
    """Check float64 weights against exact ones."""
    assert weights.dtype == np.float64
    check_sum(weights)
    for weight, exact in zip(weights, expected, strict=True):
        assert abs(Fraction(float(weight)) - exact) < Fraction(1, 2**51)


def rises(values):
    return any(before < after for before, after in pairwise(values))


def draw_checkpoint_steps(random, step):
    """Draw rising steps that begin at or near this step."""
    start = min(max(step, 0), MAX_STEP - 3000)
    checkpoints = {start}
    for _ in range(random.randint(1, 20)):
        checkpoints.add(start + draw_magnitude(random, 1, 3000))
    return sorted(checkpoints)


@given(descriptions_and_steps(counts=range(6), size=1, depth=2, scaled=True), randoms)
@examples(160)
def test_weights_match_definition_on_generated_curves(drawn, random):
    """A curve that rises or begins at 0 is rejected."""
    description, (first,) = drawn
    curve = build(description)
    steps = draw_checkpoint_steps(random, first)
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
        check_weights(weights, exact_weights(values, steps))


def check_sum(weights):
    """Check that the weights add up to 1: in any order, not a bit is lost."""
    assert not np.signbit(weights).any()
    assert not (weights * 2**53 % 1).any()
    assert sum(weights) == 1
    assert sum(weights[::-1]) == 1
    assert sum(np.sort(weights)) == 1


cooldown_may_be_from_0_to_0 = pytest.mark.filterwarnings("ignore:at = :plateau_jax.CurveWarning")


@cooldown_may_be_from_0_to_0
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
    weights = curve.merge_weights(steps)
    np.testing.assert_allclose(weights, -np.diff(means), rtol=0, atol=1e-15)


@examples(60)
@given(st.floats(0.0625, 1), st.sets(st.integers(10, MAX_STEP), min_size=3, max_size=8))
@example(0.7, {81_939_729, 915_054_082, 969_300_353, 1_026_687_485})
def test_rounded_means_give_no_negative_weight(level, steps):
    """A sum over 2³⁰ steps has more digits than float64, and the mean may exceed the level."""
    curve = StagedCurve([(10, level), (1000,)], start=1.0)
    weights = curve.merge_weights(sorted(steps))
    assert np.all(weights >= 0)
    assert sum(weights) == 1
    *others, last = weights
    np.testing.assert_allclose(others, 0, atol=1e-15)
    np.testing.assert_allclose(last, 1, atol=1e-15)


# Means of blocks of updates.

SHAPES = ["linear", "cosine", "1-sqrt", "1-x^2", "(1-x)^3"]


def exact_weights_of_blocks(values, begin, steps):
    """Return by how much the curve falls in each block; `values` are those from step `begin`."""
    of_steps = dict(enumerate(values, begin))
    levels = [of_steps.get(step, 0) for step in [begin, *steps]]
    return [(before - after) / values[0] for before, after in pairwise(levels)]


@st.composite
def cooldowns_and_blocks(draw):
    """Return a cooldown, the step where the first block begins, and those where blocks end."""
    description, _ = draw(descriptions_and_steps(counts=range(6), size=1, depth=1, scaled=True))
    parent = build(description)
    begin = parent.total_steps
    assume(begin < MAX_STEP - 5000)
    at = begin + draw(st.sampled_from([0, 1, 7, 300]))
    to = draw(st.sampled_from([0.0, 0.5])) * parent(begin)
    steps = draw(st.integers(1, 600))
    shape = draw(st.sampled_from(SHAPES))
    curve = parent.cooldown(at, steps, to=to, shape=shape)
    longest = draw(st.sampled_from([1, 40, 900]))
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=8))
    ends = [begin + length for length in np.cumsum(lengths).tolist()]
    while ends[-1] < curve.total_steps:
        ends.append(ends[-1] + longest)
    return curve, begin, ends


@cooldown_may_be_from_0_to_0
@given(cooldowns_and_blocks())
@examples(80)
def test_weights_of_blocks_match_definition(drawn):
    curve, begin, ends = drawn
    lengths = np.diff([begin, *ends])
    values = [Fraction(float(value)) for value in curve(range(begin, curve.total_steps))]
    if values[0] == 0:
        at_0 = rf"the curve is 0 at steps\[0\] - mean_of\[0\] = {begin}, and must be above"
        with pytest.raises(ValueError, match=at_0):
            curve.merge_weights(ends, mean_of=lengths)
        return
    weights = curve.merge_weights(ends, mean_of=lengths)
    check_weights(weights, exact_weights_of_blocks(values, begin, ends))
    if len({*lengths}) == 1:
        of_one_length = curve.merge_weights(np.array(ends), mean_of=lengths[0])
        assert (weights == of_one_length).all()


def sgd(gradients, learning_rates):
    """Return the weights after each update of SGD whose gradients don't depend on them."""
    return -np.cumsum(gradients * learning_rates)


@examples(40)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 9), st.integers(0, 5))
def test_linear_cooldown_between_checkpoints_is_exact(seed, length, in_cooldown, outside):
    """Its merge of block means is what the cooldown itself leads to."""
    before = outside * length
    steps = in_cooldown * length
    updates = before + steps
    gradients = np.random.default_rng(seed).standard_normal(updates)
    stable = StagedCurve([(0, 1.0), (updates,)])
    curve = stable.cooldown(before, steps, shape="linear")
    multipliers = curve(range(updates))
    cooled = sgd(gradients, multipliers.astype(np.float64))
    means = sgd(gradients, 1.0).reshape(-1, length).mean(1)
    ends = range(length, updates + 1, length)
    merged = curve.merge_weights(ends, mean_of=length) @ means
    assert abs(merged - cooled[-1]) < 1e-5 * np.abs(cooled).max()
