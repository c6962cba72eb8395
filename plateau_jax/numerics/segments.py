"""The table: a curve precomputed as int32 columns. Its format is defined here and nowhere else.

A level v in [0, 1] is v·2⁶², and the inverse of a length L is 2⁹³/L. Without x64 JAX truncates the arrays
that a jitted function receives to 32 bits, so wider numbers are cut in one of two ways:

    words   32 bits each. Two of them are joined into an int64 before they are used.
    limbs   31 bits each, never negative. They are multiplied one by one, since a product fits into int64.

An inverse, which has up to 94 bits, is two words and a limb.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import (
    FIXED_BITS,
    INVERSE_BITS,
    LIMB,
    LIMB_BITS,
    DecodedSegments,
    DecodedTable,
    Operations,
    map_column,
)
from plateau_jax.numerics.exact_segments import ExactSegment
from plateau_jax.shapes.known_shapes import KINDS, SHAPES, parse_shape
from plateau_jax.validation.checks import is_ordered, must


class Segments(NamedTuple):
    """One curve as a table with one row per segment; a pytree of int32 arrays of shape (rows,).

    A level v in [0, 1] and the inverse of a length L are integers, rounded, and split over several columns:

        level      v · 2⁶²
        inverse    2⁹³ / L

    The number of rows does not depend on where the segments lie: a `PlateauCurve` with k plateaus has 2k + 3
    (warmup, decay, (plateau, decay) k times, end), a `StagedCurve` one for each stage and one for the end. A
    row may be empty. So moving a plateau changes numbers, but no array's shape. In a curve from
    `BatchPlan.scale` it may: each threshold inside a segment cuts a row in two. `stack` adds a leading axis.

    Compiled code computes every shape in `parameters` at every step, and nothing for other shapes.

    >>> from plateau_jax import PlateauCurve
    >>> table = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)]).table
    >>> table.begin, table.length
    (array([  0,  10,  55,  73, 100], dtype=int32), array([10, 45,  0, 27,  0], dtype=int32))
    """

    begin: Any
    """First step of the segment."""
    phase_begin: Any
    """Step of the start level: earlier than `begin` if the first steps of the segment were cut off."""
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
    kind: Any
    """The number of the shape in `KINDS`; 0 for a straight line and for a flat segment."""
    parameters: dict[str, tuple[Any, ...]]
    """By name, each curved shape in the table, with the limbs of its parameters; 0 in other rows."""
    shift: Any = None
    """n: the two levels are stored divided by 2ⁿ. None if that is 0 everywhere. Above 0 only in a curve from
    `BatchPlan.scale`, for a segment with a start or end level above 1, which no step reaches."""

    def map(self, change: Callable[[Any], Any]) -> "Segments":
        """Apply a function to each column."""
        return Segments(*(map_column(change, column) for column in self))

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


def encode_table(segments: Sequence[ExactSegment]) -> Segments:
    """Encode segments as int32 columns, one row per segment."""
    rows = [_encode_row(segment) for segment in segments]
    inverse_high, inverse_middle = _split_words([row.inverse >> LIMB_BITS for row in rows])
    start_high, start_low = _split_words([row.start for row in rows])
    end_high, end_low = _split_words([row.end for row in rows])
    levels = np.array([row.level for row in rows], np.float32)
    shifts = [row.shift for row in rows]
    table = Segments(
        begin=[segment.begin for segment in segments],
        phase_begin=[segment.begin - segment.skipped for segment in segments],
        length=[row.length for row in rows],
        inverse_high=inverse_high,
        inverse_middle=inverse_middle,
        inverse_low=[row.inverse & LIMB for row in rows],
        start_high=start_high,
        start_low=start_low,
        end_high=end_high,
        end_low=end_low,
        start_float32=levels.view(np.int32),
        kind=[row.kind for row in rows],
        parameters=_encode_parameters(segments, rows),
        shift=shifts if any(shifts) else None,
    )
    return table.map(_int32)


class _Row(NamedTuple):
    """A row of the table before its numbers are cut into words."""

    start: int
    end: int
    level: float
    """Start level, a float32."""
    length: int = 0
    inverse: int = 0
    kind: int = 0
    parameters: Sequence[int] = ()
    shift: int = 0


def _encode_row(segment: ExactSegment) -> _Row:
    start = exact.from_decimal(segment.start)
    end = exact.from_decimal(segment.end)
    level = exact.round_to_float32(start, exact.BITS)
    lower = min(start, end)
    higher = max(start, end)
    # Both levels in 62 bits, rounded towards each other: -(-v >> n) rounds up, v >> n down. With 4 bits, a
    # segment from 0.8 = 12.8/16 to 0.3 = 4.8/16 goes from 12 to 5. So no value between them passes the exact
    # level at either end; otherwise a curve could rise by one unit in the last place at the border of two
    # falling segments. If no number of 62 bits lies between the levels, the row is flat.
    shift = max(0, (higher - 1).bit_length() - exact.BITS)
    dropped = exact.BITS - FIXED_BITS + shift
    low = -(-lower >> dropped)
    high = higher >> dropped
    if start >= end:
        first = high
        last = low
    else:
        first = low
        last = high
    if segment.length == 0 or segment.shape is None or segment.holds or low > high:
        return _Row(first, last, level)
    shape = parse_shape(segment.shape)
    return _Row(
        first,
        last,
        level,
        length=segment.length,
        inverse=(1 << INVERSE_BITS) // segment.length,
        kind=KINDS[shape.name],
        parameters=shape.parameters(segment.start, segment.end, segment.length),
        shift=shift,
    )


def _encode_parameters(
    segments: Sequence[ExactSegment], rows: Sequence[_Row]
) -> dict[str, tuple[Any, ...]]:
    """Return the parameters of each curved shape, in columns of one limb each."""
    # A flat segment counts with the shape that it was described with. So changing a level never adds or
    # removes a column, and a jitted function that takes the table is not compiled again.
    described = {segment.shape for segment in segments if segment.shape is not None}
    shapes = {shape.name: shape for shape in map(parse_shape, described)}
    parameters: dict[str, tuple[Any, ...]] = {}
    for name in sorted(shapes.keys() - {"linear"}):
        without = (0,) * shapes[name].num_limbs
        limbs = [row.parameters if row.kind == KINDS[name] else without for row in rows]
        parameters[name] = tuple(zip(*limbs, strict=True))
    return parameters


def _int32(column: Any) -> NDArray[np.int32]:
    array = np.array(column, np.int32)
    array.flags.writeable = False
    return array


_WORD_BITS = 32
_WORD = (1 << _WORD_BITS) - 1


def _split_words(values: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Split each int64 into two int32, the high word and the low word."""
    # An int32 has a sign, so a low word from 2³¹ on wraps to a negative number. With 4-bit words, 0x5C is
    # 5 and 0xC - 16 = -4. `join_words` masks the sign away again: 5 << 4 | (-4 & 0xF) = 0x5C.
    wide = np.array(values, np.int64)
    return (wide >> _WORD_BITS).astype(np.int32), wide.astype(np.int32)


def _join_words(xp: Operations, high: Any, low: Any) -> Any:
    """Join arrays of words into int64, the inverse of `_split_words`."""
    return (xp.int64(high) << _WORD_BITS) | (xp.int64(low) & _WORD)


def decode_table(xp: Operations, table: Segments) -> DecodedTable:
    """Join the words of a table. In JAX 64-bit integers must be on."""
    segments = DecodedSegments(
        begin=table.phase_begin,
        length=table.length,
        inverse_high=_join_words(xp, table.inverse_high, table.inverse_middle),
        inverse_low=xp.int64(table.inverse_low),
        start=_join_words(xp, table.start_high, table.start_low),
        end=_join_words(xp, table.end_high, table.end_low),
        level=table.start_float32.view(xp.float32),
        kind=table.kind if table.parameters else None,
        parameters=map_column(xp.int64, table.parameters),
        shift=map_column(xp.int64, table.shift),
    )
    return DecodedTable(table.begin, segments)


def python_rows(table: DecodedTable) -> tuple[list[int], list[DecodedSegments]]:
    """Return the first step of each row, and each row in Python numbers, with its own shape alone."""
    begins: list[int] = table.begin.tolist()
    columns = table.segments.map(lambda column: column.tolist())
    parameters: list[dict[str, tuple[int, ...]]] = []
    for index in range(len(begins)):
        own: dict[str, tuple[int, ...]] = {}
        for name, limbs in columns.parameters.items():
            if columns.kind[index] == KINDS[name]:
                own[name] = tuple(limb[index] for limb in limbs)
        parameters.append(own)
    by_field = columns._replace(parameters=parameters)
    missing = [None] * len(begins)
    return begins, list(
        map(DecodedSegments, *(missing if column is None else column for column in by_field))
    )


def stack(curves: Iterable[Any]) -> Segments:
    """Stack the tables of several curves for `vmap`: each column is of shape (curves, rows).

    A shorter table repeats the row of its end, which changes no value. A column that only some
    curves need is zero for the others.

    Args:
        curves: At least one curve.

    Returns:
        One table, a pytree of int32 arrays.

    Raises:
        TypeError: `curves` is a single curve, or has no order, as a set, or holds something that is
            not a `Curve`.
        ValueError: `curves` is empty.

    >>> from plateau_jax import PlateauCurve, stack
    >>> table = stack([PlateauCurve(100), PlateauCurve(100, plateaus=[(50, 30)])])
    >>> table.begin
    array([[  0,   0, 100, 100, 100],
           [  0,   0,  50,  80, 100]], dtype=int32)
    """
    if not is_ordered(curves):
        raise TypeError(must("curves", curves, "be several Curves, in order"))
    tables: list[Segments] = []
    for index, curve in enumerate(curves):
        table = getattr(curve, "table", None)
        if not isinstance(table, Segments):
            raise TypeError(must(("curves", index), curve, "be a Curve"))
        tables.append(table)
    if not tables:
        raise ValueError("curves is empty; stack needs at least one Curve")
    padded = _with_equal_columns(tables)
    by_field = dict(zip(Segments._fields, zip(*padded, strict=True), strict=True))
    parameters = by_field.pop("parameters")
    columns: dict[str, Any] = {}
    for name, parts in by_field.items():
        columns[name] = None if parts[0] is None else _int32(parts)
    columns["parameters"] = {
        name: tuple(map(_int32, zip(*(part[name] for part in parameters), strict=True)))
        for name in parameters[0]
    }
    return Segments(**columns)


def _with_equal_columns(tables: Sequence[Segments]) -> list[Segments]:
    """Return tables that all have the same columns, of the same length."""
    rows = max(len(table.begin) for table in tables)
    names = sorted({name for table in tables for name in table.parameters})
    has_shift = any(table.shift is not None for table in tables)
    zero = np.zeros(1, np.int32)

    def pad(column: Any) -> Any:
        return np.pad(column, (0, rows - len(column)), mode="edge")

    padded: list[Segments] = []
    for table in tables:
        without = {name: (zero,) * SHAPES[name].num_limbs for name in names}
        completed = table._replace(parameters=without | table.parameters)
        if has_shift and table.shift is None:
            completed = completed._replace(shift=zero)
        padded.append(completed.map(pad))
    return padded
