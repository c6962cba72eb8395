"""The multiplier at a step, from a table of segments, in integers alone.

Floating point cannot give the same bits everywhere: compilers contract a·b + c, and divisions and
cosines differ between libraries. Integers can. A number v in [0, 1] is the int64 v·2⁶².

One body serves NumPy, JAX, torch and single Python ints: it uses only operations that mean the same
in all of them.
"""

from collections.abc import Sequence
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.numerics import exact, powers
from plateau_jax.numerics.arithmetic import (
    FIXED_BITS,
    NUMPY,
    ONE,
    PYTHON,
    DecodedSegments,
    Operations,
    ratio,
)
from plateau_jax.numerics.segments import FROM_START, NEARLY_EQUAL
from plateau_jax.numerics.shapes import SHAPES

CHUNK = 3072
"""Steps that NumPy computes at once. A temporary array then takes 24 KiB. From 32 KiB on, glibc
returns its pages to the system and faults them in again, which doubles the time."""

# 1/k!: up to ln 2 the first omitted term is (ln 2)¹⁹/19! < 2⁻⁶⁶.
_EXPONENTIAL = tuple(ONE // factorial(k) for k in range(19))
_LN_2 = exact.LN_2 >> (exact.BITS - FIXED_BITS)


def evaluate(xp: Operations, table: DecodedSegments, step: Any, first: Any = 0) -> Any:
    """Return the multiplier at each step.

    Args:
        xp: The operations of the framework. In JAX 64-bit integers must be on.
        table: The columns of one curve, from `decode_table`, of shape (rows,); or of several, of
            shape (curves, rows).
        step: int32 or int64 in [0, 2³¹), of any shape; for several curves of shape (curves, steps).
        first: For several curves, the index of each one's first row in the flattened columns, of
            shape (curves, 1).

    Returns:
        float32, of the shape of `step`.
    """
    return _evaluate_rows(xp, table, step, _row_index(xp, table.begin, step, first))


def _evaluate_rows(xp: Operations, table: DecodedSegments, step: Any, index: Any) -> Any:
    """Return the multiplier at each step, which lies in the row with this index."""
    # The first step has found the row; from here on, steps count from the beginning of the phase.
    if table.phase_begin is not None:
        table = table._replace(begin=table.phase_begin, phase_begin=None)
    # Column by column: a gather of whole rows is several times slower in XLA.
    segment = table.map(lambda column: xp.take(column, index, mode="clip"))
    x, value = _interpolate(xp, segment, step)
    # int64 to float32 rounds to nearest even, and the power of two is exact.
    multiplier = xp.asarray(value, dtype=xp.float32) * 2.0**-FIXED_BITS
    return xp.where(x == 0, segment.level, multiplier)


def _row_index(xp: Operations, begin: Any, step: Any, first: Any) -> Any:
    """Return the index of the last row that begins at or before each step, plus `first`.

    Written out because `jnp.searchsorted` fails inside a `shard_map` over some axes of a mesh, and
    `torch.searchsorted` warns under vmap.
    """
    axis, rows = begin.ndim - 1, begin.shape[-1]
    # Up to about 40 rows, comparing a step with every row is faster than a binary search.
    if rows <= 40:
        # The rows become a separate axis in front of the axes of the steps, and are summed away.
        later = begin[..., 1:].reshape(*begin.shape[:-1], rows - 1, *[1] * (step.ndim - axis))
        is_past = later <= step.reshape(*step.shape[:axis], 1, *step.shape[axis:])
        return first + is_past.sum(axis, dtype=begin.dtype)
    # The index is built from its highest bit down: a bit is set if the row it leads to begins in
    # time. For 5 rows that begin at 0, 10, 20, 30, 40 and step 25: 4 is too far, 2 is not, 3 is too
    # far, so it is row 2. The number of rounds depends on the number of rows alone, so compilers
    # can unroll them.
    index = 0 * step
    for bit in reversed(range((rows - 1).bit_length())):
        further = xp.minimum(index + (1 << bit), rows - 1)
        index = xp.where(xp.take(begin, first + further, mode="clip") <= step, further, index)
    return first + index


def evaluate_many(table: DecodedSegments, steps: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the multiplier at each step, in NumPy, for steps in [0, 2³¹) of any shape."""
    flat = steps.ravel()
    multipliers = np.empty(flat.shape, np.float32)
    for begin in range(0, flat.size, CHUNK):
        part = flat[begin : begin + CHUNK]
        # NumPy's own search is several times faster than `_row_index`.
        index = np.searchsorted(table.begin, part, side="right") - 1
        multipliers[begin : begin + CHUNK] = _evaluate_rows(NUMPY, table, part, index)
    return multipliers.reshape(steps.shape)


def evaluate_one(begins: Sequence[int], rows: Sequence[DecodedSegments], step: int) -> float:
    """Return the multiplier at one step, the value of a float32, from rows in Python numbers."""
    # A binary search by hand, since torch's compiler cannot trace `bisect`.
    index, end = 0, len(begins)
    while end - index > 1:
        middle = (index + end) // 2
        index, end = (middle, end) if begins[middle] <= step else (index, middle)
    segment = rows[index]
    x, value = _interpolate(PYTHON, segment, step)
    return segment.level if x == 0 else exact.round_to_float32(value, FIXED_BITS)


def _interpolate(xp: Operations, segment: DecodedSegments, step: Any) -> tuple[Any, Any]:
    """Return x = j/L, with j counted from the nearer end, and the multiplier; both in 62 bits.

    After j of the L steps of a segment from a to b, with the shape S, the multiplier is

        m = a - (a - b)·S(j/L)         up to the middle, and all along a shape that is not symmetric
        m = b + (a - b)·S((L - j)/L) beyond it, for shapes with S(1 - x) = 1 - S(x); all along a
        "(1-x)^P" m = a·2^(-E(j)) for an exponential or a "t^-P", read backwards if it rises

    Counting from the nearer end makes both ends exact, needs S on [0, 1/2] only, and cannot leave
    the range between a and b. Levels far below 1 need more than 62 bits: at the start of a segment
    and all along a flat one, where x = 0, the callers take the level as float32 from the table
    instead.
    """
    # Why from the nearer end: 1/L is rounded down, so L·(1/L) < 1, and b would be missed. In units
    # of 1/256, with L = 3 and 1/L = 85, from a = 256 down to b = 0 in a straight line:
    #     always from a:     256 - 0·85 = 256, 256 - 1·85 = 171, 256 - 2·85 = 86, 256 - 3·85 = 1
    #     from nearer ends:  256 - 0·85 = 256, 256 - 1·85 = 171,   0 + 1·85 = 85,   0 + 0·85 = 0
    #
    # Compiled code cannot branch on a row's shape: every shape in the table is computed for every
    # step, and `where` selects. A shape that is not in the table at all costs nothing.
    start, end, multiply = segment.start, segment.end, xp.multiply
    elapsed = step - segment.begin
    remaining = segment.length - elapsed
    x = fraction = ratio(xp.int64(xp.minimum(elapsed, remaining)), segment)
    from_start = elapsed < remaining
    for name, column in segment.shapes.items():
        shape, is_shape = SHAPES[name], column != 0
        assert shape.fixed
        fraction = xp.where(is_shape, shape.fixed(xp, x, elapsed, segment), fraction)
        if not shape.is_symmetric:
            from_start = from_start | is_shape
    power = is_factor = None
    if segment.rate_whole is not None:
        from_high = xp.int64(xp.where(start < end, remaining, elapsed))
        power = _two_to_minus(xp, *powers.exponent(xp, elapsed, remaining, from_high, segment))
        # 2^(-E) is a fraction for x^P, and a factor of the higher level for an exponential and for
        # t^-P.
        is_factor = (
            segment.rate_whole | segment.rate_high | segment.rate_middle | segment.rate_low
        ) != 0
        if segment.power is not None:
            is_fraction = segment.power != 0
            fraction, is_factor = (
                xp.where(is_fraction, power, fraction),
                is_factor & (segment.power == 0),
            )
            from_start = xp.where(is_fraction, segment.power == FROM_START, from_start)
        if segment.inverse_power is not None:
            is_parabola = segment.inverse_power == NEARLY_EQUAL
            fraction = xp.where(is_parabola, powers.parabola(xp, from_high, segment), fraction)
            from_start = xp.where(is_parabola, start > end, from_start)
            is_factor = xp.where(
                segment.inverse_power != 0, segment.inverse_power != NEARLY_EQUAL, is_factor
            )

    # The product of absolute values, because with a negative factor `multiply` is not monotone.
    # With 4-bit limbs -209·255 >> 8 is -210, but -209·256 >> 8 is -209; 209·255 and 209·256 give
    # 208 and 209.
    distance = multiply(xp.abs(start - end), fraction)
    distance = xp.where(start < end, -distance, distance)
    value = xp.where(from_start, start - distance, end + distance)

    if is_factor is not None:
        # `power` may be 8 units off, so the product is kept from falling below the lower level.
        high, low = xp.maximum(start, end), xp.minimum(start, end)
        value = xp.where(is_factor, xp.maximum(multiply(high, power), low), value)
    if segment.shift is not None:
        # The exact product is at most 1; the error of `value` may carry it a few units beyond.
        value = xp.minimum(value << segment.shift, ONE)
    return x, value


def _two_to_minus(xp: Operations, whole: Any, fraction: Any) -> Any:
    """Return 2^(-whole - fraction/2⁶²), at most 8 units of 2⁻⁶² off."""
    # 2^(-f) = e⁻ᵘ with u = f·ln 2, by Horner's rule for the Taylor series: 1 - u·(1 - u·(1/2 -
    # u·(1/6 - …)))
    u = xp.multiply(fraction, _LN_2)
    series = _EXPONENTIAL[-1]
    for coefficient in reversed(_EXPONENTIAL[:-1]):
        series = coefficient - xp.multiply(series, u)
    # To shift an int64 by 64 or more is undefined in C; 63 already leaves nothing of at most 2⁶².
    return series >> xp.minimum(whole, FIXED_BITS + 1)
