"""The curve straight from its formulas, in exact rationals and high-precision cosines.

It shares no code with the product, and is slow.
"""

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any

import mpmath  # pyright: ignore[reportMissingTypeStubs]  (it has none)
import numpy as np

_mp: Any = mpmath.MPContext()
_mp.prec = 300


def exactly(number: Any) -> Any:
    """A rational, an int or a float as a number of 300 bits."""
    if isinstance(number, Fraction):
        return _mp.mpf(number.numerator) / number.denominator
    return _mp.mpf(number)


def _gone(shape: str, x: Fraction) -> Any:
    """The share of the way that a shape has gone at x in [0, 1]."""
    return exactly(x) if shape == "linear" else (1 - _mp.cospi(exactly(x))) / 2


@dataclass(frozen=True)
class _Segment:
    begin: int
    length: int
    start: Any
    end: Any
    shape: str

    def at(self, step: int) -> Any:
        if self.shape == "flat":
            return self.start
        return self.start + (self.end - self.start) * _gone(
            self.shape, Fraction(step - self.begin, self.length)
        )


class Oracle:
    """The exact multiplier at each step, given the eight arguments of the curve."""

    def __init__(
        self,
        total_steps: int,
        warmup_steps: int = 0,
        plateaus: Any = (),
        absolute_plateaus: Any = (),
        min_lr_ratio: float = 0.0,
        init_lr_ratio: float = 0.0,
        warmup: str = "linear",
        decay: str = "cosine",
    ) -> None:
        after_warmup = total_steps - warmup_steps
        least = exactly(Fraction(repr(min_lr_ratio)))
        holds = [
            (warmup_steps + share_of(after_warmup, start), share_of(after_warmup, duration))
            for start, duration in plateaus
        ]
        holds = sorted([*holds, *absolute_plateaus])
        decaying = after_warmup - sum(length for _, length in holds)

        one = exactly(1)
        segments = [_Segment(0, warmup_steps, exactly(Fraction(repr(init_lr_ratio))), one, warmup)]
        begin, level, held = warmup_steps, one, 0
        for start, length in holds:
            progress = Fraction(start - warmup_steps - held, decaying)
            next_level = least + (1 - least) * (1 - _gone(decay, progress))
            segments.append(_Segment(begin, start - begin, level, next_level, decay))
            segments.append(_Segment(start, length, next_level, next_level, "flat"))
            begin, level, held = start + length, next_level, held + length
        segments.append(_Segment(begin, total_steps - begin, level, least, decay))
        segments.append(_Segment(total_steps, 0, least, least, "flat"))

        self.borders = [segment.begin for segment in segments]
        """First step of every segment, empty ones included."""
        self.flat = [
            (segment.begin, segment.length)
            for segment in segments
            if segment.shape == "flat" and segment.length
        ]
        """(first step, number of steps) of every plateau that lasts."""
        self.segments = segments

    def __call__(self, step: int) -> Any:
        step = max(step, 0)
        return self.segments[bisect_right(self.borders, step) - 1].at(step)


def share_of(whole: int, percentage: float) -> int:
    """A percentage of some steps, the percentage read as the decimal that it prints as."""
    return floor(whole * Fraction(repr(percentage)) / 100)


def half_ulp(value: Any) -> Any:
    """Half a unit in the last place of float32, at the exact value."""
    exponent = _mp.frexp(value)[1] if value else -125
    return _mp.ldexp(1, max(exponent, -125) - 25)


def is_nearest_float32(found: np.float32, value: Any) -> bool:
    """Whether no float32 lies nearer to the exact value."""
    neighbours = (np.nextafter(found, np.float32(way)) for way in (-1, 2))
    error = abs(exactly(float(found)) - value)
    return all(error <= abs(exactly(float(neighbour)) - value) for neighbour in neighbours)
