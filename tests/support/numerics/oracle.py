"""An oracle for curves: their formulas evaluated in exact rationals and numbers of 300 bits.

It shares no code with the product, and is slow. `shapes` has the formulas of the shapes. A curve is
described as in a configuration file, by a mapping that `Curve.from_dict` reads too; its numbers of
steps are integers.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import Any

import mpmath  # pyright: ignore[reportMissingTypeStubs]  (it has none)
import numpy as np
from support.numerics.shapes import formula_and_power

Description = Mapping[str, Any]

SMALLEST_NORMAL = 2.0**-126

mp: Any = mpmath.MPContext()
mp.prec = 300

# Equal levels computed in two ways differ by less than this, different levels by more.
_SAME = mp.ldexp(1, -250)


def exactly(number: Any) -> Any:
    """Convert a rational, an int or a float to a number of 300 bits."""
    if isinstance(number, Fraction):
        return mp.mpf(number.numerator) / number.denominator
    return mp.mpf(number)


def as_written(number: float) -> Any:
    """Return a float as the decimal that it prints as."""
    return exactly(Fraction(repr(number)))


def are_equal(one: Any, other: Any) -> bool:
    """Return True if two exact levels are equal."""
    return abs(one - other) <= _SAME


def can_join(shape: str, start: Any, end: Any) -> bool:
    """Return True if a shape is defined between two levels."""
    formula, _ = formula_and_power(shape)
    return formula.allows_zero or (start > 0 and end > 0)


def lowest_level(shape: str) -> float:
    """Return 0, or a low level for a shape that must stay above 0."""
    formula, _ = formula_and_power(shape)
    return 0.0 if formula.allows_zero else 2.0**-62


@dataclass(frozen=True)
class OracleSegment:
    """A segment, from one level to another in `length` steps; a later one may cut it."""

    begin: int
    length: int
    start: Any
    end: Any
    shape: str
    skipped: int = 0
    """Steps of the segment that are missing at its beginning."""

    def at(self, step: int) -> Any:
        if self.shape == "flat":
            return self.start
        x = exactly(Fraction(step - self.begin + self.skipped, self.length))
        formula, power = formula_and_power(self.shape)
        return formula.level(mp, self.start, self.end, x, exactly(power))

    def shifted(self, steps: int, factor: Any) -> "OracleSegment":
        """Shift the segment by `steps` and multiply its levels by `factor`."""
        start = self.start * factor
        end = self.end * factor
        return replace(self, begin=self.begin + steps, start=start, end=end)

    @property
    def is_flat(self) -> bool:
        return are_equal(self.start, self.end)


def _flat_segment(begin: int, level: Any, length: int = 0) -> OracleSegment:
    return OracleSegment(begin, length, level, level, "flat")


class Oracle:
    """The exact multiplier at each step of a described curve."""

    def __init__(self, description: Description) -> None:
        self.segments = _segments_of(description)
        """The last segment begins at `total_steps` and holds."""
        self.borders = [segment.begin for segment in self.segments]
        """First step of every segment, empty ones included."""
        self.total_steps = self.borders[-1]

    def __call__(self, step: int) -> Any:
        return self.segment_at(step).at(max(step, 0))

    def segment_at(self, step: int) -> OracleSegment:
        return self.segments[bisect_right(self.borders, max(step, 0)) - 1]

    def with_stops(self) -> list[tuple[OracleSegment, int]]:
        """Return (segment, first step after it) of each nonempty segment before the end."""
        neighbors = pairwise(self.segments)
        return [(one, other.begin) for one, other in neighbors if one.begin < other.begin]

    def flat_runs(self) -> list[tuple[int, int]]:
        """Return (first step, number of steps) of each maximal flat run with one multiplier."""
        runs: list[tuple[int, int, np.float32]] = []
        for segment, stop in self.with_stops():
            if not segment.is_flat:
                continue
            begin = segment.begin
            multiplier = nearest_float32(segment.start)
            if runs and runs[-1][1:] == (begin, multiplier):
                begin = runs.pop()[0]
            runs.append((begin, stop, multiplier))
        return [(begin, stop - begin) for begin, stop, _ in runs]


def _segments_of(description: Description) -> list[OracleSegment]:
    match description:
        case {"kind": "plateau", **arguments}:
            return _plateau_segments(**arguments)
        case {"kind": "staged", **arguments}:
            return _staged_segments(**arguments)
        case {"kind": "cooldown", "curve": curve, **arguments}:
            return _cooldown_segments(Oracle(curve), **arguments)
        case {"kind": "then", "curve": curve, "other": other, **arguments}:
            return _continued_segments(Oracle(curve), Oracle(other), **arguments)
        case {"kind": "part", "curve": curve, **arguments}:
            return _cut_segments(Oracle(curve), **arguments)
        case {"kind": "scaled", "curve": curve, **arguments}:
            return _scaled_segments(Oracle(curve), **arguments)
        case _:
            raise ValueError(f"the oracle does not know this kind of curve: {description}")


def complete_stage(written: Any) -> tuple[int, float | None, str]:
    """Return a stage with its level and shape; None is the level before it."""
    steps = written[0]
    to = None
    shape = "linear"
    if len(written) > 1:
        to = written[1]
    if len(written) > 2:
        shape = written[2]
    return steps, to, shape


def _staged_segments(stages: Any, start: float = 0.0) -> list[OracleSegment]:
    begin = 0
    level = as_written(start)
    segments: list[OracleSegment] = []
    for steps, to, shape in map(complete_stage, stages):
        if to is None:
            segments.append(_flat_segment(begin, level, steps))
        else:
            goal = as_written(to)
            if steps:
                segments.append(OracleSegment(begin, steps, level, goal, shape))
            level = goal
        begin += steps
    return [*segments, _flat_segment(begin, level)]


def _cooldown_segments(
    curve: Oracle, at: int, steps: int, to: float = 0.0, shape: str = "1-sqrt"
) -> list[OracleSegment]:
    goal = as_written(to)
    segments = [segment for segment in curve.segments if segment.begin < at]
    segments.append(OracleSegment(at, steps, curve(at), goal, shape))
    return [*segments, _flat_segment(at + steps, goal)]


def _continued_segments(curve: Oracle, other: Oracle, scale: float = 1.0) -> list[OracleSegment]:
    total = curve.total_steps
    factor = as_written(scale)
    segments = [segment for segment in curve.segments if segment.begin < total]
    return [*segments, *(segment.shifted(total, factor) for segment in other.segments)]


def _cut_segments(curve: Oracle, start: int = 0, stop: int | None = None) -> list[OracleSegment]:
    if stop is None:
        stop = curve.total_steps
    segments: list[OracleSegment] = []
    for segment, after in curve.with_stops():
        first = max(segment.begin, start)
        if first < min(after, stop):
            skipped = segment.skipped + first - segment.begin
            segments.append(replace(segment, begin=first - start, skipped=skipped))
    return [*segments, _flat_segment(stop - start, curve(stop))]


def _scaled_segments(
    curve: Oracle, pairs: Any, unit: int, reference: int, exponent: float = 0.5
) -> list[OracleSegment]:
    total = curve.total_steps
    segments: list[OracleSegment] = []
    factor = exactly(1)
    for (threshold, batch), (end, _) in pairwise([*pairs, (total * unit, 0)]):
        factor = _scale_factor(batch, reference, exponent)
        start = threshold // unit
        stop = min(end // unit, total)
        if start < stop:
            cut = _cut_segments(curve, start, stop)[:-1]
            segments += [segment.shifted(start, factor) for segment in cut]
    return [*segments, curve.segments[-1].shifted(0, factor)]


def _scale_factor(batch: int, reference: int, exponent: float) -> Any:
    """Return (batch/reference)^exponent as the decimal that the nearest float64 prints as."""
    power = exactly(Fraction(batch, reference)) ** as_written(exponent)
    return as_written(float(Fraction(int(mp.ldexp(power, 280)), 2**280)))


def _plateau_segments(
    total_steps: int,
    warmup_steps: int = 0,
    plateaus: Any = (),
    absolute_plateaus: Any = (),
    min_lr_ratio: float = 0.0,
    init_lr_ratio: float = 0.0,
    warmup_shape: str = "linear",
    decay_shape: str = "cosine",
) -> list[OracleSegment]:
    """Return the segments: warmup, decays and plateaus by turns, a decay, the end."""
    after_warmup = total_steps - warmup_steps
    least = as_written(min_lr_ratio)
    one = exactly(1)
    holds = list(absolute_plateaus)
    for start, duration in plateaus:
        start_step = warmup_steps + percent_of(after_warmup, start)
        holds.append((start_step, percent_of(after_warmup, duration)))
    decaying = after_warmup - sum(length for _, length in holds)

    segments = [OracleSegment(0, warmup_steps, as_written(init_lr_ratio), one, warmup_shape)]
    begin = warmup_steps
    level = one
    held = 0
    for start, length in sorted(holds):
        # The level of the global decay, not counting the steps of earlier plateaus.
        decay = OracleSegment(warmup_steps + held, decaying, one, least, decay_shape)
        next_level = decay.at(start)
        segments.append(OracleSegment(begin, start - begin, level, next_level, decay_shape))
        segments.append(_flat_segment(start, next_level, length))
        begin = start + length
        level = next_level
        held += length
    segments.append(OracleSegment(begin, total_steps - begin, level, least, decay_shape))
    return [*segments, _flat_segment(total_steps, least)]


def percent_of(total: int, percentage: float) -> int:
    """Return a percentage of steps, rounded down; a float is the decimal that it prints as."""
    return floor(total * Fraction(repr(percentage)) / 100)


def half_ulp(value: Any) -> Any:
    """Return half a unit in the last place of float32, at the exact value."""
    exponent = -125
    if value:
        exponent = mp.frexp(value)[1]
    return mp.ldexp(1, max(exponent, -125) - 25)


def is_promised(multiplier: float, level: Any) -> bool:
    """Return True if a multiplier is within 0.500000001 units, or 0 for a level below 2⁻¹²⁶."""
    if level < SMALLEST_NORMAL:
        # It may be rounded up to 2⁻¹²⁶.
        is_near = level > SMALLEST_NORMAL * (1 - 2.0**-24)
        return multiplier == 0 or (is_near and multiplier == SMALLEST_NORMAL)
    return abs(multiplier - level) <= half_ulp(level) * (1 + mp.ldexp(1, -29))


def nearest_float32(value: Any) -> np.float32:
    """Return the float32 nearest to the exact value, the larger one of a tie; 0 below 2⁻¹²⁶."""
    near = np.float32(float(value))
    neighbors = [np.nextafter(near, np.float32(2)), near, np.nextafter(near, np.float32(-1))]
    nearest = min(neighbors, key=lambda number: abs(exactly(float(number)) - value))
    return nearest if nearest >= SMALLEST_NORMAL else np.float32(0)


def is_nearest_float32(rounded: np.float32, value: Any) -> bool:
    """Return True if no other float32 is nearer to the exact value."""
    error = abs(exactly(float(rounded)) - value)
    below = np.nextafter(rounded, np.float32(-1))
    above = np.nextafter(rounded, np.float32(2))
    error_below = abs(exactly(float(below)) - value)
    error_above = abs(exactly(float(above)) - value)
    return error <= min(error_below, error_above)
