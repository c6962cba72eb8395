"""The multiplier at a step, from a table of polynomials with integer coefficients.

Floating point cannot give the same bits everywhere: compilers contract a·b + c, and divisions and
cosines differ between libraries. Integers can. `evaluate` is one function for NumPy, JAX, torch and
Python's integers, and it knows no shape: `fitting` has compiled the curve into pieces.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.numerics import round_to_float32

CHUNK = 3072
"""Steps that NumPy computes at once: a temporary array then takes 24 KiB. glibc returns the pages
of arrays of 32 KiB and more to the system and faults them in again, which doubles the time."""

LIMB_BITS = 31
LIMB_MASK = (1 << LIMB_BITS) - 1


class Table(NamedTuple):
    """One curve as rows of pieces; a pytree of int32 arrays.

    A row is a number of consecutive steps. Its pieces are 2^shift steps long, and each is a
    polynomial in t, which runs from -1/2 to 1/2 over the steps of the piece:

        multiplier = (c₁₀·t¹⁰ + … + c₁·t + c₀) / 2^exponent

    The curve decides how many rows and pieces it needs. Both numbers are rounded up to powers of
    two, and a shorter table repeats its last row and piece. A curve of straight lines alone has
    pieces of degree 1. `stack` adds a leading axis to each array, and coefficients of 0 to pieces
    of lower degree.

    >>> from plateau_jax import StagedCurve
    >>> table = StagedCurve([(100, 1.0), (900,), (64, 0.5)]).table
    >>> table.begin[:6], table.high.shape
    (array([   0,    2,    4,   20,  100, 1000], dtype=int32), (2, 32))
    """

    begin: Any
    """First step of each row, of shape (rows,)."""
    shift: Any
    """The base-2 logarithm of the length of the pieces of each row. The next row may cut off the
    last piece."""
    first: Any
    """Index of the first piece of each row."""
    exponent: Any
    """The exponent of each piece, of shape (pieces,)."""
    high: Any
    """The coefficients divided by 2³¹ and rounded down, of shape (coefficients, pieces), the
    highest power first."""
    low: Any
    """The lowest 31 bits of the coefficients, of the same shape."""


class WideTable(NamedTuple):
    """The same with whole coefficients: int64 arrays, or Python's integers."""

    begin: Any
    shift: Any
    first: Any
    exponent: Any
    coefficients: Any
    """int64 of shape (coefficients, pieces); in Python, a sequence for each piece."""


class Operations(NamedTuple):
    """The functions of an array library that `evaluate` calls."""

    search: Callable[..., Any]
    """From the first steps of the rows, and steps, to the index of each step's row."""
    take: Callable[..., Any]
    coefficients: Callable[..., Any]
    """From a table, and indices of pieces, to their coefficients, the highest power first."""
    int64: Callable[..., Any]
    to_float32: Callable[..., Any]
    """From values v, the exponents e of all pieces, and the indices of the pieces of the values,
    to the float32 nearest to v/2^e, ties to even; 0 below 2⁻¹²⁶."""


def evaluate(operations: Operations, table: Any, step: Any) -> Any:
    """Return the multiplier at each step.

    Args:
        operations: The operations of the framework. In JAX 64-bit integers must be on.
        table: A `Table` or `WideTable` of one curve. In torch also that of several curves, with an
            axis of curves before the rows and the pieces.
        step: int32 or int64 in [0, 2³¹), of any shape; for several curves, of shape
            (curves, steps).

    Returns:
        float32, of the shape of `step`.
    """
    row = operations.search(table.begin, step)
    shift = operations.take(table.shift, row)
    offset = step - operations.take(table.begin, row)
    piece = operations.take(table.first, row) + (offset >> shift)
    # The place in the piece, in units of 2⁻³¹, exact. For pieces of 2³ steps, the second step has
    # the place (1 << 28) - (1 << 30), which is 1/8 - 1/2.
    shifted = operations.int64(offset) << operations.int64(LIMB_BITS - shift)
    t = (shifted & LIMB_MASK) - (1 << (LIMB_BITS - 1))
    value, *rest = operations.coefficients(table, piece)
    for coefficient in rest:
        # Horner's rule. The product value·t >> 31 is computed by halves, because int64 cannot hold
        # value·t. With 4 bits in place of 31, 0x5C·-6 >> 4 is
        #     0x5·-6 + (0xC·-6 >> 4) = -30 - 5 = -35, and 92·-6/16 = -34.5
        value = coefficient + (value >> LIMB_BITS) * t + (((value & LIMB_MASK) * t) >> LIMB_BITS)
    return operations.to_float32(value, table.exponent, piece)


def scale_down(xp: Any, rounded: Any, exponent: Any) -> Any:
    """Return a float32, 0 or at least 1, divided by 2^exponent; 0 below 2⁻¹²⁶."""
    # In the bits of the float32: a compiler may join products with two powers of two into one,
    # which underflows, and XLA flushes subnormal numbers while others don't.
    bits = rounded.view(xp.int32) - (exponent << 23)
    return xp.where(bits < 1 << 23, 0, bits).view(xp.float32)


def find_rows(take: Callable[..., Any], where: Callable[..., Any], begin: Any, step: Any) -> Any:
    """Return the index of the last row that begins at or before each step.

    A binary search, written out because `jnp.searchsorted` fails inside a `shard_map` over some
    axes of a mesh, and `torch.searchsorted` warns under vmap.
    """
    last = begin.shape[-1] - 1
    index = 0 * step
    # The bits of the index are found from the highest down: a bit is set if the row it leads to
    # begins in time. For rows that begin at 0, 10, 20, 30, 40 and step 35: row 4 does not, row 2
    # does, and row 3 does, so it is row 3. The number of rounds depends on the number of rows
    # alone, so compilers can unroll them.
    for bit in reversed(range(last.bit_length())):
        further = where(index + (1 << bit) < last, index + (1 << bit), last)
        index = where(take(begin, further) <= step, further, index)
    return index


def join_limbs(
    take: Callable[..., Any], int64: Callable[..., Any], table: Table, piece: Any
) -> Iterable[Any]:
    """Yield the coefficients of pieces of a `Table`."""
    # Column by column: a gather of whole pieces is several times slower in XLA.
    for high, low in zip(table.high, table.low, strict=True):
        yield (int64(take(high, piece)) << LIMB_BITS) | int64(take(low, piece))


def _search_in_python(begin: Sequence[int], step: int) -> int:
    return bisect_right(begin, step) - 1


def _coefficients_in_python(table: WideTable, piece: int) -> Sequence[int]:
    return table.coefficients[piece]


def _round_in_python(value: int, exponent: Sequence[int], piece: int) -> float:
    return round_to_float32(value, exponent[piece])


def _search_in_numpy(begin: NDArray[np.int32], step: NDArray[np.int32]) -> NDArray[Any]:
    # Several times faster than `find_rows`. Contiguous, because torch.compile replaces it by
    # torch.searchsorted, which warns about other arrays.
    return np.searchsorted(np.ascontiguousarray(begin), step, side="right") - 1


def _coefficients_in_numpy(table: WideTable, piece: NDArray[Any]) -> list[NDArray[np.int64]]:
    return [column.take(piece) for column in table.coefficients]


def _round_in_numpy(
    value: NDArray[np.int64], exponent: NDArray[np.int32], piece: NDArray[Any]
) -> NDArray[np.float32]:
    return scale_down(np, value.astype(np.float32), exponent.take(piece))


PYTHON = Operations(
    search=_search_in_python,
    take=getitem,
    coefficients=_coefficients_in_python,
    int64=int,
    to_float32=_round_in_python,
)

NUMPY = Operations(
    search=_search_in_numpy,
    take=np.take,
    coefficients=_coefficients_in_numpy,
    int64=np.int64,
    to_float32=_round_in_numpy,
)


def evaluate_many(table: WideTable, steps: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the multiplier at each step, in NumPy, for steps in [0, 2³¹) of any shape."""
    flat = steps.ravel()
    multipliers = np.empty(flat.shape, np.float32)
    for begin in range(0, flat.size, CHUNK):
        part = flat[begin : begin + CHUNK]
        multipliers[begin : begin + CHUNK] = evaluate(NUMPY, table, part)
    return multipliers.reshape(steps.shape)


def in_python(table: WideTable) -> WideTable:
    """Return the table in Python's integers, without leading coefficients that are 0."""
    coefficients: list[tuple[int, ...]] = []
    for piece in table.coefficients.T.tolist():
        zeros = next((place for place, c in enumerate(piece) if c), len(piece) - 1)
        coefficients.append(tuple(piece[zeros:]))
    begin, shift, first, exponent = (column.tolist() for column in table[:4])
    return WideTable(begin, shift, first, exponent, coefficients)


def in_int32(table: WideTable) -> Table:
    """Return the table in int32 alone, which JAX keeps without x64, padded to powers of two."""
    high = (table.coefficients >> LIMB_BITS).astype(np.int32)
    low = (table.coefficients & LIMB_MASK).astype(np.int32)
    limbs = Table(table.begin, table.shift, table.first, table.exponent, high, low)
    return padded(limbs, len(high), _padded_size(table.begin, 16), _padded_size(high[0], 32))


def _padded_size(column: NDArray[Any], least: int) -> int:
    return max(least, 1 << (len(column) - 1).bit_length())


def padded(table: Table, terms: int, rows: int, pieces: int) -> Table:
    """Repeat the last row and the last piece, and add leading coefficients of 0."""

    def pad(column: NDArray[np.int32], length: int) -> NDArray[np.int32]:
        return np.pad(column, (0, length - len(column)), mode="edge")

    def pad_coefficients(limbs: NDArray[np.int32]) -> NDArray[np.int32]:
        limbs = np.pad(limbs, ((terms - len(limbs), 0), (0, 0)))
        return np.pad(limbs, ((0, 0), (0, pieces - limbs.shape[1])), mode="edge")

    begin, shift, first = (pad(column, rows) for column in table[:3])
    exponent = pad(table.exponent, pieces)
    high, low = (pad_coefficients(limbs) for limbs in (table.high, table.low))
    return _read_only(Table(begin, shift, first, exponent, high, low))


def _read_only(table: Table) -> Table:
    for column in table:
        column.flags.writeable = False
    return table


def stack_tables(tables: Sequence[Table]) -> Table:
    """Stack tables: a shorter one repeats its last row and its last piece."""
    terms = max(len(table.high) for table in tables)
    rows = max(len(table.begin) for table in tables)
    pieces = max(len(table.exponent) for table in tables)
    equally_long = [padded(table, terms, rows, pieces) for table in tables]
    return _read_only(Table(*map(np.stack, zip(*equally_long, strict=True))))
