"""The multiplier at a step, from a table of segments, in integers alone.

Floating point cannot give the same bits everywhere: compilers contract a·b + c, divisions and
cosines differ between libraries. Integers can. A number v in [0, 1] is the int64 v·2⁶².

One body serves NumPy, JAX, torch and single Python ints: it uses only what means the same in all of them.
"""

from collections.abc import Sequence
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.numerics import exact, powers
from plateau_jax.numerics.arithmetic import FIXED_BITS, NUMPY, ONE, PYTHON, DecodedSegments, Operations, ratio
from plateau_jax.numerics.segments import FROM_START, NEARLY_EQUAL
from plateau_jax.numerics.shapes import SHARES

CHUNK = 3072
"""Steps that NumPy computes at once. A temporary array then takes 24 KiB. From 32 KiB on the allocator was
seen to return its pages to the system and to fault them in again, which doubles the time."""

# 1/k!: up to ln 2 the first term left out is (ln 2)¹⁹/19! < 2⁻⁶⁶.
_EXPONENTIAL = tuple(ONE // factorial(k) for k in range(19))
_LN_2 = exact.LN_2 >> (exact.BITS - FIXED_BITS)


def evaluate(xp: Operations, table: DecodedSegments, step: Any, first: Any = 0) -> Any:
    """The multiplier at each step.

    Args:
        xp: The operations of the framework. In JAX 64-bit integers must be on.
        table: The columns of one curve, from `decode_table`, of shape (rows,); or of several, of shape
            (curves, rows).
        step: int32 or int64 in [0, 2³¹), of any shape; for several curves of shape (curves, steps).
        first: For several curves, the index of the first row of each, of shape (curves, 1).

    Returns:
        float32, of the shape of `step`.
    """
    index = _row_index(xp, table.begin, step, first)
    # Column by column: a gather of whole rows is several times slower in XLA.
    numbers = table.map(lambda column: xp.take(column, index, mode="clip"))
    x, value = _interpolate(xp, numbers, step)
    # int64 to float32 rounds to nearest even, and the power of two is exact.
    multiplier = xp.asarray(value, dtype=xp.float32) * 2.0**-FIXED_BITS
    return xp.where(x == 0, numbers.level, multiplier)


def _row_index(xp: Operations, begin: Any, step: Any, first: Any) -> Any:
    """`first` and the index of the last row that begins at or before each step.

    Written out, since `jnp.searchsorted` fails inside a `shard_map` over some axes of a mesh, and
    `torch.searchsorted` warns under vmap.
    """
    axis, rows = begin.ndim - 1, begin.shape[-1]
    # Comparing with every row is faster than a search up to about 40 of them.
    if rows <= 40:
        later = begin[..., 1:].reshape(*begin.shape[:-1], rows - 1, *[1] * (step.ndim - axis))
        is_past = later <= step.reshape(*step.shape[:axis], 1, *step.shape[axis:])
        return first + is_past.sum(axis, dtype=begin.dtype)
    index = 0 * step
    for bit in reversed(range((rows - 1).bit_length())):
        further = xp.minimum(index + (1 << bit), rows - 1)
        index = xp.where(xp.take(begin, first + further, mode="clip") <= step, further, index)
    return first + index


def evaluate_many(table: DecodedSegments, steps: NDArray[np.int32]) -> NDArray[np.float32]:
    """The multiplier at each step, in NumPy: steps in [0, 2³¹) and the result have one shape."""
    flat = steps.ravel()
    multipliers = np.empty(flat.shape, np.float32)
    for begin in range(0, flat.size, CHUNK):
        part = slice(begin, begin + CHUNK)
        multipliers[part] = evaluate(NUMPY, table, flat[part])
    return multipliers.reshape(steps.shape)


def evaluate_one(begins: Sequence[int], rows: Sequence[DecodedSegments], step: int) -> float:
    """The multiplier at one step, given the rows as Python numbers: the value of a float32."""
    # A binary search by hand, since torch's compiler cannot trace `bisect`.
    index, end = 0, len(begins)
    while end - index > 1:
        middle = (index + end) // 2
        index, end = (middle, end) if begins[middle] <= step else (index, middle)
    numbers = rows[index]
    x, value = _interpolate(PYTHON, numbers, step)
    return numbers.level if x == 0 else exact.rounded(value, FIXED_BITS)


def _interpolate(xp: Operations, numbers: DecodedSegments, step: Any) -> tuple[Any, Any]:
    """x = j/L, j counted from the nearer end, and the multiplier; both in 62 bits.

    After j of the L steps of a segment from a to b, with the share S of its shape, the multiplier is

        m = a - (a - b)·S(j/L)         up to the middle, and all along a shape that is not symmetric
        m = b + (a - b)·S((L - j)/L)   beyond it, for shapes with S(1 - x) = 1 - S(x); all along a "(1-x)^P"
        m = a·2^(-E(j))                for an exponential or a "t^-P", read backwards where it rises

    Counting from the nearer end makes both ends exact, needs S on [0, 1/2] only, and cannot leave the range
    between a and b. Levels far below 1 need more than 62 bits: at the start of a segment and all along a flat
    one, where x = 0, the callers take the level as float32 from the table instead.
    """
    start, end, multiply = numbers.start, numbers.end, xp.multiply
    elapsed = step - numbers.begin
    remaining = numbers.length - elapsed
    x = share = ratio(xp.int64(xp.minimum(elapsed, remaining)), numbers)
    from_start = elapsed < remaining
    for name, column in numbers.shapes.items():
        shape, is_here = SHARES[name], column != 0
        assert shape.fixed
        share = xp.where(is_here, shape.fixed(xp, x, elapsed, numbers), share)
        if not shape.is_symmetric:
            from_start = from_start | is_here
    power = multiplies = None
    if numbers.rate_whole is not None:
        from_high = xp.int64(xp.where(start < end, remaining, elapsed))
        power = _two_to_minus(xp, *powers.exponent(xp, elapsed, remaining, from_high, numbers))
        multiplies = (numbers.rate_whole | numbers.rate_high | numbers.rate_middle | numbers.rate_low) != 0
        if numbers.power is not None:
            is_share = numbers.power != 0
            share, multiplies = xp.where(is_share, power, share), multiplies & (numbers.power == 0)
            from_start = xp.where(is_share, numbers.power == FROM_START, from_start)
        if numbers.inverse_power is not None:
            bows = numbers.inverse_power == NEARLY_EQUAL
            share = xp.where(bows, powers.parabola(xp, from_high, numbers), share)
            from_start = xp.where(bows, start > end, from_start)
            multiplies = xp.where(
                numbers.inverse_power != 0, numbers.inverse_power != NEARLY_EQUAL, multiplies
            )

    # The product of absolute values, so that it is rounded alike in both directions: rounded up in one of
    # them, it would not always grow with its factors.
    way = multiply(xp.abs(start - end), share)
    way = xp.where(start < end, -way, way)
    value = xp.where(from_start, start - way, end + way)

    if multiplies is not None:
        high, low = xp.maximum(start, end), xp.minimum(start, end)
        value = xp.where(multiplies, xp.maximum(multiply(high, power), low), value)
    return x, value


def _two_to_minus(xp: Operations, whole: Any, fraction: Any) -> Any:
    """2^(-whole - fraction/2⁶²), at most 8 units of 2⁻⁶² off: e⁻ᵘ for the fraction, by its Taylor series."""
    u = xp.multiply(fraction, _LN_2)
    series = _EXPONENTIAL[-1]
    for coefficient in reversed(_EXPONENTIAL[:-1]):
        series = coefficient - xp.multiply(series, u)
    # A series of 2⁶² and a whole part above 62 make 0 too.
    return series >> xp.minimum(whole, FIXED_BITS + 1)
