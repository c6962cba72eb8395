"""Steps whose exact value lies next to a rounding border, the middle between two float32.

At a random step, the value lies so close to a border that an error of 2⁻⁵⁸ shows only about once in 2³⁰. So
the stage is fitted to a border. The places x at which the stage's value is close enough to the border, but
not closer than promised, are an interval. The simplest fraction j/L in it, found by continued fractions, is
the length L of the stage and the step j.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import assume, strategies as st
from support.curves.descriptions import SHAPES
from support.curves.strategies import MAX_STEP, Words, shape_of, words
from support.numerics.oracle import Description, Oracle, Part, exactly, mp, power_of, share

PROMISED = Fraction(1, 2**58)
"""The promised error of a value before it is rounded: an exact value closer to a border than this may be
rounded to either side, one that is farther away may not."""

_BEFORE = 10**6
_MAX_LENGTH = MAX_STEP - 2 * _BEFORE
_TRIES = 4
_WORDS_OF_CURVE = 9
_WORDS_PER_TRY = _WORDS_OF_CURVE + 4


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction with the smallest denominator in the open interval, 0 <= low < high."""
    # One step of the continued fraction at a time: (3/10, 1/3) holds no integer and its inverse is (3, 10/3).
    # That has the fraction 3 + (0, 1/3), and (0, 1/3) has 1/4. So the result is 1/(3 + 1/4) = 4/13.
    integer = low.numerator // low.denominator
    if integer + 1 < high:
        return Fraction(integer + 1)
    low, high = low - integer, high - integer
    if low == 0:
        return integer + Fraction(1, high.denominator // high.numerator + 1)
    return integer + 1 / simplest_between(1 / high, 1 / low)


def _place_of_value(part: Part, value: Any) -> Fraction:
    """Return the x in [0, 1] at which a part reaches a value."""
    share_reached = (value - part.start) / (part.end - part.start)
    formula, power = power_of(part.shape)
    if formula == "1-x^":
        x = share_reached ** (1 / power)
    elif formula == "(1-x)^":
        x = 1 - (1 - share_reached) ** (1 / power)
    elif formula == "t^-":
        first, last, now = (level ** (-1 / power) for level in (part.start, part.end, value))
        x = (now - first) / (last - first)
    elif part.shape == "exponential":
        x = mp.log(value / part.start) / mp.log(part.end / part.start)
    else:
        x, high = mp.mpf(0), mp.mpf(1)
        for _ in range(285):
            middle = (x + high) / 2
            x, high = (middle, high) if share(part.shape, middle) < share_reached else (x, middle)
    return Fraction(int(mp.ldexp(x, 280)), 2**280)


def _border(value: Any) -> Fraction:
    """Return the middle between two float32 that is nearest to a value."""
    near = np.float32(float(value))
    other = np.nextafter(near, np.float32(-1 if near > value else 2))
    return (Fraction(float(near)) + Fraction(float(other))) / 2


def _levels(read: Words) -> tuple[float, float]:
    """Draw any two levels, two that are far apart, or two very close ones with a border between them."""
    kind, one, other = read.below(4), read.ratio(), read.ratio()
    if kind == 1:
        border = float(_border(max(one, 0.1)))
        one, other = (min(border * (1 + way * 2.0 ** -read.one_of((25, 30, 40))), 1.0) for way in (1, -1))
    elif kind > 1:
        one, other = max(one, 0.9), min(other, 0.1)
    return (one, other) if read.below(2) else (other, one)


def _curve_with_stage(read: Words, length: int, shape: str) -> tuple[Description, int]:
    """Draw a curve with a stage of `length` steps; return it with the index of the stage's part."""
    start, end = _levels(read)
    kind, before = read.below(8), read.magnitude(1, _BEFORE)
    formula, power = power_of(shape)
    plain = shape if shape != "exponential" and formula != "t^-" else "1-sqrt"
    if shape == "exponential":
        start, end = start or 1e-6, end or 1e-6
    elif formula == "t^-":
        start, end = (max(level, 2.0 ** -int(61 * power)) for level in (start, end))
    low = min(start, end)
    stage = {"stages": [(length, end, shape)], "start": start}
    late = {"stages": [(before,), (0, start), (length, end, shape)], "start": end}
    match kind:
        case 1:
            return late, -2
        case 2:
            decaying = {"total_steps": before + length, "warmup_steps": before, "min_lr_ratio": low}
            return decaying | {"decay_shape": plain}, -2
        case 3:
            rising = {"total_steps": length + 1, "warmup_steps": length, "init_lr_ratio": low}
            return rising | {"warmup_shape": "cosine" if plain == "cosine" else "linear"}, 0
        case 4:
            parent = {"total_steps": 2 * before, "min_lr_ratio": low, "decay_shape": plain}
            return {"cooldown": parent, "at": before, "steps": length, "to": low, "shape": shape}, -2
        case 5:
            scale = 1.0 if low < 1e-9 else read.one_of((0.5, 0.1, 1 / 3))
            return {"curve": {"total_steps": before}, "then": stage, "scale": scale}, -2
        case 6:
            cut = {"cooldown": stage, "at": length - 1, "steps": before, "to": 0.0, "shape": "1-sqrt"}
            return cut, -3
        case 7:
            return {"curve": late, "then": {"total_steps": before}, "scale": 1.0}, -4
        case _:
            return stage, -2


def _fit_stage(drawn: list[int], shape: str, least: Fraction) -> tuple[Description, int] | None:
    """Fit a stage to a border near a drawn value; None if the levels and steps leave no room for it."""
    read = Words(drawn[_WORDS_OF_CURVE:])
    description, index = _curve_with_stage(Words(drawn[:_WORDS_OF_CURVE]), 2, shape)
    part = Oracle(description).parts[index]
    share = Fraction(1 + read.below(2**53), 2**53 + 1) / 2 ** read.below(8)
    border = _border(part.start + (part.end - part.start) * exactly(share))
    side = read.one_of((1, -1))
    for most in (Fraction(9, 8), Fraction(3, 2), Fraction(2), Fraction(4)):
        ends = [exactly(border + side * gap) for gap in (least, least * most)]
        low, high = sorted((part.start, part.end))
        if not max(low, 2.0**-28) < min(ends) < max(ends) < high:
            return None
        near, far = sorted(_place_of_value(part, end) for end in ends)
        if far * _MAX_LENGTH <= 1 or (1 - near) * _MAX_LENGTH <= 1:
            return None  # nearer to the start or the end than any step
        place = simplest_between(near, far)
        if place.denominator <= _MAX_LENGTH:
            times = read.magnitude(1, _MAX_LENGTH // place.denominator)
            length = times * place.denominator
            description, index = _curve_with_stage(Words(drawn[:_WORDS_OF_CURVE]), length, shape)
            begin = Oracle(description).parts[index].begin
            return description, begin + times * place.numerator
    return None


def steps_at_borders(
    shapes: Sequence[str] = SHAPES, least: Fraction = PROMISED
) -> st.SearchStrategy[tuple[Description, int]]:
    """Draw curves, each with a step whose exact value is `least` to 4 · `least` from a rounding border."""

    def fit_curve(drawn: list[int]) -> tuple[Description, int]:
        shape = shape_of(Words(drawn[-2:]), shapes)
        tries = (drawn[first : first + _WORDS_PER_TRY] for first in range(0, len(drawn) - 2, _WORDS_PER_TRY))
        fitted = next(filter(None, (_fit_stage(attempt, shape, least) for attempt in tries)), None)
        assume(fitted)
        assert fitted
        return fitted

    return words(_TRIES * _WORDS_PER_TRY + 2).map(fit_curve)
