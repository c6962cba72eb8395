"""Steps whose exact value lies next to a rounding border, the middle between two float32.

At a random step, the value lies within 2⁻³⁰ units in the last place of a border only about once in
2²⁹. So the stage is fitted to a border. The places x at which the stage's value is close enough to
the border, but not closer than promised, are an interval. The simplest fraction j/L in it, found by
continued fractions, is the length L of the stage and the step j.
"""

from collections.abc import Iterable
from fractions import Fraction
from random import Random
from typing import Any, get_args

import numpy as np
from hypothesis import reject, strategies as st
from support.curves.descriptions import CurveAndSteps, build
from support.curves.strategies import MAX_STEP, draw_magnitude, draw_ratio, draw_shape, randoms
from support.numerics.oracle import (
    CurvePart,
    Description,
    Oracle,
    can_join,
    exactly,
    half_ulp,
    lowest_level,
    mp,
)

from plateau_jax.curves.plateau_curve import WarmupShape
from plateau_jax.shapes.known_shapes import SHAPES, SHAPES_ALLOWING_ZERO

PROMISED = Fraction(1, 2**30)
"""The promised error of a value before it is rounded, in units in the last place: an exact value
closer to a border than this may be rounded to either side, one that is farther away may not."""

_BEFORE = 10**6
_MAX_LENGTH = MAX_STEP - 2 * _BEFORE
_TRIES = 4


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction with the smallest denominator in the open interval, 0 <= low < high."""
    # One step of the continued fraction at a time: (3/10, 1/3) holds no integer and its inverse is
    # (3, 10/3). That has the fraction 3 + (0, 1/3), and (0, 1/3) has 1/4. So the result is
    # 1/(3 + 1/4) = 4/13.
    integer = low.numerator // low.denominator
    if integer + 1 < high:
        return Fraction(integer + 1)
    low -= integer
    high -= integer
    if low == 0:
        return integer + Fraction(1, high.denominator // high.numerator + 1)
    return integer + 1 / simplest_between(1 / high, 1 / low)


def _place_of_value(part: CurvePart, value: Any) -> Fraction:
    """Return the x in [0, 1] at which a part reaches a value."""
    return Fraction(int(mp.ldexp(part.place_of(value), 280)), 2**280)


def _border(value: Any) -> Fraction:
    """Return the middle between two float32 that is nearest to a value."""
    near = np.float32(float(value))
    if near > value:
        neighbour = np.nextafter(near, np.float32(-1))
    else:
        neighbour = np.nextafter(near, np.float32(2))
    return (Fraction(float(near)) + Fraction(float(neighbour))) / 2


def _levels(random: Random) -> tuple[float, float]:
    """Draw any two levels, two that are far apart, or two very close ones around a border."""
    kind = random.randrange(4)
    first = draw_ratio(random)
    second = draw_ratio(random)
    if kind == 1:
        border = float(_border(max(first, 0.1)))
        first = min(border * (1 + 2.0 ** -random.choice((25, 30, 40))), 1.0)
        second = min(border * (1 - 2.0 ** -random.choice((25, 30, 40))), 1.0)
    elif kind > 1:
        first = max(first, 0.9)
        second = min(second, 0.1)
    if random.random() < 0.5:
        return first, second
    return second, first


def _curve_with_stage(random: Random, length: int, shape: str) -> tuple[Description, int]:
    """Draw a curve with a stage of `length` steps; return it with the index of the stage's part."""
    start, end = _levels(random)
    kind = random.randrange(8)
    before = draw_magnitude(random, 1, _BEFORE)
    decay_shape = shape
    if shape not in SHAPES_ALLOWING_ZERO:
        decay_shape = "1-sqrt"
        start = start or 1e-6
        end = end or 1e-6
    if not can_join(shape, start, end):
        lowest = 2 * lowest_level(shape)
        start = max(start, lowest)
        end = max(end, lowest)
    low = min(start, end)
    stage = {"stages": [(length, end, shape)], "start": start}
    after_a_jump = {"stages": [(before,), (0, start), (length, end, shape)], "start": end}
    match kind:
        case 1:
            return after_a_jump, -2
        case 2:
            decay = {
                "total_steps": before + length,
                "warmup_steps": before,
                "min_lr_ratio": low,
                "decay_shape": decay_shape,
            }
            return decay, -2
        case 3:
            warmup = {
                "total_steps": length + 1,
                "warmup_steps": length,
                "init_lr_ratio": low,
                "warmup_shape": "linear",
            }
            if shape in get_args(WarmupShape):
                warmup["warmup_shape"] = shape
            return warmup, 0
        case 4:
            parent = {"total_steps": 2 * before, "min_lr_ratio": low, "decay_shape": decay_shape}
            cooldown = {
                "cooldown": parent,
                "at": before,
                "steps": length,
                "to": low,
                "shape": shape,
            }
            return cooldown, -2
        case 5:
            scale = random.choice((0.5, 0.1, 1 / 3))
            if low < 1e-9:
                scale = 1.0
            return {"curve": {"total_steps": before}, "then": stage, "scale": scale}, -2
        case 6:
            cut_short = {
                "cooldown": stage,
                "at": length - 1,
                "steps": before,
                "to": 0.0,
                "shape": "1-sqrt",
            }
            return cut_short, -3
        case 7:
            return {"curve": after_a_jump, "then": {"total_steps": before}, "scale": 1.0}, -4
        case _:
            return stage, -2


def _fit_stage(random: Random, shape: str, least: Fraction) -> tuple[Description, int] | None:
    """Fit a stage to a border near a drawn value; None if levels and steps leave no room for it."""
    seed = random.getrandbits(64)  # the same levels for every length
    description, index = _curve_with_stage(Random(seed), 2, shape)
    part = Oracle(description).parts[index]
    low = min(part.start, part.end)
    high = max(part.start, part.end)
    share = Fraction(1 + random.randrange(2**53), 2**53 + 1) / 2 ** random.randrange(8)
    border = _border(part.start + (part.end - part.start) * exactly(share))
    ulp = 2 * half_ulp(exactly(border))
    side = random.choice((1, -1))
    for most in (Fraction(9, 8), Fraction(3, 2), Fraction(2), Fraction(4)):
        nearest = exactly(border) + side * exactly(least) * ulp
        farthest = exactly(border) + side * exactly(least * most) * ulp
        if min(nearest, farthest) <= low or max(nearest, farthest) >= high:
            return None
        first = _place_of_value(part, nearest)
        last = _place_of_value(part, farthest)
        if last < first:
            first, last = last, first
        if last * _MAX_LENGTH <= 1 or (1 - first) * _MAX_LENGTH <= 1:
            return None  # nearer to the start or the end than any step
        place = simplest_between(first, last)
        if place.denominator <= _MAX_LENGTH:
            times = draw_magnitude(random, 1, _MAX_LENGTH // place.denominator)
            length = times * place.denominator
            description, index = _curve_with_stage(Random(seed), length, shape)
            begin = Oracle(description).parts[index].begin
            return description, begin + times * place.numerator
    return None


def steps_near_midpoints(
    shapes: Iterable[str] = SHAPES, least: Fraction = PROMISED
) -> st.SearchStrategy[tuple[Description, int]]:
    """Draw curves, each with a step at `least` to 4 · `least` units from a rounding border."""

    def fit_curve(random: Random) -> tuple[Description, int]:
        shape = draw_shape(random, shapes)
        for _ in range(_TRIES):
            fitted = _fit_stage(random, shape, least)
            if fitted is not None:
                return fitted
        return reject()

    return randoms.map(fit_curve)


def curves_near_borders(size: int = 48) -> st.SearchStrategy[CurveAndSteps]:
    """Draw curves, each with `size` steps around one at a rounding border."""

    def build_curve(drawn: tuple[Description, int]) -> CurveAndSteps:
        description, step = drawn
        steps = step + np.arange(size) - size // 2
        return build(description), steps.clip(0, MAX_STEP).astype(np.int32)

    return steps_near_midpoints().map(build_curve)


def _next_to_a_border(digits: int, order: int, distance: int) -> int:
    """Return an integer next to the middle between two float32."""
    return min(max(((2 * digits + 1) << order) + distance, 2**54), 2**62)


values_of_a_table: st.SearchStrategy[int] = st.integers(2**54, 2**62) | st.builds(
    _next_to_a_border,
    digits=st.integers(2**23, 2**24 - 1),
    order=st.integers(30, 37),
    distance=st.integers(-2, 2),
)
"""Values before they are rounded, some next to a border."""
