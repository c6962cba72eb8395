"""Cooldowns, continuations and parts: they keep the bits of their curves, and exact levels stay exact."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions, descriptions_and_steps, steps_of
from support.curves.strategies import MAX_STEP, words
from support.numerics.oracle import Oracle, is_nearest_float32

from plateau_jax import PlateauCurve, StagedCurve

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)


@pytest.mark.parametrize(("kind", "first"), [("cooldown", "cooldown"), ("then", "curve")])
@given(data=st.data(), more=words(16))
def test_first_curves_bits_are_kept_up_to_its_end(kind, first, data, more):
    description, steps = data.draw(descriptions_and_steps(kind=kind))
    parent = build(description[first])
    end = description.get("at", parent.total_steps)
    steps = [min(step, end - 1) for step in (*steps, *steps_of(description[first], more))]
    np.testing.assert_array_equal(build(description)(steps), parent(steps))


@given(descriptions(depth=2), descriptions_and_steps(size=16, depth=2))
def test_then_keeps_unscaled_second_curves_bits(first, case):
    description, steps = case
    total = Oracle(first).total_steps
    if total + Oracle(description).total_steps <= MAX_STEP:
        both = build(first).then(build(description))
        steps = np.clip(steps, 0, MAX_STEP - total)
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


HALVES = PlateauCurve(100, min_lr_ratio=0.1).then(PlateauCurve(3, decay_shape="linear"), scale=0.3)


@pytest.mark.parametrize(
    ("curve", "at", "level"),
    [
        (StagedCurve([(3, 0.3)]), 1, 0.1),
        (StagedCurve([(2, 0.4, "cosine")], start=0.2), 1, 0.3),
        (StagedCurve([(4, 0.1, "1-sqrt")], start=0.3), 1, 0.2),
        (PlateauCurve(3, min_lr_ratio=0.1, decay_shape="linear"), 1, 0.7),
        # Halfway between two plateaus at irrational levels with a rational mean.
        (PlateauCurve(6, absolute_plateaus=[(1, 1), (4, 1)], min_lr_ratio=0.1), 3, 0.55),
        (HALVES, 102, 0.1),
        (CURVE, 2000, 0.1),
        (StagedCurve([(10, 0.01, "exponential")], start=1.0), 5, 0.1),
        # 1 - 3/4, (1 + cos 2π/3)/2 and 1 - √(9/16).
        (PlateauCurve(48_000, decay_shape="linear", absolute_plateaus=[(18_000, 24_000)]), 20_000, 0.25),
        (PlateauCurve(48_000, decay_shape="cosine", absolute_plateaus=[(16_000, 24_000)]), 20_000, 0.25),
        (PlateauCurve(48_000, decay_shape="1-sqrt", absolute_plateaus=[(13_500, 24_000)]), 20_000, 0.25),
        (StagedCurve([(4, 0.2, "1-x^2")], start=1.0), 2, 0.8),
        (StagedCurve([(2, 0.2, "t^-1")], start=0.3), 1, 0.24),
        (StagedCurve([(9_999, 0.0005, "t^-0.75")], start=0.5), 15, 0.0625),
        (PlateauCurve(100, decay_shape="(1-x)^2"), 66, 0.1156),
    ],
)
def test_cooldown_to_exact_level_is_flat(curve, at, level):
    assert curve._level_at(at) == Decimal(repr(level))
    flat = curve.cooldown(at, 10, to=level)
    assert set(flat(range(at, at + 20))) == {np.float32(level)}
    assert curve.cooldown(at, 10, to=level, shape="1-x^2").table.length[-2] == 0
    for shape in ("exponential", "t^-0.5"):
        tables = (
            parent.cooldown(first, 8, to=level / 4, shape=shape).table.columns()
            for parent, first in ((curve, at), (StagedCurve([(1,)], start=level), 1))
        )
        computed, written = ({name: column[-2] for name, column in table.items()} for table in tables)
        assert computed == {**computed, **written, "begin": at, "phase_begin": at}
    with pytest.raises(ValueError, match=f"^to = .* must not lie above the level at step {at}"):
        curve.cooldown(at, 10, to=float(np.nextafter(level, 1)))


def test_cooldown_from_tiny_level_of_power():
    """(1-x)^20 falls to 10⁻¹⁷⁸ on its last step, which is less than 224 bits can hold."""
    at, parent = 10**9 - 1, {"stages": [(10**9, 0, "(1-x)^20")], "start": 1.0}
    cooldown = {"cooldown": parent, "at": at, "steps": 5, "to": 1e-300, "shape": "exponential"}
    curve = build(cooldown)
    for step in range(at, at + 6):
        assert is_nearest_float32(np.float32(curve(step)), Oracle(cooldown)(step))
