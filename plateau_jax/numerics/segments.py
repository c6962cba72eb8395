"""The table: a curve precomputed as int32 columns. Its format is defined here and nowhere else.

A level v in [0, 1] is v·2⁶², and the inverse of a length L is 2⁹³/L. Without x64 JAX truncates the
arrays that a jitted function receives to 32 bits, so wider numbers are cut in one of two ways:

    words   32 bits each. Two of them are joined into an int64 before they are used.
    limbs 31 bits each, never negative. They are multiplied one by one, since a product fits into
    int64.

An inverse, which has up to 94 bits, is two words and a limb.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.numerics import exact, levels
from plateau_jax.numerics.arithmetic import FIXED_BITS, LIMB, LIMB_BITS, DecodedSegments, Operations
from plateau_jax.numerics.exact_segments import ExactSegment
from plateau_jax.numerics.shapes import (
    INVERSE_POWER,
    POWER_FROM_END,
    POWER_FROM_START,
    SHAPES,
    parse_formula,
)
from plateau_jax.validation.checks import is_ordered, must

INVERSE_BITS = FIXED_BITS + LIMB_BITS
"""Fractional bits of 1/L: multiplied by a step below 2³¹, it still has 62 correct ones."""

FROM_START, FROM_END = 1, 2
"""The values of the column `power` for "1-x^P" and for "(1-x)^P"; other shapes have 0."""

FAR_APART, NEARLY_EQUAL = 1, 2
"""The values of the column `inverse_power` for "t^-P", by its two levels; other shapes have 0."""

_WORD_BITS = 32
_WORD = (1 << _WORD_BITS) - 1
_DROPPED_BITS = exact.BITS - FIXED_BITS


class Segments(NamedTuple):
    """One curve as a table with one row per segment; a pytree of int32 arrays of shape (rows,).

    A level v in [0, 1] and the inverse of a length L are integers, rounded, and split over several
    columns:

        level      v · 2⁶²
        inverse    2⁹³ / L

    The number of rows does not depend on where the segments lie: a `PlateauCurve` with k plateaus
    has 2k + 3 (warmup, decay, (plateau, decay) k times, end), a `StagedCurve` one for each stage
    and one for the end. A row may be empty. So moving a plateau changes numbers, but no array's
    shape. In a curve from `BatchPlan.scale` it may: each threshold inside a segment cuts a row in
    two. `stack` adds a leading axis.

    A column that only one kind of segment needs is None or left out in a table without such
    segments, and nothing is computed for it.

    >>> from plateau_jax import PlateauCurve
    >>> table = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)]).table
    >>> table.begin, table.length
    (array([  0,  10,  55,  73, 100], dtype=int32), array([10, 45,  0, 27,  0], dtype=int32))
    """

    begin: Any
    """First step of the segment."""
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
    shapes: dict[str, Any]
    """By name, each curved shape without a parameter: 1 for its segments, else 0. A segment that
    has 0 in all of these columns, and no r, is a straight line."""
    rate_whole: Any = None
    """The change r per step, else 0: its whole part below 2³¹. For an exponential r =
    ∣log₂(end/start)∣/L, for "1-x^P" and "(1-x)^P" r = P/L, and for "t^-P" r = ((high/low)^(1/P) -
    1)/L."""
    rate_high: Any = None
    """r·2⁹³: bits 62 to 92."""
    rate_middle: Any = None
    """r·2⁹³: bits 31 to 61."""
    rate_low: Any = None
    """r·2⁹³: bits 0 to 30."""
    power: Any = None
    """`FROM_START`, `FROM_END` or 0."""
    inverse_power: Any = None
    """`FAR_APART`, `NEARLY_EQUAL` or 0."""
    rate_top: Any = None
    """r of a "t^-P", else 0: bits 31 and above of the whole part."""
    exponent_whole: Any = None
    """P, else 0: the whole part."""
    exponent_high: Any = None
    """P·2⁶²: bits 31 to 61."""
    exponent_low: Any = None
    """P·2⁶²: bits 0 to 30."""
    skipped: Any = None
    """Steps of the segment that were cut off before `begin`: its phase counts from `begin -
    skipped`."""
    shift: Any = None
    """n: the two levels are stored divided by 2ⁿ. Above 0 only in a curve from `BatchPlan.scale`,
    for a segment with a start or end level above 1, which no step reaches."""

    def columns(self) -> dict[str, Any]:
        """Return the columns that the table has by name, those of `shapes` by the name of their shape."""
        columns = {**self._asdict(), **self.shapes}
        return {
            name: column
            for name, column in columns.items()
            if name != "shapes" and column is not None
        }

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any]) -> "Segments":
        """Build a table from its columns.

        Args:
            columns: The columns by name, as `columns()` returns them.
        """
        shapes = {name: column for name, column in columns.items() if name not in cls._fields}
        fields = {name: column for name, column in columns.items() if name in cls._fields}
        return cls(**fields, shapes=shapes)


# The highest limb first.
_RATE = "rate_whole", "rate_high", "rate_middle", "rate_low"
_LONG_RATE = "rate_top", *_RATE
_EXPONENT = "exponent_whole", "exponent_high", "exponent_low"

_COLUMNS_OF_SHAPES = {
    "exponential": _RATE,
    POWER_FROM_START: (*_RATE, "power", *_EXPONENT),
    POWER_FROM_END: (*_RATE, "power", *_EXPONENT),
    INVERSE_POWER: (*_LONG_RATE, "inverse_power", *_EXPONENT),
    **{name: (name,) for name, shape in SHAPES.items() if shape.fixed},
}
"""The columns that a shape needs besides those of a straight line, by the name of the shape or
formula."""


def encode_table(segments: Sequence[ExactSegment]) -> Segments:
    """Encode segments as int32 columns, one row per segment."""
    rows = [_in_fixed_point(segment) for segment in segments]
    inverse_high, inverse_middle = _split_words([row.inverse >> LIMB_BITS for row in rows])
    start_high, start_low = _split_words([row.start for row in rows])
    end_high, end_low = _split_words([row.end for row in rows])
    columns: dict[str, Any] = {
        "begin": [segment.begin for segment in segments],
        "length": [row.length for row in rows],
        "inverse_high": inverse_high,
        "inverse_middle": inverse_middle,
        "inverse_low": [row.inverse & LIMB for row in rows],
        "start_high": start_high,
        "start_low": start_low,
        "end_high": end_high,
        "end_low": end_low,
        "start_float32": np.array([row.level for row in rows], np.float32).view(np.int32),
    }
    # A flat segment counts with the shape that it was described with. So changing a level never
    # adds or removes a column, and a jitted function that takes the table is not compiled again.
    shapes = {segment.shape for segment in segments}
    needed = set[str]().union(*map(_columns_of_shape, shapes), *(row.more for row in rows))
    for name in sorted(needed):
        columns[name] = [row.more.get(name, 0) for row in rows]
    return Segments.of_columns(
        {name: _frozen(np.array(column, np.int32)) for name, column in columns.items()}
    )


class _FixedPointRow(NamedTuple):
    """A row of the table before its numbers are cut into words."""

    length: int
    inverse: int
    start: int
    end: int
    level: float
    """Start level, a float32."""
    more: Mapping[str, int]
    """The columns that only some rows need."""


def _in_fixed_point(segment: ExactSegment) -> _FixedPointRow:
    start, end = exact.from_decimal(segment.start), exact.from_decimal(segment.end)
    level = exact.round_to_float32(start, exact.BITS)
    # Both levels in 62 bits, rounded towards each other: -(-v >> n) rounds up, v >> n down. With 4
    # bits, a segment from 0.8 = 12.8/16 to 0.3 = 4.8/16 goes from 12 to 5. So no value between them
    # passes the exact level at either end; otherwise a curve could rise by one unit in the last
    # place at the border of two falling segments. If no number of 62 bits lies between the levels,
    # the row is flat.
    lower, higher = min(start, end), max(start, end)
    shift = max(0, (higher - 1).bit_length() - exact.BITS)
    dropped = _DROPPED_BITS + shift
    low, high = -(-lower >> dropped), higher >> dropped
    first, last = (high, low) if start >= end else (low, high)
    if segment.length == 0 or segment.holds or low > high:
        return _FixedPointRow(0, 0, first, last, level, {})
    inverse = (1 << INVERSE_BITS) // segment.length
    more = _words_of_shape(segment)
    if segment.skipped:
        more["skipped"] = segment.skipped
    if shift:
        more["shift"] = shift
    return _FixedPointRow(segment.length, inverse, first, last, level, more)


def _columns_of_shape(shape: str | None) -> tuple[str, ...]:
    """Return the columns that a shape needs besides those of a straight line."""
    formula = parse_formula(shape)
    name = formula.name if formula else shape or ""
    return _COLUMNS_OF_SHAPES.get(name, ())


def _words_of_shape(segment: ExactSegment) -> dict[str, int]:
    """Encode the columns that a segment's shape needs besides those of a straight line."""
    length = segment.length
    if segment.shape == "exponential":
        low, high = sorted((segment.start, segment.end))
        return _limbs(_RATE, _fixed_point(exact.log2_ratio(high, low), INVERSE_BITS, length))
    formula = parse_formula(segment.shape)
    if formula is None:
        return dict.fromkeys(_columns_of_shape(segment.shape), 1)
    name, power = formula
    # To the nearest, unlike r: the error of P is multiplied by a logarithm whose whole part may be
    # 31.
    exponent = _limbs(_EXPONENT, _fixed_point(power + Fraction(1, 2 << FIXED_BITS), FIXED_BITS))
    if name == INVERSE_POWER:
        growth = Fraction(levels.ratio_of_bases(power, segment.start, segment.end)) - 1
        rate = _limbs(_LONG_RATE, _fixed_point(growth, INVERSE_BITS, length))
        return {
            **rate,
            "inverse_power": NEARLY_EQUAL if growth < _LEAST_GROWTH else FAR_APART,
            **exponent,
        }
    rate = _limbs(_RATE, _fixed_point(power, INVERSE_BITS, length))
    return {**rate, "power": FROM_START if name == POWER_FROM_START else FROM_END, **exponent}


_LEAST_GROWTH = Fraction(1, 1 << 22)
"""If t grows by less than this, a parabola replaces "t^-P": see `powers.parabola`."""


def _fixed_point(number: Fraction, bits: int, length: int = 1) -> int:
    """Return number/length with `bits` fractional bits, rounded down."""
    return (number.numerator << bits) // (number.denominator * length)


def _limbs(names: Sequence[str], value: int) -> dict[str, int]:
    """Cut a value into as many limbs as there are names, the highest limb first."""
    # With 4-bit limbs and three names, 0x3C5 is 0x3, 0xC, 0x5.
    places = reversed(range(len(names)))
    return {
        name: (value >> (LIMB_BITS * place)) & LIMB
        for name, place in zip(names, places, strict=True)
    }


def _split_words(values: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Split each int64 into two int32, the high word and the low word."""
    # An int32 has a sign, so a low word from 2³¹ on wraps to a negative number. With 4-bit words,
    # 0x5C is 5 and 0xC - 16 = -4. `join_words` masks the sign away again: 5 << 4 | (-4 & 0xF) =
    # 0x5C.
    wide = np.array(values, np.int64)
    return (wide >> _WORD_BITS).astype(np.int32), wide.astype(np.int32)


def join_words(xp: Operations, high: Any, low: Any) -> Any:
    """Join arrays of words into int64, the inverse of `_split_words`."""
    return (xp.int64(high) << _WORD_BITS) | (xp.int64(low) & _WORD)


def decode_table(xp: Operations, table: Segments) -> DecodedSegments:
    """Join the words of a table. In JAX 64-bit integers must be on."""

    def to_int64(column: Any) -> Any:
        return None if column is None else xp.int64(column)

    return DecodedSegments(
        begin=table.begin,
        phase_begin=None if table.skipped is None else table.begin - table.skipped,
        shift=to_int64(table.shift),
        length=table.length,
        inverse_high=join_words(xp, table.inverse_high, table.inverse_middle),
        inverse_low=xp.int64(table.inverse_low),
        start=join_words(xp, table.start_high, table.start_low),
        end=join_words(xp, table.end_high, table.end_low),
        level=table.start_float32.view(xp.float32),
        shapes=table.shapes,
        **{name: to_int64(getattr(table, name)) for name in _LONG_RATE},
        power=table.power,
        inverse_power=table.inverse_power,
        exponent_whole=to_int64(table.exponent_whole),
        exponent_fraction=None
        if table.exponent_high is None
        else (xp.int64(table.exponent_high) << LIMB_BITS) | xp.int64(table.exponent_low),
    )


def python_rows(table: DecodedSegments) -> tuple[list[int], list[DecodedSegments]]:
    """Return the first step of each row, and each row in Python numbers, which counts from its phase."""
    begins = table.begin.tolist()
    if table.phase_begin is not None:
        table = table._replace(begin=table.phase_begin, phase_begin=None)
    fields = table._asdict()
    # In the columns a row with a different shape has 0 here. In a single row this becomes None,
    # because the arithmetic skips what is None.
    if table.rate_whole is not None:
        rates = [fields[name] for name in _LONG_RATE if fields[name] is not None]
        fields["rate_whole"] = np.where(np.any(rates, axis=0), table.rate_whole, None)
    for name in ("power", "inverse_power"):
        if fields[name] is not None:
            fields[name] = np.where(fields[name], fields[name], None)
    columns: list[Iterable[Any]] = []
    for name, column in fields.items():
        if name == "shapes":
            columns.append(_shapes_by_row(column))
        else:
            columns.append(itertools.repeat(None) if column is None else column.tolist())
    return begins, list(map(DecodedSegments, *columns))


def _shapes_by_row(shapes: dict[str, Any]) -> Iterable[dict[str, int]]:
    """Return for each row a dictionary with its shape, which is empty for a straight line."""
    if not shapes:
        return itertools.repeat({})
    rows = zip(*(column.tolist() for column in shapes.values()), strict=True)
    return [
        {name: 1 for name, is_shape in zip(shapes, row, strict=True) if is_shape} for row in rows
    ]


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


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
    tables: list[dict[str, Any]] = []
    for index, curve in enumerate(curves):
        if not isinstance(table := getattr(curve, "table", None), Segments):
            raise TypeError(must(("curves", index), curve, "be a Curve"))
        tables.append(table.columns())
    if not tables:
        raise ValueError("curves is empty; stack needs at least one Curve")
    rows = max(len(table["begin"]) for table in tables)
    names = dict.fromkeys(name for table in tables for name in table)
    zero = np.zeros(1, np.int32)
    columns = {name: [table.get(name, zero) for table in tables] for name in names}
    return Segments.of_columns(
        {
            name: _frozen(
                np.array([np.pad(part, (0, rows - len(part)), mode="edge") for part in parts])
            )
            for name, parts in columns.items()
        }
    )
