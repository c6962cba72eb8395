"""Steps whose exact value lies next to a rounding border, the middle between two float32.

Of the values at random steps only about one in 2³⁰ lies so close to a border that an error of 2⁻⁵⁸ shows. So
the stage is made to fit its border. The places x in the stage where its value is close enough to the border,
but not closer than promised, are an interval; the simplest fraction j/L in it, found by continued fractions,
gives the length L of the stage and the step j.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from support.curves.descriptions import SHAPES
from support.curves.strategies import MAX_STEP, Words, shape_of, words
from support.numerics.oracle import Description, Oracle, Part, exactly, mp, power_of, share

PROMISED = Fraction(1, 2**58)
"""How far a value may lie from the exact one before it is rounded: an exact value that is closer to a border
may be rounded to either side of it, one that is farther may not."""

_BEFORE = 10**6
_LONGEST = MAX_STEP - 2 * _BEFORE
_TRIES = 4
_WORDS_OF_CURVE = 9
_WORDS_A_TRY = _WORDS_OF_CURVE + 4


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of the smallest denominator in the open interval, 0 <= low < high."""
    whole = low.numerator // low.denominator
    if whole + 1 < high:
        return Fraction(whole + 1)
    low, high = low - whole, high - whole
    if low == 0:
        return whole + Fraction(1, high.denominator // high.numerator + 1)
    return whole + 1 / simplest_between(1 / high, 1 / low)


def _place(part: Part, value: Any) -> Fraction:
    """The x in [0, 1] at which a part comes to this value."""
    gone = (value - part.start) / (part.end - part.start)
    formula, power = power_of(part.shape)
    if formula == "1-x^":
        x = gone ** (1 / power)
    elif formula == "(1-x)^":
        x = 1 - (1 - gone) ** (1 / power)
    elif formula == "t^-":
        first, last, now = (level ** (-1 / power) for level in (part.start, part.end, value))
        x = (now - first) / (last - first)
    elif part.shape == "exponential":
        x = mp.log(value / part.start) / mp.log(part.end / part.start)
    else:
        x, high = mp.mpf(0), mp.mpf(1)
        for _ in range(285):
            middle = (x + high) / 2
            x, high = (middle, high) if share(part.shape, middle) < gone else (x, middle)
    return Fraction(int(mp.ldexp(x, 280)), 2**280)


def _border(value: Any) -> Fraction:
    """The middle between two float32 that is nearest to a value."""
    near = np.float32(float(value))
    other = np.nextafter(near, np.float32(-1 if near > value else 2))
    return (Fraction(float(near)) + Fraction(float(other))) / 2


def _levels(read: Words) -> tuple[float, float]:
    """Any two levels, two far from each other, or two very close ones with a border between them."""
    kind, one, other = read.below(4), read.ratio(), read.ratio()
    if kind == 1:
        border = float(_border(max(one, 0.1)))
        one, other = (min(border * (1 + way * 2.0 ** -read.one_of((25, 30, 40))), 1.0) for way in (1, -1))
    elif kind > 1:
        one, other = max(one, 0.9), min(other, 0.1)
    return (one, other) if read.below(2) else (other, one)


def _curve(read: Words, length: int, shape: str) -> tuple[Description, int]:
    """A curve with a stage of so many steps, and which of its parts that is."""
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


def _try(drawn: list[int], shape: str, least: Fraction) -> tuple[Description, int] | None:
    read = Words(drawn[_WORDS_OF_CURVE:])
    description, index = _curve(Words(drawn[:_WORDS_OF_CURVE]), 2, shape)
    part = Oracle(description).parts[index]
    share = Fraction(1 + read.below(2**53), 2**53 + 1) / 2 ** read.below(8)
    border = _border(part.start + (part.end - part.start) * exactly(share))
    side = read.one_of((1, -1))
    for most in (Fraction(9, 8), Fraction(3, 2), Fraction(2), Fraction(4)):
        ends = [exactly(border + side * gap) for gap in (least, least * most)]
        low, high = sorted((part.start, part.end))
        if not max(low, 2.0**-28) < min(ends) < max(ends) < high:
            return None
        near, far = sorted(_place(part, end) for end in ends)
        if far * _LONGEST <= 1 or (1 - near) * _LONGEST <= 1:
            return None  # Nearer to the start or the end than any step.
        place = simplest_between(near, far)
        if place.denominator <= _LONGEST:
            times = read.magnitude(1, _LONGEST // place.denominator)
            length = times * place.denominator
            description, index = _curve(Words(drawn[:_WORDS_OF_CURVE]), length, shape)
            begin = Oracle(description).parts[index].begin
            return description, begin + times * place.numerator
    return None


def steps_at_borders(
    shapes: Sequence[str] = SHAPES, least: Fraction = PROMISED
) -> st.SearchStrategy[tuple[Description, int]]:
    """Curves, each with a step whose exact value is `least` to 4 · `least` from a rounding border."""

    def read(drawn: list[int]) -> tuple[Description, int]:
        shape = shape_of(Words(drawn[-2:]), shapes)
        tries = (drawn[first : first + _WORDS_A_TRY] for first in range(0, len(drawn) - 2, _WORDS_A_TRY))
        found = next(filter(None, (_try(several, shape, least) for several in tries)), None)
        assume(found)
        assert found
        return found

    return words(_TRIES * _WORDS_A_TRY + 2).map(read)
