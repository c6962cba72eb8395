"""The table: a curve precomputed as int32 columns. Its format is defined here and nowhere else.

A level v in [0, 1] is v·2⁶², and the inverse of a length L is 2⁹³/L. Without x64 JAX truncates the
arrays that a jitted function receives to 32 bits, so wider numbers are cut in one of two ways:

    words   32 bits each. Two of them are joined into an int64 before they are used.
    limbs   31 bits each, never negative. They are multiplied one by one, since a product fits into
            int64.

An inverse, which has up to 94 bits, is two words and a limb.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import (
    FIXED_BITS,
    INVERSE_BITS,
    LIMB,
    LIMB_BITS,
    Operations,
)
from plateau_jax.shapes.known_shapes import SHAPE_NUMBERS, SHAPES, parse_shape
from plateau_jax.table.exact_segments import ExactSegment


class Table(NamedTuple):
    """One curve as a table with one row per segment; a pytree of int32 arrays of shape (rows,).

    A level v in [0, 1] and the inverse of a length L are integers, rounded, and split over several
    columns:

        level      v · 2⁶²
        inverse    2⁹³ / L

    The number of rows does not depend on where the segments lie: a `PlateauCurve` with k plateaus
    has 2k + 3 (warmup, decay, (plateau, decay) k times, end), a `StagedCurve` one for each stage
    and one for the end. A row may be empty. So moving a plateau changes numbers, but not the shape
    of an array, except in a curve from `BatchPlan.scale`, where each threshold inside a segment
    cuts a row in two. `stack` adds a leading axis.

    Compiled code computes every shape in `parameters` at every step, but no other curved shape.

    >>> from plateau_jax import PlateauCurve
    >>> table = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)]).table
    >>> table.begin, table.length
    (array([  0,  10,  55,  73, 100], dtype=int32), array([10, 45,  0, 27,  0], dtype=int32))
    """

    begin: Any
    """First step of the segment."""
    phase_begin: Any
    """Step of the start level: earlier than `begin` if the first steps of the segment were cut
    off."""
    length: Any
    """Number of steps L from the start level to the end level; 0 if the segment is flat."""
    inverse_high: Any
    """2⁹³/L: bits 63 to 94 (0 if the segment is flat)."""
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
    start_float32: Any
    """Start level as the nearest float32: its bits."""
    shape_number: Any
    """The number of the shape in `SHAPE_NUMBERS`; 0 for a straight line and for a flat segment."""
    parameters: dict[str, tuple[Any, ...]]
    """By name, each curved shape in the table, with the limbs of its parameters; 0 in other
    rows."""
    shift: Any = None
    """n: the two levels are stored divided by 2ⁿ. None if n is 0 in every row. Only a curve from
    `BatchPlan.scale` has an n above 0, in a segment with a start or end level above 1, which no
    step reaches."""

    def map(self, change: Callable[[Any], Any]) -> "Table":
        """Apply a function to each column."""
        return Table(*(map_column(change, column) for column in self))

    def columns(self) -> dict[str, Any]:
        """Return the columns by name; those of parameters are named like `t^-P[0]`."""
        columns = self._asdict()
        parameters = columns.pop("parameters")
        if self.shift is None:
            del columns["shift"]
        for name, limbs in parameters.items():
            for place, limb in enumerate(limbs):
                columns[f"{name}[{place}]"] = limb
        return columns


def map_column(change: Callable[[Any], Any], column: Any) -> Any:
    """Apply a function to a column of a table, or to each limb of the parameters of its shapes."""
    if column is None:
        return None
    if isinstance(column, dict):
        parameters = cast("dict[str, tuple[Any, ...]]", column)
        return {name: tuple(map(change, limbs)) for name, limbs in parameters.items()}
    return change(column)


def encode_table(segments: Sequence[ExactSegment]) -> Table:
    """Encode segments as int32 columns, one row per segment."""
    # A flat segment keeps the columns of the shape that it was described with. So changing a level
    # never adds or removes a column, and a jitted function that takes the table is not recompiled.
    described = {segment.shape for segment in segments if segment.shape is not None}
    shapes = {parse_shape(shape).name for shape in described}
    return _join([_encode_row(segment) for segment in segments], shapes - {"linear"})


def _encode_row(segment: ExactSegment) -> Table:
    """Encode a segment as a row: a table of single ints."""
    start = exact.from_decimal(segment.start)
    end = exact.from_decimal(segment.end)
    # Both levels in 62 bits, rounded towards each other: -(-v >> n) rounds up, v >> n down. With 4
    # bits, a segment from 0.8 = 12.8/16 to 0.3 = 4.8/16 goes from 12 to 5. So no value between them
    # passes the exact level at either end; otherwise a curve could rise by one unit in the last
    # place at the border of two falling segments. If no number of 62 bits lies between the levels,
    # the row is flat.
    shift = max(0, (max(start, end) - 1).bit_length() - exact.BITS)
    dropped = exact.BITS - FIXED_BITS + shift
    low = -(-min(start, end) >> dropped)
    high = max(start, end) >> dropped
    if start >= end:
        first = high
        last = low
    else:
        first = low
        last = high
    phase_begin = segment.begin
    length = 0
    inverse = 0
    shape_number = 0
    parameters: dict[str, tuple[int, ...]] = {}
    if segment.length > 0 and segment.shape and not segment.is_flat and low <= high:
        shape = parse_shape(segment.shape)
        phase_begin -= segment.skipped
        length = segment.length
        inverse = (1 << INVERSE_BITS) // length
        shape_number = SHAPE_NUMBERS[shape.name]
        parameters[shape.name] = shape.parameters(segment.start, segment.end, length)
    inverse_high, inverse_middle = _split_words(inverse >> LIMB_BITS)
    start_high, start_low = _split_words(first)
    end_high, end_low = _split_words(last)
    return Table(
        begin=segment.begin,
        phase_begin=phase_begin,
        length=length,
        inverse_high=inverse_high,
        inverse_middle=inverse_middle,
        inverse_low=inverse & LIMB,
        start_high=start_high,
        start_low=start_low,
        end_high=end_high,
        end_low=end_low,
        start_float32=exact.float32_bits(exact.round_to_float32(start, exact.BITS)),
        shape_number=shape_number,
        parameters=parameters,
        shift=shift if shift and length else None,
    )


def _join(tables: Sequence[Table], shapes: Collection[str]) -> Table:
    """Join rows to a table, or tables with the same number of rows, along a new first axis.

    Args:
        tables: The rows or tables.
        shapes: The curved shapes that the result has parameters for.
    """
    columns: dict[str, Any] = {}
    for name, column in zip(Table._fields, zip(*tables, strict=True), strict=True):
        if name not in ("parameters", "shift"):
            columns[name] = _int32(column)
    parameters: dict[str, tuple[NDArray[np.int32], ...]] = {}
    for name in sorted(shapes):
        limbs: list[tuple[Any, ...]] = []
        num_limbs = sum(SHAPES[name].limbs.values())
        for table in tables:
            # 0 * begin is 0 for a row, and an array of zeros for a table.
            zeros = (0 * table.begin,) * num_limbs
            limbs.append(table.parameters.get(name, zeros))
        parameters[name] = tuple(map(_int32, zip(*limbs, strict=True)))
    shift = None
    if any(table.shift is not None for table in tables):
        shifts = [0 * table.begin if table.shift is None else table.shift for table in tables]
        shift = _int32(shifts)
    return Table(**columns, parameters=parameters, shift=shift)


def _int32(column: Any) -> NDArray[np.int32]:
    array = np.array(column, np.int32)
    array.flags.writeable = False
    return array


_WORD_BITS = 32
_WORD = (1 << _WORD_BITS) - 1


def _split_words(value: int) -> tuple[int, int]:
    """Split an int64 into two int32, the high word and the low word."""
    # An int32 has a sign, so a low word from 2³¹ on wraps to a negative number. With 4-bit words,
    # 0x5C is 5 and 0xC - 16 = -4. `_join_words` masks the sign away again: 5 << 4 | (-4 & 0xF) is
    # 0x5C.
    low = value & _WORD
    if low >> (_WORD_BITS - 1):
        low -= 1 << _WORD_BITS
    return value >> _WORD_BITS, low


def _join_words(xp: Operations, high: Any, low: Any) -> Any:
    """Join arrays of words into int64, the inverse of `_split_words`."""
    return (xp.int64(high) << _WORD_BITS) | (xp.int64(low) & _WORD)


class DecodedSegments(NamedTuple):
    """Table in the numbers that the arithmetic reads: a table with its words joined.

    A field contains one number per row of the table, one per step (gathered from the rows), or the
    number of a single row (a Python number).
    """

    phase_begin: Any
    """Step of the start level; it may lie before the first step of the segment."""
    length: Any
    """Number of steps L; 0 if the segment is flat."""
    inverse: Any
    """2⁶²/L, rounded down, int64."""
    inverse_rest: Any
    """The next 31 bits of the inverse, int64."""
    start: Any
    """Start level times 2⁶², int64."""
    end: Any
    """End level times 2⁶², int64."""
    start_float32: Any
    """Start level, float32."""
    shape_number: Any
    """Number of its shape; None if all are straight lines."""
    parameters: dict[str, tuple[Any, ...]]
    """By name, each curved shape in the table, with the limbs of its parameters, int64."""
    shift: Any
    """n, int64: the levels are stored divided by 2ⁿ. None if that is 0 everywhere."""

    def map(self, change: Callable[[Any], Any]) -> "DecodedSegments":
        """Apply a function to each column."""
        return DecodedSegments(*(map_column(change, column) for column in self))


class DecodedTable(NamedTuple):
    """The rows of a table as the arithmetic reads them: 64-bit integers instead of words."""

    begin: Any
    """First step of each row, int32."""
    segments: DecodedSegments


def decode_table(xp: Operations, table: Table) -> DecodedTable:
    """Join the words of a table. In JAX 64-bit integers must be on."""
    segments = DecodedSegments(
        phase_begin=table.phase_begin,
        length=table.length,
        inverse=_join_words(xp, table.inverse_high, table.inverse_middle),
        inverse_rest=xp.int64(table.inverse_low),
        start=_join_words(xp, table.start_high, table.start_low),
        end=_join_words(xp, table.end_high, table.end_low),
        start_float32=table.start_float32.view(xp.float32),
        shape_number=table.shape_number if table.parameters else None,
        parameters=map_column(xp.int64, table.parameters),
        shift=map_column(xp.int64, table.shift),
    )
    return DecodedTable(table.begin, segments)


def python_rows(table: DecodedTable) -> tuple[list[int], list[DecodedSegments]]:
    """Return the first step of each row, and each row in Python numbers with its own shape."""
    begins: list[int] = table.begin.tolist()
    columns = table.segments.map(lambda column: column.tolist())
    by_field: list[list[Any]] = []
    for name, column in columns._asdict().items():
        if name == "parameters":
            by_field.append(_parameters_by_row(columns))
        elif column is None:
            by_field.append([None] * len(begins))
        else:
            by_field.append(column)
    return begins, list(map(DecodedSegments, *by_field))


def _parameters_by_row(columns: DecodedSegments) -> list[dict[str, tuple[int, ...]]]:
    """Return for each row the parameters of its curved shape; {} for a straight line."""
    by_row: list[dict[str, tuple[int, ...]]] = [{} for _ in columns.phase_begin]
    for name, limbs in columns.parameters.items():
        for index, shape_number in enumerate(columns.shape_number):
            if shape_number == SHAPE_NUMBERS[name]:
                by_row[index][name] = tuple(limb[index] for limb in limbs)
    return by_row


def stack_tables(tables: Sequence[Table]) -> Table:
    """Stack tables: a shorter one repeats its last row, and parameters of other shapes are zero."""
    rows = max(len(table.begin) for table in tables)
    padded = [table.map(partial(_pad, rows)) for table in tables]
    shapes = {name for table in tables for name in table.parameters}
    return _join(padded, shapes)


def _pad(rows: int, column: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.pad(column, (0, rows - len(column)), mode="edge")
