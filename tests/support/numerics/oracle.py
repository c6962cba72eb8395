"""An oracle for curves: their formulas evaluated in exact rationals and numbers of 300 bits.

It shares no code with the product, and is slow. `shapes` has the formulas of the shapes. A curve is
plain data, which `support.curves.descriptions` draws and turns into curves:

- the arguments of a `PlateauCurve`: `{"total_steps": …, …}`;
- stages: `{"stages": [(steps, to, shape), …], "start": level}`; `to` and `shape` may be left out;
- a cooldown: `{"cooldown": description, "at": …, "steps": …, "to": …, "shape": …}`;
- one after another: `{"curve": description, "then": description, "scale": …}`;
- some of the steps: `{"part": description, "start": …, "stop": …}`;
- scaled by a batch plan:
  `{"scaled": description, "pairs": …, "unit": …, "reference": …, "exponent": …}`.
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
class CurvePart:
    """A part of a curve, from one level to another in `length` steps; a later one may cut it."""

    begin: int
    length: int
    start: Any
    end: Any
    shape: str
    skipped: int = 0
    """Steps of the part that are missing at its beginning."""

    def at(self, step: int) -> Any:
        if self.shape == "flat":
            return self.start
        x = exactly(Fraction(step - self.begin + self.skipped, self.length))
        formula, power = formula_and_power(self.shape)
        return formula.level(mp, self.start, self.end, x, exactly(power))

    def times(self, factor: Any) -> "CurvePart":
        return replace(self, start=self.start * factor, end=self.end * factor)

    @property
    def is_flat(self) -> bool:
        return are_equal(self.start, self.end)


def _flat_part(begin: int, level: Any, length: int = 0) -> CurvePart:
    return CurvePart(begin, length, level, level, "flat")


class Oracle:
    """The exact multiplier at each step of a described curve."""

    def __init__(self, description: Description) -> None:
        self.total_steps, self.parts = _parse_description(description)
        """The last part begins at `total_steps` and holds."""
        self.borders = [part.begin for part in self.parts]
        """First step of every part, empty ones included."""

    def __call__(self, step: int) -> Any:
        return self.part_at(step).at(max(step, 0))

    def part_at(self, step: int) -> CurvePart:
        return self.parts[bisect_right(self.borders, max(step, 0)) - 1]

    def spans(self) -> list[tuple[int, int, CurvePart]]:
        """Return (first step, first step after it, part) of each nonempty part before the end."""
        spans: list[tuple[int, int, CurvePart]] = []
        for part, following in pairwise(self.parts):
            if part.begin < following.begin:
                spans.append((part.begin, following.begin, part))
        return spans

    def flat_runs(self) -> list[tuple[int, int]]:
        """Return (first step, number of steps) of each maximal run of parts that hold one level."""
        runs: list[tuple[int, int, Any]] = []
        for begin, end, part in self.spans():
            if not part.is_flat:
                continue
            if runs and runs[-1][1] == begin and are_equal(runs[-1][2], part.start):
                begin = runs.pop()[0]
            runs.append((begin, end, part.start))
        return [(begin, end - begin) for begin, end, _ in runs]


def _parse_description(description: Description) -> tuple[int, list[CurvePart]]:
    """Return the total steps of a description, and its parts."""
    match description:
        case {"stages": stages, "start": start}:
            return _staged_parts(stages, start)
        case {"cooldown": parent, "at": at, "steps": steps, "to": to, "shape": shape}:
            return _cooldown_parts(Oracle(parent), at, steps, as_written(to), shape)
        case {"curve": first, "then": other, "scale": scale}:
            return _continued_parts(Oracle(first), Oracle(other), as_written(scale))
        case {"part": parent, "start": start, "stop": stop}:
            return stop - start, _cut_parts(Oracle(parent), start, stop)
        case {"scaled": parent, "pairs": pairs, "unit": unit, **rest}:
            return _scaled_parts(
                Oracle(parent), [(at // unit, batch) for at, batch in pairs], **rest
            )
        case {"total_steps": total_steps}:
            return total_steps, _plateau_parts(**description)
        case _:
            raise ValueError(f"the oracle does not know this kind of curve: {description}")


def complete_stage(written: tuple[Any, ...]) -> tuple[int, float | None, str]:
    """Return a stage with its level and shape; None is the level before it."""
    steps = written[0]
    to = None
    shape = "linear"
    if len(written) > 1:
        to = written[1]
    if len(written) > 2:
        shape = written[2]
    return steps, to, shape


def _staged_parts(stages: Any, start: float) -> tuple[int, list[CurvePart]]:
    begin = 0
    level = as_written(start)
    parts: list[CurvePart] = []
    for steps, to, shape in map(complete_stage, stages):
        if to is None:
            parts.append(_flat_part(begin, level, steps))
        else:
            goal = as_written(to)
            if steps:
                parts.append(CurvePart(begin, steps, level, goal, shape))
            level = goal
        begin += steps
    return begin, [*parts, _flat_part(begin, level)]


def _cooldown_parts(
    parent: Oracle, at: int, steps: int, to: Any, shape: str
) -> tuple[int, list[CurvePart]]:
    parts = [part for part in parent.parts if part.begin < at]
    parts.append(CurvePart(at, steps, parent(at), to, shape))
    parts.append(_flat_part(at + steps, to))
    return at + steps, parts


def _continued_parts(first: Oracle, other: Oracle, scale: Any) -> tuple[int, list[CurvePart]]:
    shift = first.total_steps
    parts = [part for part in first.parts if part.begin < shift]
    for part in other.parts:
        start = part.start * scale
        end = part.end * scale
        parts.append(replace(part, begin=part.begin + shift, start=start, end=end))
    return shift + other.total_steps, parts


def _cut_parts(parent: Oracle, start: int, stop: int) -> list[CurvePart]:
    parts: list[CurvePart] = []
    for begin, end, part in parent.spans():
        first = max(begin, start)
        if first < min(end, stop):
            parts.append(replace(part, begin=first - start, skipped=part.skipped + first - begin))
    return [*parts, _flat_part(stop - start, parent(stop))]


def _scaled_parts(
    parent: Oracle, batches: list[tuple[int, int]], reference: int, exponent: float
) -> tuple[int, list[CurvePart]]:
    total = parent.total_steps
    parts: list[CurvePart] = []
    factor = exactly(1)
    for (start, batch), (end, _) in pairwise([*batches, (total, 0)]):
        factor = scale_factor(batch, reference, exponent)
        stop = min(end, total)
        if start < stop:
            parts.extend(
                replace(part, begin=part.begin + start).times(factor)
                for part in _cut_parts(parent, start, stop)[:-1]
            )
    return total, [*parts, parent.parts[-1].times(factor)]


def scale_factor(batch: int, reference: int, exponent: float) -> Any:
    """Return (batch/reference)^exponent as the decimal that the nearest float64 prints as."""
    power = exactly(Fraction(batch, reference)) ** as_written(exponent)
    return as_written(float(Fraction(int(mp.ldexp(power, 280)), 2**280)))


def _plateau_parts(
    total_steps: int,
    warmup_steps: int = 0,
    plateaus: Any = (),
    absolute_plateaus: Any = (),
    min_lr_ratio: float = 0.0,
    init_lr_ratio: float = 0.0,
    warmup_shape: str = "linear",
    decay_shape: str = "cosine",
) -> list[CurvePart]:
    """Return the parts: warmup, decays and plateaus by turns, a decay, the end."""
    after_warmup = total_steps - warmup_steps
    least = as_written(min_lr_ratio)
    one = exactly(1)
    holds = list(absolute_plateaus)
    for start, duration in plateaus:
        start_step = warmup_steps + percent_of(after_warmup, start)
        holds.append((start_step, percent_of(after_warmup, duration)))
    decaying = after_warmup - sum(length for _, length in holds)

    parts = [CurvePart(0, warmup_steps, as_written(init_lr_ratio), one, warmup_shape)]
    begin = warmup_steps
    level = one
    held = 0
    for start, length in sorted(holds):
        # The level of the global decay, not counting the steps of earlier plateaus.
        next_level = CurvePart(warmup_steps + held, decaying, one, least, decay_shape).at(start)
        parts.append(CurvePart(begin, start - begin, level, next_level, decay_shape))
        parts.append(_flat_part(start, next_level, length))
        begin = start + length
        level = next_level
        held += length
    parts.append(CurvePart(begin, total_steps - begin, level, least, decay_shape))
    return [*parts, _flat_part(total_steps, least)]


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


def is_nearest_float32(rounded: np.float32, value: Any) -> bool:
    """Return True if no other float32 is nearer to the exact value."""
    error = abs(exactly(float(rounded)) - value)
    below = np.nextafter(rounded, np.float32(-1))
    above = np.nextafter(rounded, np.float32(2))
    error_below = abs(exactly(float(below)) - value)
    error_above = abs(exactly(float(above)) - value)
    return error <= min(error_below, error_above)
