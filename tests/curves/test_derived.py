"""Cooldowns, continuations and parts: they keep the bits of their curves, and exact levels."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import (
    CURVES_IN_UNITS_OF_8,
    build,
    descriptions,
    descriptions_and_steps,
    draw_steps,
)
from support.curves.strategies import MAX_STEP, randoms
from support.numerics.oracle import Oracle, is_nearest_float32

from plateau_jax import PlateauCurve, StagedCurve


@pytest.mark.parametrize("kind", ["cooldown", "then"])
@given(data=st.data(), random=randoms)
def test_first_curves_bits_are_kept_up_to_its_end(kind, data, random):
    description, steps = data.draw(descriptions_and_steps(kind=kind))
    curve = build(description)
    parent = build(description["curve"])
    end = description.get("at", parent.total_steps)
    steps += draw_steps(random, description["curve"], 16)
    kept = np.minimum(steps, end - 1)
    np.testing.assert_array_equal(curve(kept), parent(kept))


@pytest.mark.parametrize("curve", CURVES_IN_UNITS_OF_8, ids=str)
def test_curve_with_a_scaled_part_has_its_unit(curve):
    assert curve.unit == 8


@given(descriptions(depth=2), descriptions_and_steps(size=16, depth=2))
def test_then_keeps_unscaled_second_curves_bits(first_description, case):
    description, steps = case
    first = build(first_description)
    second = build(description)
    begin = first.total_steps
    if begin + second.total_steps <= MAX_STEP:
        joined = first.then(second)
        steps = np.clip(steps, 0, MAX_STEP - begin)
        np.testing.assert_array_equal(joined(begin + steps), second(steps))


@given(descriptions_and_steps(kind="part"), randoms)
def test_part_keeps_bits_and_holds_level_at_stop(case, random):
    description, steps = case
    whole = description["curve"]
    start = description["start"]
    stop = description["stop"]
    length = stop - start
    part = build(description)
    curve = build(whole)
    steps_of_curve = np.array(draw_steps(random, whole, 16))
    inside = np.clip([*steps, *(steps_of_curve - start)], 0, length - 1)
    np.testing.assert_array_equal(part(inside), curve(inside + start))
    assert part.total_steps == length
    level = Oracle(whole)(stop)
    assert is_nearest_float32(part(length), level)
    if stop == curve.total_steps:
        stop = None
    assert curve.part(start, stop) == part


@given(descriptions(scaled=True), randoms)
def test_parts_of_parts_and_their_sums_are_the_same_for_ever(description, random):
    curve = build(description)
    steps = [random.randint(0, curve.total_steps) for _ in range(4)]
    first, second, at, stop = sorted(steps)
    if 0 < at < curve.total_steps:
        joined = curve.part(0, at).then(curve.part(at))
        assert joined.first_difference(curve) is None
        assert curve.part(0, at).same_until(curve, at)
    if first < second < stop:
        nested = curve.part(first).part(second - first, stop - first)
        assert nested.first_difference(curve.part(second, stop)) is None
    if first < at and curve(at):
        cooled = curve.part(first).cooldown(at - first, 10)
        assert cooled.first_difference(curve.cooldown(at, 10).part(first)) is None


def held_from(step, decay_shape):
    """Return a curve whose plateau begins at a step, and which decays for 24,000 steps."""
    plateaus = [(step, 24_000)]
    return PlateauCurve(48_000, decay_shape=decay_shape, absolute_plateaus=plateaus)


WITH_A_PLATEAU = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)
SCALED_LINE = PlateauCurve(100, min_lr_ratio=0.1).then(
    PlateauCurve(3, decay_shape="linear"), scale=0.3
)
BETWEEN_PLATEAUS = PlateauCurve(6, absolute_plateaus=[(1, 1), (4, 1)], min_lr_ratio=0.1)
"""At step 3 halfway between two irrational levels with a rational mean."""


@pytest.mark.parametrize(
    ("curve", "at", "level"),
    [
        (StagedCurve([(3, 0.3)]), 1, 0.1),
        (StagedCurve([(2, 0.4, "cosine")], start=0.2), 1, 0.3),
        (StagedCurve([(4, 0.1, "1-sqrt")], start=0.3), 1, 0.2),
        (PlateauCurve(3, min_lr_ratio=0.1, decay_shape="linear"), 1, 0.7),
        (BETWEEN_PLATEAUS, 3, 0.55),
        (SCALED_LINE, 102, 0.1),
        (WITH_A_PLATEAU, 2000, 0.1),
        (StagedCurve([(10, 0.01, "exponential")], start=1.0), 5, 0.1),
        # 1 - 3/4, (1 + cos 2π/3)/2 and 1 - √(9/16).
        (held_from(18_000, "linear"), 20_000, 0.25),
        (held_from(16_000, "cosine"), 20_000, 0.25),
        (held_from(13_500, "1-sqrt"), 20_000, 0.25),
        (StagedCurve([(4, 0.2, "1-x^2")], start=1.0), 2, 0.8),
        (StagedCurve([(2, 0.2, "t^-1")], start=0.3), 1, 0.24),
        (StagedCurve([(9_999, 0.0005, "t^-0.75")], start=0.5), 15, 0.0625),
        (PlateauCurve(100, decay_shape="(1-x)^2"), 66, 0.1156),
    ],
)
def test_cooldown_to_exact_level_is_flat(curve, at, level):
    """The level is rational, although the curve computes it from irrational numbers."""
    assert curve._level_at(at) == Decimal(repr(level))
    flat = curve.cooldown(at, 10, to=level)
    assert set(flat(range(at, at + 20))) == {np.float32(level)}
    curved = curve.cooldown(at, 10, to=level, shape="1-x^2")
    assert set(curved(range(at, at + 20))) == {np.float32(level)}
    at_the_level = StagedCurve([(1,)], start=level)
    for shape in ("exponential", "t^-0.5"):
        computed = curve.cooldown(at, 8, to=level / 4, shape=shape)
        written = at_the_level.cooldown(1, 8, to=level / 4, shape=shape)
        np.testing.assert_array_equal(computed(range(at, at + 9)), written(range(1, 10)))
    with pytest.raises(ValueError, match=f"^to = .* must not lie above the level at step {at}"):
        curve.cooldown(at, 10, to=float(np.nextafter(level, 1)))


def test_cooldown_from_tiny_level_of_power():
    """(1-x)^20 falls to 10⁻¹⁷⁸ on its last step, which is less than 224 bits can hold."""
    at = 10**9 - 1
    cooldown = {
        "kind": "cooldown",
        "curve": {"kind": "staged", "stages": [(10**9, 0, "(1-x)^20")], "start": 1.0},
        "at": at,
        "steps": 5,
        "to": 1e-300,
        "shape": "exponential",
    }
    curve = build(cooldown)
    oracle = Oracle(cooldown)
    for step in range(at, at + 6):
        assert is_nearest_float32(np.float32(curve(step)), oracle(step))
