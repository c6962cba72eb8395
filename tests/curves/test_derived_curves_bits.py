"""`cooldown`, `then` and `part` keep the bits of the curves they are derived from."""

import numpy as np
import pytest
from hypothesis import given
from support.curves.descriptions import build, descriptions, descriptions_and_steps, steps_of
from support.curves.strategies import words
from support.numerics.oracle import Oracle, is_nearest_float32

from plateau_jax import PlateauCurve, StagedCurve


@given(descriptions_and_steps(kind="cooldown"), words(16))
def test_cooldown_keeps_parent_bits_before_its_first_step(case, more):
    description, steps = case
    parent, at = description["cooldown"], description["at"]
    steps = [min(step, at - 1) for step in (*steps, *steps_of(parent, more))]
    np.testing.assert_array_equal(build(description)(steps), build(parent)(steps))


@given(descriptions_and_steps(kind="then"), words(16))
def test_then_keeps_first_curves_bits(case, more):
    description, steps = case
    first = build(description["curve"])
    steps = [min(step, first.total_steps - 1) for step in (*steps, *steps_of(description["curve"], more))]
    np.testing.assert_array_equal(build(description)(steps), first(steps))


@given(descriptions(depth=2), descriptions_and_steps(size=16, depth=2))
def test_then_keeps_unscaled_second_curves_bits(first, case):
    description, steps = case
    total = Oracle(first).total_steps
    if total + Oracle(description).total_steps < 2**31:
        both = build(first).then(build(description))
        steps = np.clip(steps, 0, 2**31 - 1 - total)
        np.testing.assert_array_equal(both(steps + total), build(description)(steps))


@given(descriptions_and_steps(kind="part"), words(16))
def test_part_keeps_bits_and_holds_level_at_stop(case, more):
    description, steps = case
    parent, start, stop = description["part"], description["start"], description["stop"]
    part, curve, oracle = build(description), build(parent), Oracle(parent)
    inside = np.clip([*steps, *(step - start for step in steps_of(parent, more))], 0, stop - start - 1)
    np.testing.assert_array_equal(part(inside), curve(inside + start))
    assert part.total_steps == stop - start
    assert is_nearest_float32(part(stop - start), oracle(stop))
    assert curve.part(start, None if stop == curve.total_steps else stop) == part


@given(descriptions(scaled=True), words(4))
def test_parts_of_parts_and_their_sums_are_the_same_for_ever(description, drawn):
    curve = build(description)
    first, second, at, stop = sorted(word % (curve.total_steps + 1) for word in drawn)
    if 0 < at < curve.total_steps:
        assert curve.part(0, at).then(curve.part(at)).first_difference(curve) is None
        assert curve.part(0, at).same_until(curve, at)
    if first < second < stop:
        nested = curve.part(first).part(second - first, stop - first)
        assert nested.first_difference(curve.part(second, stop)) is None
    if first < at and curve(at):
        cooled = curve.part(first).cooldown(at - first, 10)
        assert cooled.first_difference(curve.cooldown(at, 10).part(first)) is None


@pytest.mark.parametrize(
    ("curve", "at", "level"),
    [
        (StagedCurve([(3, 0.3)]), 1, 0.1),
        (StagedCurve([(2, 0.4, "cosine")], start=0.2), 1, 0.3),
        (StagedCurve([(4, 0.1, "1-sqrt")], start=0.3), 1, 0.2),
        (StagedCurve([(2, 0.2, "exponential")], start=0.8), 1, 0.4),
        (PlateauCurve(3, min_lr_ratio=0.1, decay_shape="linear"), 1, 0.7),
        # Halfway between two plateaus at irrational levels with a rational mean.
        (PlateauCurve(6, absolute_plateaus=[(1, 1), (4, 1)], min_lr_ratio=0.1), 3, 0.55),
        (
            PlateauCurve(100, min_lr_ratio=0.1).then(PlateauCurve(3, decay_shape="linear"), scale=0.3),
            102,
            0.1,
        ),
    ],
)
def test_cooldown_may_end_at_its_own_start_level(curve, at, level):
    flat = curve.cooldown(at, 10, to=level)
    assert set(flat(range(at, at + 20))) == {np.float32(level)}
    with pytest.raises(ValueError, match="to"):
        curve.cooldown(at, 10, to=float(np.nextafter(level, 1)))
