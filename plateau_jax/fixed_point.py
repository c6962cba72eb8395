"""The arithmetic: a table of segments and a step in, the multiplier out, in integers alone.

Floating point cannot give the same bits everywhere: compilers contract a·b + c, divisions and
cosines differ between libraries. Integers can. A number v in [0, 1] is the int64 v·2⁶².

One body serves NumPy, JAX and single Python ints: it takes the namespace that it runs on, and uses of
it only what means the same in all.
"""

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from plateau_jax import exact
from plateau_jax.segments import FIXED_BITS, LIMB_BITS, Numbers, Segments, joined

_LOW = (1 << LIMB_BITS) - 1


def _where(condition: bool, first: int, second: int) -> int:
    return first if condition else second


_PYTHON = SimpleNamespace(int64=int, minimum=min, where=_where)


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
    a_high, a_low = a >> LIMB_BITS, a & _LOW
    b_high, b_low = b >> LIMB_BITS, b & _LOW
    return a_high * b_high + (a_high * b_low + a_low * b_high >> LIMB_BITS)


def _half_sine_squared(x: Any) -> Any:
    """(1 - cos πx)/2 = sin²(πx/2) for x in [0, 1/2], at most 7 units of 2⁻⁶² off."""
    square = _multiply(x, x)
    # Alternating signs keep every inner value positive.
    series = _SINE[-1]
    for coefficient in reversed(_SINE[:-1]):
        series = coefficient - _multiply(series, square)
    sine = _multiply(x, series) << 1
    return _multiply(sine, sine)


def evaluate(xp: ModuleType, segments: Segments, index: Any, step: Any) -> Any:
    """The multiplier at each step, given the index of the row that the step lies in.

    Args:
        xp: `numpy`, or `jax.numpy` with 64-bit integers on.
        segments: One table, int32.
        index: Of a row of the table, any shape.
        step: int32 in [0, 2³¹), the same shape.

    Returns:
        float32, the same shape.
    """
    # Column by column: a gather of whole rows is several times slower in XLA.
    numbers = Numbers(*(xp.take(column, index, mode="clip") for column in joined(segments)))
    x, value = _interpolate(xp, numbers, step)
    # int64 to float32 rounds to nearest even, and the power of two is exact.
    multiplier = value.astype("float32") * np.float32(2.0**-FIXED_BITS)
    return xp.where(x == 0, numbers.level, multiplier)


def evaluate_one(begins: Sequence[int], rows: Sequence[Numbers], step: int) -> float:
    """The multiplier at one step, given the rows as Python numbers: the value of a float32."""
    # By hand, since torch's compiler cannot trace `bisect`.
    index, end = 0, len(begins)
    while end - index > 1:
        middle = (index + end) // 2
        index, end = (middle, end) if begins[middle] <= step else (index, middle)
    numbers = rows[index]
    x, value = _interpolate(_PYTHON, numbers, step)
    return numbers.level if x == 0 else exact.rounded(value, FIXED_BITS)


def _interpolate(xp: Any, numbers: Numbers, step: Any) -> tuple[Any, Any]:
    """x = j/L to the nearer end, and the multiplier there, both in 62 bits.

    With j steps gone of a segment of L steps from a to b, and S(x) the share of the way that its
    shape has gone at x = j/L:

        m = a - (a - b)·S(j/L)         up to the middle
        m = b + (a - b)·S((L - j)/L)   beyond it

    Blending from the nearer end makes both ends exact, needs S on [0, 1/2] only, and cannot leave
    the range between a and b. Levels far below one need more than 62 bits: where x = 0, which is
    where a segment starts and all along a flat one, the table has them.
    """
    gone = step - numbers.begin
    left = numbers.length - gone
    near = xp.int64(xp.minimum(gone, left))
    x = near * numbers.inverse_high + (near * xp.int64(numbers.inverse_low) >> LIMB_BITS)

    share = xp.where(numbers.linear != 0, x, _half_sine_squared(x))
    way = _multiply(numbers.start - numbers.end, share)
    return x, xp.where(gone < left, numbers.start - way, numbers.end + way)
