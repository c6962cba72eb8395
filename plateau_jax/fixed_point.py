"""The arithmetic: a table of segments and a step in, the multiplier out, in integers alone.

Floating point cannot give the same bits everywhere: compilers contract a·b + c, divisions and
cosines differ between libraries. Integers can. A number v in [0, 1] is the int64 v·2⁶².

The functions take the array namespace (`numpy` or `jax.numpy`) that they run on, and use of it only
what means the same in both.
"""

from types import ModuleType
from typing import Any

import numpy as np

from plateau_jax import exact
from plateau_jax.segments import FIXED_BITS, Segments

_LIMB = 31
_LOW = (1 << _LIMB) - 1


def _sine_coefficients(count: int) -> tuple[int, ...]:
    """(π/2)²ᵏ⁺¹/(2k + 1)!/2: the Taylor series of sin(πx/2), halved because π/2 is over 1."""
    half_pi, dropped = exact.PI // 2, exact.BITS - FIXED_BITS
    power = half_pi
    coefficients: list[int] = []
    for k in range(count):
        coefficients.append(power // 2 + (1 << dropped - 1) >> dropped)
        power = (power * half_pi >> exact.BITS) * half_pi >> exact.BITS
        power //= (2 * k + 2) * (2 * k + 3)
    return tuple(coefficients)


# On [0, 1/2] the first term left out is (π/4)¹⁹/19! < 2⁻⁶³.
_SINE = _sine_coefficients(9)


def _multiply(a: Any, b: Any) -> Any:
    """a·b/2⁶² for |a| <= 2⁶² and 0 <= b <= 2⁶², at most two units low.

    The product of the two low limbs is left out: it is worth less than one unit, and what remains
    still never decreases when a or b grows.
    """
    a_high, a_low = a >> _LIMB, a & _LOW
    b_high, b_low = b >> _LIMB, b & _LOW
    return a_high * b_high + (a_high * b_low + a_low * b_high >> _LIMB)


def _half_sine_squared(x: Any) -> Any:
    """(1 - cos πx)/2 = sin²(πx/2) for x in [0, 1/2]."""
    square = _multiply(x, x)
    # Alternating signs keep every inner value positive.
    series = _SINE[-1]
    for coefficient in reversed(_SINE[:-1]):
        series = coefficient - _multiply(series, square)
    sine = _multiply(x, series) << 1
    return _multiply(sine, sine)


def _join(high: Any, low: Any) -> Any:
    return (high.astype("int64") << 32) | (low.astype("int64") & 0xFFFF_FFFF)


def evaluate(xp: ModuleType, segments: Segments, row: Any, step: Any) -> Any:
    """The multiplier at each step, given the row of the table that the step lies in.

    With j steps gone of a segment of L steps from a to b, and S(x) the share of the way that its
    shape has gone at x = j/L:

        m = a - (a - b)·S(j/L)         up to the middle
        m = b + (a - b)·S((L - j)/L)   beyond it

    Blending from the nearer end makes both ends exact, needs S on [0, 1/2] only, and cannot leave
    the range between a and b.

    Args:
        xp: `numpy`, or `jax.numpy` with 64-bit integers on.
        segments: One table, int32.
        row: Index into the table, any shape.
        step: int32 in [0, 2³¹), the same shape.

    Returns:
        float32, the same shape.
    """

    def of_row(column: Any) -> Any:
        # Column by column: a gather of whole rows is several times slower in XLA.
        return xp.take(column, row, mode="clip")

    gone = step - of_row(segments.begin)
    left = of_row(segments.length) - gone
    near = xp.minimum(gone, left).astype("int64")
    inverse_high = of_row(_join(segments.inverse_high, segments.inverse_middle))
    inverse_low = of_row(segments.inverse_low).astype("int64")
    x = near * inverse_high + (near * inverse_low >> _LIMB)

    share = xp.where(of_row(segments.linear) != 0, x, _half_sine_squared(x))
    start = of_row(_join(segments.start_high, segments.start_low))
    end = of_row(_join(segments.end_high, segments.end_low))
    way = _multiply(start - end, share)
    value = xp.where(gone < left, start - way, end + way)

    # int64 to float32 rounds to nearest even, and the power of two is exact. Levels far below one
    # need more than 62 bits: where a segment starts, and all along a flat one, the table has them.
    multiplier = value.astype("float32") * np.float32(2.0**-FIXED_BITS)
    return xp.where(x == 0, of_row(segments.start).view("float32"), multiplier)
