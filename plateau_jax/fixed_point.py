"""The arithmetic: a table of segments and a step in, the multiplier out, in integers alone.

Floating point cannot give the same bits everywhere: compilers contract a·b + c, divisions and
cosines differ between libraries. Integers can. A number v in [0, 1] is the int64 v·2⁶².

One body serves NumPy, JAX, torch and single Python ints: it takes the namespace that it runs on, and uses
only what means the same in all of them.
"""

from collections.abc import Callable, Sequence
from math import factorial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax import exact, powers
from plateau_jax.segments import (
    FIXED_BITS,
    FROM_START,
    LIMB,
    LIMB_BITS,
    NEARLY_EQUAL,
    Numbers,
    Segments,
    joined,
)

Product = Callable[[Any, Any], Any]

CHUNK = 3072
"""Steps that NumPy computes at once. A temporary array then takes 24 KiB. From 32 KiB on the allocator was
seen to return its pages to the system and to fault them in again, which doubles the time."""


def _where(condition: bool, first: int, second: int) -> int:
    return first if condition else second


_PYTHON = SimpleNamespace(int64=int, abs=abs, minimum=min, maximum=max, where=_where)


def _sine_coefficients(count: int) -> tuple[int, ...]:
    """(π/2)²ᵏ⁺¹/(2k + 1)!/2: the Taylor series of sin(πx/2), halved because π/2 is over 1."""
    half_pi, dropped = exact.PI // 2, exact.BITS - FIXED_BITS
    power = half_pi
    coefficients: list[int] = []
    for k in range(count):
        coefficients.append((power // 2 + (1 << (dropped - 1))) >> dropped)
        power = (((power * half_pi) >> exact.BITS) * half_pi) >> exact.BITS
        power //= (2 * k + 2) * (2 * k + 3)
    return tuple(coefficients)


# On [0, 1/2] the first term left out is (π/4)¹⁹/19! < 2⁻⁶³.
_SINE = _sine_coefficients(9)

_ONE = 1 << FIXED_BITS

# 1/k!: up to ln 2 the first term left out is (ln 2)¹⁹/19! < 2⁻⁶⁶.
_EXPONENTIAL = tuple(_ONE // factorial(k) for k in range(19))
_LN_2 = exact.LN_2 >> (exact.BITS - FIXED_BITS)

# (7/4 - y)·39/64 is within 9 % of 1/(2√y) on [1/4, 1]: no straight line is nearer.
_SLOPE = 39 * _ONE // 64
_INTERCEPT = 7 * _SLOPE // 4


def multiply(a: Any, b: Any) -> Any:
    """a·b/2⁶² for |a| <= 2⁶² and 0 <= b <= 2⁶², at most two units low.

    The product of the two low limbs is left out: it is worth less than one unit, and what remains
    still never decreases when a or b grows.
    """
    a_high, a_low = a >> LIMB_BITS, a & LIMB
    b_high, b_low = b >> LIMB_BITS, b & LIMB
    return a_high * b_high + ((a_high * b_low + a_low * b_high) >> LIMB_BITS)


def _half_sine_squared(x: Any, multiply: Product = multiply) -> Any:
    """(1 - cos πx)/2 = sin²(πx/2) for x in [0, 1/2], at most 7 units of 2⁻⁶² off."""
    square = multiply(x, x)
    # Alternating signs keep every inner value positive.
    series = _SINE[-1]
    for coefficient in reversed(_SINE[:-1]):
        series = coefficient - multiply(series, square)
    sine = multiply(x, series) << 1
    return multiply(sine, sine)


def _root(xp: Any, gone: Any, numbers: Numbers, multiply: Product = multiply) -> Any:
    """√(j/L) for 0 <= j < L, at most 6 units of 2⁻⁶² off.

    With y = j·4ᵏ/L in [1/4, 1) it is √y/2ᵏ. Newton's method for h = 1/(2√y) needs no division. Heron's step,
    s + (y - s²)·h, then removes most of the rounding error of s = 2yh.
    """
    length, k = xp.int64(numbers.length), 0
    for bits in (16, 8, 4, 2):
        shifted = gone << bits
        fits = shifted < length
        gone, k = xp.where(fits, shifted, gone), k + xp.where(fits, bits // 2, 0)
    y = _ratio(xp, gone, numbers)
    h = _INTERCEPT - multiply(y, _SLOPE)
    for _ in range(4):
        h = multiply(h, 3 * _ONE // 4 - multiply(y, multiply(h, h))) << 1
    root = multiply(y, h) << 1
    rest = y - multiply(root, root)
    return (root + ((rest * (h >> LIMB_BITS)) >> LIMB_BITS)) >> k


def _two_to_minus(xp: Any, whole: Any, fraction: Any, multiply: Product = multiply) -> Any:
    """2^(-whole - fraction/2⁶²), at most 8 units of 2⁻⁶² off: e⁻ᵘ for the fraction, by its Taylor series."""
    u = multiply(fraction, _LN_2)
    series = _EXPONENTIAL[-1]
    for coefficient in reversed(_EXPONENTIAL[:-1]):
        series = coefficient - multiply(series, u)
    # A series of 2⁶² and a whole part above 62 make 0 too.
    return series >> xp.minimum(whole, FIXED_BITS + 1)


def _ratio(xp: Any, steps: Any, numbers: Numbers) -> Any:
    """steps/L."""
    return steps * numbers.inverse_high + ((steps * xp.int64(numbers.inverse_low)) >> LIMB_BITS)


def evaluate(xp: Any, segments: Segments, index: Any, step: Any, multiply: Product = multiply) -> Any:
    """The multiplier at each step, given the index of the row that the step lies in.

    Args:
        xp: `numpy`; `jax.numpy` with 64-bit integers on; or what has their `int64`, `float32`, `asarray`,
            `take`, `where`, `abs`, `minimum` and `maximum`.
        segments: One table, int32.
        index: Of a row of the table, any shape.
        step: int32 or int64 in [0, 2³¹), the same shape.
        multiply: `multiply`, or what has its results.

    Returns:
        float32, the same shape.
    """
    # Column by column: a gather of whole rows is several times slower in XLA.
    numbers = Numbers(
        *(None if column is None else xp.take(column, index, mode="clip") for column in joined(xp, segments))
    )
    x, value = _interpolate(xp, numbers, step, multiply)
    # int64 to float32 rounds to nearest even, and the power of two is exact.
    multiplier = xp.asarray(value, dtype=xp.float32) * 2.0**-FIXED_BITS
    return xp.where(x == 0, numbers.level, multiplier)


def evaluate_many(table: Segments, steps: NDArray[np.int32]) -> NDArray[np.float32]:
    """The multiplier at each step, in NumPy: steps in [0, 2³¹) and the result have one shape."""
    flat = steps.ravel()
    multipliers = np.empty(flat.shape, np.float32)
    for first in range(0, flat.size, CHUNK):
        part = slice(first, first + CHUNK)
        index = table.begin.searchsorted(flat[part], side="right") - 1
        multipliers[part] = evaluate(np, table, index, flat[part])
    return multipliers.reshape(steps.shape)


def evaluate_one(begins: Sequence[int], rows: Sequence[Numbers], step: int) -> float:
    """The multiplier at one step, given the rows as Python numbers: the value of a float32."""
    # A binary search by hand, since torch's compiler cannot trace `bisect`.
    index, end = 0, len(begins)
    while end - index > 1:
        middle = (index + end) // 2
        index, end = (middle, end) if begins[middle] <= step else (index, middle)
    numbers = rows[index]
    x, value = _interpolate(_PYTHON, numbers, step)
    return numbers.level if x == 0 else exact.rounded(value, FIXED_BITS)


def _interpolate(xp: Any, numbers: Numbers, step: Any, multiply: Product = multiply) -> tuple[Any, Any]:
    """x = j/L, j counted from the nearer end, and the multiplier; both in 62 bits.

    After j of the L steps of a segment from a to b, where S(j/L) is the share of the way that its shape has
    gone, the multiplier is

        m = a - (a - b)·S(j/L)         up to the middle, and all along a square root or a "1-x^P"
        m = b + (a - b)·S((L - j)/L)   beyond it, for shapes with S(1 - x) = 1 - S(x); all along a "(1-x)^P"
        m = a·2^(-E(j))                for an exponential or a "t^-P", read backwards where it rises

    Counting from the nearer end makes both ends exact, needs S on [0, 1/2] only, and cannot leave the range
    between a and b. Levels far below 1 need more than 62 bits: where x = 0, that is where a segment starts
    and all along a flat one, the callers take the level as float32 from the table instead.
    """
    start, end = numbers.start, numbers.end
    gone = step - numbers.begin
    left = numbers.length - gone
    x = share = _ratio(xp, xp.int64(xp.minimum(gone, left)), numbers)
    from_start = gone < left
    if numbers.cosine is not None:
        share = xp.where(numbers.cosine != 0, _half_sine_squared(x, multiply), share)
    if numbers.root is not None:
        share = xp.where(numbers.root != 0, _root(xp, xp.int64(gone), numbers, multiply), share)
        from_start = from_start | (numbers.root != 0)
    if numbers.rate_whole is not None:
        from_high = xp.int64(xp.where(start < end, left, gone))
        exponent = powers.exponent(xp, gone, left, from_high, numbers, multiply)
        power = _two_to_minus(xp, *exponent, multiply)
        multiplies = (numbers.rate_whole | numbers.rate_high | numbers.rate_middle | numbers.rate_low) != 0
        if numbers.power is not None:
            is_share = numbers.power != 0
            share, multiplies = xp.where(is_share, power, share), multiplies & (numbers.power == 0)
            from_start = xp.where(is_share, numbers.power == FROM_START, from_start)
        if numbers.inverse_power is not None:
            bows = numbers.inverse_power == NEARLY_EQUAL
            share = xp.where(bows, powers.parabola(xp, from_high, numbers, multiply), share)
            from_start = xp.where(bows, start > end, from_start)
            multiplies = xp.where(
                numbers.inverse_power != 0, numbers.inverse_power != NEARLY_EQUAL, multiplies
            )
    else:
        power = multiplies = None

    # The product of absolute values, so that it is rounded alike in both directions: rounded up in one of
    # them, it would not always grow with its factors.
    way = multiply(xp.abs(start - end), share)
    way = xp.where(start < end, -way, way)
    value = xp.where(from_start, start - way, end + way)

    if multiplies is not None:
        high, low = xp.maximum(start, end), xp.minimum(start, end)
        value = xp.where(multiplies, xp.maximum(multiply(high, power), low), value)
    return x, value
