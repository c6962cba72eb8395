"""The table: a curve precomputed as int32 columns, whose format is defined here and nowhere else.

A level v in [0, 1] is v·2⁶², and the inverse of a length L is 2⁹³/L. JAX cuts arrays that come into a
jitted function to 32 bits unless x64 is on, so wider numbers are split into words.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from plateau_jax.numerics import exact, levels
from plateau_jax.numerics.arithmetic import FIXED_BITS, LIMB, LIMB_BITS, DecodedSegments, Operations
from plateau_jax.numerics.exact_segments import ExactSegment
from plateau_jax.numerics.shapes import INVERSE_POWER, POWER_FROM_END, POWER_FROM_START, SHARES, parse_formula
from plateau_jax.validation import checks

INVERSE_BITS = FIXED_BITS + LIMB_BITS
"""Fractional bits of 1/L: multiplied by a step below 2³¹, it still has 62 correct ones."""

FROM_START, FROM_END = 1, 2
"""The values of the column `power` for "1-x^P" and for "(1-x)^P"; 0 for other shapes."""

FAR_APART, NEARLY_EQUAL = 1, 2
"""The values of the column `inverse_power` for "t^-P", by its levels; 0 for other shapes."""

_WORD_BITS = 32
_WORD = (1 << _WORD_BITS) - 1
_DROP = exact.BITS - FIXED_BITS


class Segments(NamedTuple):
    """One curve as a table with a row a segment; a pytree of int32 arrays of shape (rows,).

    A level v in [0, 1] and the inverse of a length L are integers, rounded, and cut into words of 32 bits:

        level      v · 2⁶²
        inverse    2⁹³ / L

    The number of rows does not depend on where the segments lie: a `PlateauCurve` with k plateaus has 2k + 3
    (warmup, decay, (plateau, decay) k times, end), a `StagedCurve` one for each stage and one for the end. A
    row may be empty. So moving a plateau changes numbers and no array's shape. `stack` adds an axis in front.

    A column that only one kind of segment needs is None or left out in a table without such segments, and
    nothing is computed for it.

    >>> from plateau_jax import PlateauCurve
    >>> table = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)]).segments
    >>> table.begin, table.length
    (array([  0,  10,  55,  73, 100], dtype=int32), array([10, 45,  0, 27,  0], dtype=int32))
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
    start_float32: Any
    """Start level as the nearest float32: its bits."""
    shapes: dict[str, Any]
    """By name, each curved shape without a parameter: 1 for its segments, else 0. A segment without a shape
    in any column is a straight line."""
    rate_whole: Any = None
    """A rate r a step, else 0: its whole part below 2³¹. Of an exponential r = ∣log₂(end/start)∣/L. Of
    "1-x^P" and "(1-x)^P" r = P/L. Of "t^-P" r = ((high/low)^(1/P) - 1)/L."""
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
    """r of a "t^-P", else 0: the whole part from 2³¹ on."""
    exponent_whole: Any = None
    """P, else 0: the whole part."""
    exponent_high: Any = None
    """P·2⁶²: bits 31 to 61."""
    exponent_low: Any = None
    """P·2⁶²: bits 0 to 30."""

    def columns(self) -> dict[str, Any]:
        """The columns that are there, those of `shapes` by the name of their shape."""
        columns = {**self._asdict(), **self.shapes}
        return {name: column for name, column in columns.items() if name != "shapes" and column is not None}

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any]) -> "Segments":
        """Build a table from its columns.

        Args:
            columns: The columns by name, as `columns()` returns them.
        """
        shapes = {name: column for name, column in columns.items() if name not in cls._fields}
        others = {name: column for name, column in columns.items() if name in cls._fields}
        return cls(**others, shapes=shapes)


_RATE = "rate_whole", "rate_high", "rate_middle", "rate_low"
_EXPONENT = "exponent_whole", "exponent_high", "exponent_low"
_POWER = *_RATE, "power", *_EXPONENT
_INVERSE_POWER = *_RATE, "inverse_power", "rate_top", *_EXPONENT
_COLUMNS_OF_SHAPES = {
    "exponential": _RATE,
    POWER_FROM_START: _POWER,
    POWER_FROM_END: _POWER,
    INVERSE_POWER: _INVERSE_POWER,
    **{name: (name,) for name, share in SHARES.items() if share.fixed},
}
"""The columns that a shape needs besides those of a straight line; a formula by its name."""


def encode_table(rows: Sequence[ExactSegment]) -> Segments:
    """The rows as int32 columns."""
    # By the shapes that were described, of flat rows too: when a level changes, no column comes or goes.
    shapes = {found.name if (found := parse_formula(row.shape)) else row.shape for row in rows}
    needed = {name for shape in shapes if shape for name in _COLUMNS_OF_SHAPES.get(shape, ())}
    words = list(map(_words, rows))
    columns = {name: [row.get(name, 0) for row in words] for name in sorted(needed.union(words[0]))}
    return Segments.of_columns(
        {name: _frozen(np.array(column, np.int32)) for name, column in columns.items()}
    )


def _words(row: ExactSegment) -> dict[str, int]:
    """The columns of a segment; those that only some shapes need may be left out where they are 0."""
    first, last = levels.fixed224(row.start), levels.fixed224(row.end)
    # Both levels in 62 bits, rounded towards each other. So no value between them passes the exact level
    # at either end: else a curve could climb by one unit in the last place where one segment hands over
    # to the next. If no number of 62 bits lies between them, the row is flat.
    low, high = -(-min(first, last) >> _DROP), max(first, last) >> _DROP
    moves = row.length > 0 and not row.holds and low <= high
    inverse = (1 << INVERSE_BITS) // row.length if moves else 0
    inverse_high, inverse_middle = split_words(inverse >> LIMB_BITS)
    start_high, start_low = split_words(high if first >= last else low)
    end_high, end_low = split_words(low if first >= last else high)
    return {
        "begin": row.begin,
        "length": row.length if moves else 0,
        "inverse_high": inverse_high,
        "inverse_middle": inverse_middle,
        "inverse_low": inverse & LIMB,
        "start_high": start_high,
        "start_low": start_low,
        "end_high": end_high,
        "end_low": end_low,
        "start_float32": int(exact.nearest_float32(first).view(np.int32)),
        **(_words_of_shape(row) if moves else {}),
    }


def _words_of_shape(row: ExactSegment) -> dict[str, int]:
    """The columns that the shape of a row needs besides those of a straight line."""
    length = row.length
    if row.shape == "exponential":
        low, high = sorted((levels.digits(row.start), levels.digits(row.end)))
        return dict(zip(_RATE, _limbs(exact.log2_ratio(high, low), 4, length), strict=True))
    found = parse_formula(row.shape)
    if found is None:
        return dict.fromkeys(_COLUMNS_OF_SHAPES.get(row.shape or "", ()), 1)
    name, power = found
    # To the nearest: a logarithm with a whole part up to 31 is multiplied by it.
    exponent = _limbs(power + Fraction(1, 2 << FIXED_BITS), 3, bits=FIXED_BITS)
    if name == INVERSE_POWER:
        growth = Fraction(levels.ratio_of_bases(power, row.start, row.end)) - 1
        top, *rate = _limbs(growth, 5, length)
        apart = NEARLY_EQUAL if growth < _LEAST_GROWTH else FAR_APART
        return dict(zip(_INVERSE_POWER, (*rate, apart, top, *exponent), strict=True))
    counted_from = FROM_START if name == POWER_FROM_START else FROM_END
    return dict(zip(_POWER, (*_limbs(power, 4, length), counted_from, *exponent), strict=True))


_LEAST_GROWTH = Fraction(1, 1 << 22)
"""Below this growth of t a parabola takes the place of "t^-P": see `powers.parabola`."""


def _limbs(number: Fraction, count: int, length: int = 1, bits: int = INVERSE_BITS) -> tuple[int, ...]:
    """`count` limbs of number/length, the lowest ones of the `bits` of its fraction."""
    value = (number.numerator << bits) // (number.denominator * length)
    return tuple((value >> (LIMB_BITS * place)) & LIMB for place in reversed(range(count)))


def split_words(value: int) -> tuple[int, int]:
    """An int64 as two int32: the high word and the low one."""
    low = value & _WORD
    return value >> _WORD_BITS, low - ((1 << _WORD_BITS) if low >> (_WORD_BITS - 1) else 0)


def join_words(xp: Operations, high: Any, low: Any) -> Any:
    """Arrays of words as int64: `split_words` backwards."""
    return (xp.int64(high) << _WORD_BITS) | (xp.int64(low) & _WORD)


def decode_table(xp: Operations, table: Segments) -> DecodedSegments:
    """The numbers that a table's words stand for; 64-bit integers must be on."""

    def wide(column: Any) -> Any:
        return None if column is None else xp.int64(column)

    return DecodedSegments(
        begin=table.begin,
        length=table.length,
        inverse_high=join_words(xp, table.inverse_high, table.inverse_middle),
        inverse_low=xp.int64(table.inverse_low),
        start=join_words(xp, table.start_high, table.start_low),
        end=join_words(xp, table.end_high, table.end_low),
        level=table.start_float32.view(xp.float32),
        shapes=table.shapes,
        **{name: wide(getattr(table, name)) for name in _RATE},
        power=table.power,
        inverse_power=table.inverse_power,
        rate_top=wide(table.rate_top),
        exponent_whole=wide(table.exponent_whole),
        exponent_fraction=None
        if table.exponent_high is None
        else (xp.int64(table.exponent_high) << LIMB_BITS) | xp.int64(table.exponent_low),
    )


def python_rows(table: DecodedSegments) -> tuple[list[int], list[DecodedSegments]]:
    """The first step of each row, and each row as Python numbers, without other shapes' columns."""
    count = len(table.begin)
    columns: dict[str, list[Any]] = {
        name: [None] * count if column is None else column.tolist()
        for name, column in table._asdict().items()
        if name != "shapes"
    }
    for name in ("power", "inverse_power"):
        columns[name] = [value or None for value in columns[name]]
    rates = zip(*(columns[name] for name in (*_RATE, "rate_top")), strict=True)
    columns["rate_whole"] = [words[0] if any(words) else None for words in rates]
    shapes = {name: column.tolist() for name, column in table.shapes.items()}
    columns["shapes"] = [{name: 1 for name in shapes if shapes[name][index]} for index in range(count)]
    rows = zip(*(columns[name] for name in DecodedSegments._fields), strict=True)
    return columns["begin"], [DecodedSegments(*row) for row in rows]


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def stack(curves: Iterable[Any]) -> Segments:
    """One table for several curves, for `vmap`: each column of shape (curves, rows).

    For a curve with fewer segments than others the row of its end is repeated, which changes no value. A
    column that one curve needs is zero for the curves that do not need it.

    Args:
        curves: At least one curve.

    Returns:
        A `Segments` of int32 arrays.

    Raises:
        TypeError: A single curve; curves without an order, as in a set; something that is not a `Curve`.
        ValueError: No curve was given.

    >>> from plateau_jax import PlateauCurve, stack
    >>> table = stack([PlateauCurve(100), PlateauCurve(100, plateaus=[(50, 30)])])
    >>> table.begin
    array([[  0,   0, 100, 100, 100],
           [  0,   0,  50,  80, 100]], dtype=int32)
    """
    if not checks.is_ordered(curves):
        raise TypeError(f"curves = {checks.short_repr(curves)} must be several Curves, in order")
    curves = list(curves)
    for curve in curves:
        if not isinstance(getattr(curve, "segments", None), Segments):
            raise TypeError(f"curves holds {checks.short_repr(curve)}; it must hold Curves")
    tables: list[dict[str, Any]] = [curve.segments.columns() for curve in curves]
    if not tables:
        raise ValueError("curves is empty; stack needs at least one Curve")
    rows = max(len(table["begin"]) for table in tables)

    def padded(column: Any) -> Any:
        if column is None:
            return np.zeros(rows, np.int32)
        return np.pad(column, (0, rows - len(column)), mode="edge")

    names = dict.fromkeys(name for table in tables for name in table)
    return Segments.of_columns(
        {name: _frozen(np.array([padded(table.get(name)) for table in tables])) for name in names}
    )
