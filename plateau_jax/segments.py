"""The table: a curve precomputed as int32 columns, whose format is defined here and nowhere else.

A level v in [0, 1] is v·2⁶², and the inverse of a length L is 2⁹³/L. JAX cuts arrays that come into a
jitted function to 32 bits unless x64 is on, so wider numbers are split into words.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from plateau_jax import checks, exact, levels
from plateau_jax.rows import Row
from plateau_jax.shapes import INVERSE_POWER, POWER_FROM_END, POWER_FROM_START, formula

FIXED_BITS = 62
"""Fractional bits of a level at run time: the most for which a product of limbs fits into int64."""

LIMB_BITS = FIXED_BITS // 2
"""Bits of a limb, half a level: a product of two levels is made of products of their limbs."""

INVERSE_BITS = FIXED_BITS + LIMB_BITS
"""Fractional bits of 1/L: multiplied by a step below 2³¹, it still has 62 correct ones."""

LIMB = (1 << LIMB_BITS) - 1
"""A mask: all bits of a limb."""

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

    A column that only one kind of segment needs is None in a table without such segments, and nothing is
    computed for it.

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
    cosine: Any = None
    """1 for a half cosine, else 0."""
    root: Any = None
    """1 for a square root, else 0. A row without a shape in its columns is a straight line."""
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


_RATE = "rate_whole", "rate_high", "rate_middle", "rate_low"
_EXPONENT = "exponent_whole", "exponent_high", "exponent_low"
_POWER = "power", *_EXPONENT, *_RATE
_COLUMNS_OF_SHAPES: dict[str | None, tuple[str, ...]] = {
    "cosine": ("cosine",),
    "1-sqrt": ("root",),
    "exponential": _RATE,
    POWER_FROM_START: _POWER,
    POWER_FROM_END: _POWER,
    INVERSE_POWER: ("inverse_power", "rate_top", *_EXPONENT, *_RATE),
}
"""The columns that a shape needs beside those of a straight line; a formula by its name."""

_OF_SHAPES = {name for names in _COLUMNS_OF_SHAPES.values() for name in names}
_LAST_OF_ALL = "start_float32"
"""The last column that every table has."""


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
    level: Any
    """Start level, float32."""
    cosine: Any
    root: Any
    rate_whole: Any
    rate_high: Any
    rate_middle: Any
    rate_low: Any
    power: Any
    inverse_power: Any
    rate_top: Any
    exponent_whole: Any
    exponent_fraction: Any
    """P·2⁶²: bits 0 to 61."""


def table(rows: Sequence[Row]) -> Segments:
    """The rows as int32 columns."""
    # By the shapes that were described, of flat rows too: when a level changes, no column comes or goes.
    shapes = {found.name if (found := formula(row.shape)) else row.shape for row in rows}
    needed = {name for shape in shapes for name in _COLUMNS_OF_SHAPES.get(shape, ())}
    width = 1 + max(map(Segments._fields.index, needed | {_LAST_OF_ALL}))
    words = np.array([_words(row)[:width] for row in rows], np.int32)
    columns: dict[str, Any] = dict(zip(Segments._fields, map(_frozen, words.T.copy()), strict=False))
    return Segments(**columns | dict.fromkeys(_OF_SHAPES - needed))


def _words(row: Row) -> tuple[int, ...]:
    first, last = levels.bits(row.start), levels.bits(row.end)
    # Both levels in 62 bits, rounded towards each other. So no value between them passes the exact level
    # at either end: else a curve could climb by one unit in the last place where one segment hands over
    # to the next. If no number of 62 bits lies between them, the row is flat.
    low, high = -(-min(first, last) >> _DROP), max(first, last) >> _DROP
    moves = row.length > 0 and not row.holds and low <= high
    inverse = (1 << INVERSE_BITS) // row.length if moves else 0
    return (
        row.begin,
        row.length if moves else 0,
        *split(inverse >> LIMB_BITS),
        inverse & LIMB,
        *split(high if first >= last else low),
        *split(low if first >= last else high),
        int(exact.nearest_float32(first).view(np.int32)),
        int(row.shape == "cosine"),
        int(row.shape == "1-sqrt"),
        *(_words_of_rate(row) if moves else _NO_RATE),
    )


_NO_RATE = (0,) * 10


def _words_of_rate(row: Row) -> tuple[int, ...]:
    """The columns from `rate_whole` on."""
    if row.shape == "exponential":
        low, high = sorted((levels.digits(row.start), levels.digits(row.end)))
        return (*_limbs(exact.log2_ratio(high, low), 4, row.length), *_NO_RATE[4:])
    found = formula(row.shape)
    if found is None:
        return _NO_RATE
    name, power = found
    if name == INVERSE_POWER:
        growth = Fraction(levels.ratio_of_bases(power, row.start, row.end)) - 1
        top, *limbs = _limbs(growth, 5, row.length)
        apart = NEARLY_EQUAL if growth < _LEAST_GROWTH else FAR_APART
        return (*limbs, 0, apart, top, *_limbs_of_exponent(power))
    return (
        *_limbs(power, 4, row.length),
        FROM_START if name == POWER_FROM_START else FROM_END,
        0,
        0,
        *_limbs_of_exponent(power),
    )


_LEAST_GROWTH = Fraction(1, 1 << 22)
"""Below this growth of t a parabola takes the place of "t^-P": see `powers.parabola`."""


def _limbs(number: Fraction, count: int, length: int = 1, bits: int = INVERSE_BITS) -> tuple[int, ...]:
    """So many limbs of number/length, the lowest ones of the `bits` of its fraction."""
    value = (number.numerator << bits) // (number.denominator * length)
    return tuple((value >> (LIMB_BITS * place)) & LIMB for place in reversed(range(count)))


def _limbs_of_exponent(power: Fraction) -> tuple[int, ...]:
    # To the nearest: a logarithm with a whole part up to 31 is multiplied by it.
    return _limbs(power + Fraction(1, 2 << FIXED_BITS), 3, bits=FIXED_BITS)


def split(value: int) -> tuple[int, int]:
    """An int64 as two int32: the high word and the low one."""
    low = value & _WORD
    return value >> _WORD_BITS, low - ((1 << _WORD_BITS) if low >> (_WORD_BITS - 1) else 0)


def join(xp: Any, high: Any, low: Any) -> Any:
    """Arrays of words as int64: `split` backwards."""
    return (xp.int64(high) << _WORD_BITS) | (xp.int64(low) & _WORD)


def joined(xp: Any, table: Segments) -> Numbers:
    """The columns of numbers that a table's words stand for; 64-bit integers must be on."""
    return Numbers(
        begin=table.begin,
        length=table.length,
        inverse_high=join(xp, table.inverse_high, table.inverse_middle),
        inverse_low=table.inverse_low,
        start=join(xp, table.start_high, table.start_low),
        end=join(xp, table.end_high, table.end_low),
        level=table.start_float32.view(xp.float32),
        cosine=table.cosine,
        root=table.root,
        **{name: _wide(xp, getattr(table, name)) for name in _RATE},
        power=table.power,
        inverse_power=table.inverse_power,
        rate_top=_wide(xp, table.rate_top),
        exponent_whole=_wide(xp, table.exponent_whole),
        exponent_fraction=None
        if table.exponent_high is None
        else (xp.int64(table.exponent_high) << LIMB_BITS) | xp.int64(table.exponent_low),
    )


def _wide(xp: Any, column: Any) -> Any:
    return None if column is None else xp.int64(column)


def python_numbers(table: Segments) -> tuple[list[int], list[Numbers]]:
    """The first step of each row, and each row as Python numbers, with None for other shapes' columns."""
    columns: dict[str, list[Any]] = {
        name: [None] * len(table.begin) if column is None else column.tolist()
        for name, column in joined(np, table)._asdict().items()
    }
    for name in ("cosine", "root", "power", "inverse_power"):
        columns[name] = [value or None for value in columns[name]]
    rates = zip(*(columns[name] for name in (*_RATE, "rate_top")), strict=True)
    columns["rate_whole"] = [words[0] if any(words) else None for words in rates]
    return columns["begin"], [Numbers(*values) for values in zip(*columns.values(), strict=True)]


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
    if not checks.ordered(curves):
        raise TypeError(f"curves = {checks.shown(curves)} must be several Curves, in order")
    curves = list(curves)
    for curve in curves:
        if not isinstance(getattr(curve, "segments", None), Segments):
            raise TypeError(f"curves holds {checks.shown(curve)}; it must hold Curves")
    tables: list[Segments] = [curve.segments for curve in curves]
    if not tables:
        raise ValueError("curves is empty; stack needs at least one Curve")
    rows = max(len(table.begin) for table in tables)

    def padded(column: Any) -> Any:
        if column is None:
            return np.zeros(rows, np.int32)
        return np.pad(column, (0, rows - len(column)), mode="edge")

    def stacked(columns: tuple[Any, ...]) -> Any:
        if all(column is None for column in columns):
            return None
        return _frozen(np.array([padded(column) for column in columns]))

    return Segments(*map(stacked, zip(*tables, strict=True)))
