"""The table: what a curve is, precomputed, as int32 columns, and the only home of their format.

A level v in [0, 1] is v·2⁶², and the inverse of a length L is 2⁹³/L. JAX cuts arrays that come into a
jitted function to 32 bits unless x64 is on, so wider numbers are split into words.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from plateau_jax import exact

FIXED_BITS = 62
"""Fractional bits of a level at run time: the most that leave a product of limbs inside int64."""

LIMB_BITS = FIXED_BITS // 2
"""Bits of a limb: a product of two levels is made of products of these."""

INVERSE_BITS = FIXED_BITS + LIMB_BITS
"""Bits of 1/L. Times a step below 2³¹ it still has 62 that are right."""

_WORD_BITS = 32


class Segments(NamedTuple):
    """One curve as a table with a row a segment; a pytree of int32 arrays of shape (rows,).

    A curve with k plateaus has 2k + 3 rows wherever they lie: warmup, decay, (plateau, decay) k
    times, end. A row may be empty. Moving a plateau changes numbers and no shape. `stack` puts
    axes in front.
    """

    begin: Any
    """First step of the segment."""
    length: Any
    """Number of steps L from the start level to the end level; 0 where the segment is flat."""
    inverse_high: Any
    """2⁹³/L: bits 63 to 94 (0 where the segment is flat)."""
    inverse_middle: Any
    """2⁹³/L: bits 31 to 62."""
    inverse_low: Any
    """2⁹³/L: bits 0 to 30."""
    start_high: Any
    """Start level times 2⁶²: the high word."""
    start_low: Any
    """Start level times 2⁶²: the low word."""
    end_high: Any
    """End level times 2⁶²: the high word."""
    end_low: Any
    """End level times 2⁶²: the low word."""
    linear: Any
    """1 for a straight line, 0 for a half cosine."""
    start_float32: Any
    """Start level as the nearest float32: its bits."""


class Numbers(NamedTuple):
    """A table with its words joined: columns, values gathered from them, or one row of Python numbers."""

    begin: Any
    length: Any
    inverse_high: Any
    """2⁹³/L: bits 31 to 94, int64."""
    inverse_low: Any
    """2⁹³/L: bits 0 to 30."""
    start: Any
    """Start level times 2⁶², int64."""
    end: Any
    """End level times 2⁶², int64."""
    linear: Any
    level: Any
    """Start level, float32."""


class Row(NamedTuple):
    """One segment in exact numbers: from `start` at step `begin` to `end`, `length` steps later."""

    kind: str
    begin: int
    length: int
    start: int
    end: int
    shape: str

    @property
    def flat(self) -> bool:
        return self.shape == "flat"


def rows(
    *,
    total_steps: int,
    warmup_steps: int,
    plateaus: Iterable[tuple[int, int]],
    min_level: int,
    init_level: int,
    warmup: str,
    decay: str,
) -> Iterator[Row]:
    """The segments in exact numbers.

    `plateaus` are (first step, number of steps), sorted and valid; levels are those of
    `plateau_jax.exact`.
    """
    plateaus = tuple(plateaus)
    decaying = total_steps - warmup_steps - sum(length for _, length in plateaus)
    yield Row("warmup", 0, warmup_steps, init_level, exact.ONE, warmup)
    begin, level, paused = warmup_steps, exact.ONE, 0
    for first, length in plateaus:
        gone = first - warmup_steps - paused
        if decay == "cosine":
            progress = exact.half_cosine(gone, decaying)
        else:
            progress = exact.ONE * (decaying - gone) // decaying
        next_level = exact.blend(min_level, exact.ONE, progress)
        yield Row("decay", begin, first - begin, level, next_level, decay)
        yield Row("plateau", first, length, next_level, next_level, "flat")
        begin, level, paused = first + length, next_level, paused + length
    yield Row("decay", begin, total_steps - begin, level, min_level, decay)
    yield Row("end", total_steps, 0, min_level, min_level, "flat")


def table(segments: Iterable[Row]) -> Segments:
    """The rows as int32 columns."""
    words = np.array([_words(row) for row in segments], np.int32)
    return Segments(*_frozen(words.T.copy()))


def _words(row: Row) -> tuple[int, ...]:
    moving = row.length > 0 and not row.flat
    inverse = (1 << INVERSE_BITS) // row.length if moving else 0
    start, end = _inward(row.start, row.end)
    return (
        row.begin,
        row.length if moving else 0,
        *split(inverse >> LIMB_BITS),
        inverse & (1 << LIMB_BITS) - 1,
        *split(start),
        *split(end),
        int(row.shape == "linear"),
        int(exact.nearest_float32(row.start).view(np.int32)),
    )


def split(value: int) -> tuple[int, int]:
    """An int64 as two int32: the high word and the low one."""
    low = value & (1 << _WORD_BITS) - 1
    return value >> _WORD_BITS, low - (1 << _WORD_BITS if low >> _WORD_BITS - 1 else 0)


def join(high: Any, low: Any) -> Any:
    """Arrays of words as int64: `split` backwards."""
    return (high.astype("int64") << _WORD_BITS) | (low.astype("int64") & (1 << _WORD_BITS) - 1)


def joined(table: Segments) -> Numbers:
    """The columns of numbers that a table's words stand for; 64-bit integers must be on."""
    return Numbers(
        begin=table.begin,
        length=table.length,
        inverse_high=join(table.inverse_high, table.inverse_middle),
        inverse_low=table.inverse_low,
        start=join(table.start_high, table.start_low),
        end=join(table.end_high, table.end_low),
        linear=table.linear,
        level=table.start_float32.view("float32"),
    )


def _inward(start: int, end: int) -> tuple[int, int]:
    """Both levels in 62 bits, rounded towards each other.

    So no value between them passes the exact level at either end: without this, a curve could climb
    by one unit in the last place where one segment hands over to the next.
    """
    drop = exact.BITS - FIXED_BITS
    low, high = -(-min(start, end) >> drop), max(start, end) >> drop
    if low > high:  # Both levels lie between two neighbours; one of these has their float32.
        same = exact.nearest_float32(high << drop) == exact.nearest_float32(start)
        low = high = high if same else low
    return (high, low) if start >= end else (low, high)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def stack(curves: Iterable[Any]) -> Segments:
    """One table for several curves, for `vmap`: each column of shape (curves, rows).

    Curves with fewer plateaus than others get more rows of their end, which change nothing.

    Args:
        curves: `PlateauCurve`s, at least one.

    Raises:
        TypeError: A single curve; something that is not a `PlateauCurve`.
        ValueError: No curve was given.

    >>> from plateau_jax import PlateauCurve, stack
    >>> table = stack([PlateauCurve(100), PlateauCurve(100, plateaus=[(50, 30)])])
    >>> table.begin
    array([[  0,   0, 100, 100, 100],
           [  0,   0,  50,  80, 100]], dtype=int32)
    """
    if not isinstance(curves, Iterable):
        raise TypeError(f"curves = {curves!r} must be several PlateauCurves")
    curves = list(curves)
    for curve in curves:
        if not hasattr(curve, "segments"):
            raise TypeError(f"curves holds {curve!r}; it must hold PlateauCurves")
    tables = [curve.segments for curve in curves]
    if not tables:
        raise ValueError("curves is empty; stack needs at least one PlateauCurve")
    rows = max(len(table.begin) for table in tables)

    def padded(column: np.ndarray) -> np.ndarray:
        return np.pad(column, (0, rows - len(column)), mode="edge")

    columns = zip(*tables, strict=True)
    return Segments(*_frozen(np.array([[padded(column) for column in group] for group in columns])))
