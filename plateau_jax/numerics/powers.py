"""The arithmetic of "x^P" and "t^-P". Both are 2^(-E) with E = P·log₂ w for a w >= 1; here E is computed.

Numbers are integers in units of 2⁻⁶². An integer k and a y in
[5/7, 10/7] are chosen so that w = 2ᵏ/y for "x^P", and w = 2ᵏ·y for "t^-P". Then

    E = P·k + a·B(y),    B(y) = log₂(y)/(y - 1)

with a = P·(1 - y) for "x^P", and P·(y - 1) for "t^-P". B lies between 1.2 and 1.7, with a relative error of
2⁻⁵⁹. For "x^P" a is the rate P/L of the table times a number of steps. So an E near 0 has all its digits for
every P, and x^P never turns: from step to step E changes by P/L, which is at least 2⁻³⁶.
"""

from typing import Any

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import (
    FIXED_BITS,
    LIMB,
    LIMB_BITS,
    ONE,
    DecodedSegments,
    Operations,
    ratio,
)
from plateau_jax.numerics.segments import FROM_START

# 2/ln 2/(2k + 1)/4: log₂(y) = 2/ln 2·(z + z³/3 + …) with z = (y - 1)/(y + 1). For y in [5/7, 10/7] is
# ∣z∣ <= 3/17, and the first term left out is below 2⁻⁶⁴ of the sum.
_LOGARITHM = tuple((ONE << exact.BITS) // (2 * exact.LN_2 * (2 * k + 1)) for k in range(12))

# c·(29/7 - s) is within 1.6 % of 1/s on [12/7, 17/7]; no straight line is nearer. In 31 bits, by d = s/2.
_SLOPE = round((2 << LIMB_BITS) * 49 / (204 + 29 * 29 / 4))
_INTERCEPT = _SLOPE * 29 // 7


def exponent(
    xp: Operations, elapsed: Any, remaining: Any, from_high: Any, numbers: DecodedSegments
) -> tuple[Any, Any]:
    """-log₂ of the factor of a shape with a rate: the whole part, and the fraction in 62 bits.

    `elapsed` and `remaining` count steps from the ends of the row, `from_high` from the end with the higher
    level.
    """
    if numbers.power is None and numbers.inverse_power is None:
        return _times_rate(from_high, numbers)
    k, y, whole, fraction = 0, ONE, 0, 0
    of_formula = False
    if numbers.power is not None:
        counted = xp.int64(xp.where(numbers.power == FROM_START, elapsed, remaining))
        length = xp.int64(numbers.length)
        k, scaled = _scaled(xp, counted, length)
        y = ratio(scaled, numbers)
        of_formula = numbers.power != 0
        from_high = xp.where(of_formula, length - scaled, from_high)
    whole, fraction = _times_rate(from_high, numbers)
    if numbers.inverse_power is not None:
        inverse = numbers.inverse_power != 0
        of_formula = of_formula | inverse
        more, above = _normalised(xp, 1 + from_high * (numbers.rate_top << LIMB_BITS) + whole, fraction)
        a = above * numbers.exponent_whole + xp.multiply(above, numbers.exponent_fraction)
        k, y = xp.where(inverse, more, k), xp.where(inverse, ONE + above, y)
        whole = xp.where(inverse, a >> FIXED_BITS, whole)
        fraction = xp.where(inverse, a & (ONE - 1), fraction)
    total = _sum(xp, k, whole, fraction, _half_logarithm(xp, y), numbers)
    return xp.where(of_formula, total[0], whole), xp.where(of_formula, total[1], fraction)


def parabola(xp: Operations, from_high: Any, numbers: DecodedSegments) -> Any:
    """The share of a "t^-P" between levels that are nearly equal, x + (P + 1)/2·r·j·(1 - x).

    With t = 1 + g·x from one level to the other, g < 2⁻²², what it leaves out is below 4·g², and less than
    2⁻⁶² once it is multiplied by the difference of the levels, 4·g at most. It grows by 2³¹ units or so from
    step to step, and never turns; 2^(-E) itself might, as its steps may be below its error.
    """
    x = ratio(from_high, numbers)
    _, growth = _times_rate(from_high, numbers)
    bow = (growth * (numbers.exponent_whole + 1) + xp.multiply(growth, numbers.exponent_fraction)) >> 1
    return x + xp.multiply(bow, ONE - x)


def _times_rate(steps: Any, numbers: DecodedSegments) -> tuple[Any, Any]:
    """steps·r below 2³¹ of r: the whole part, and the fraction in 62 bits, rounded down."""
    low = (steps * numbers.rate_low) >> LIMB_BITS
    middle = steps * numbers.rate_middle + low
    high = steps * numbers.rate_high + (middle >> LIMB_BITS)
    whole = steps * numbers.rate_whole + (high >> LIMB_BITS)
    return whole, ((high & LIMB) << LIMB_BITS) | (middle & LIMB)


def _scaled(xp: Operations, steps: Any, length: Any) -> tuple[Any, Any]:
    """k and steps·2ᵏ, the greatest below 10/7 of the length."""
    k = 0
    for bits in (16, 8, 4, 2, 1):
        shifted = steps << bits
        fits = 7 * shifted < 10 * length
        steps, k = xp.where(fits, shifted, steps), k + xp.where(fits, bits, 0)
    return k, steps


def _normalised(xp: Operations, whole: Any, fraction: Any) -> tuple[Any, Any]:
    """k and w/2ᵏ - 1 in [-2/7, 3/7), for a w from 1 to 2⁶²."""
    k = 0
    for bits in (32, 16, 8, 4, 2, 1):
        fits = whole >= 1 << bits
        dropped = whole & ((1 << bits) - 1)
        shifted = (dropped << (FIXED_BITS - bits)) | (fraction >> bits)
        fraction, whole = xp.where(fits, shifted, fraction), xp.where(fits, whole >> bits, whole)
        k = k + xp.where(fits, bits, 0)
    halved = fraction >= 3 * ONE // 7
    return k + xp.where(halved, 1, 0), xp.where(halved, (fraction - ONE) >> 1, fraction)


def _half_logarithm(xp: Operations, y: Any) -> Any:
    """log₂(y)/(y - 1)/2 for y in [5/7, 10/7], to a relative 2⁻⁵⁹."""
    multiply = xp.multiply
    half_sum = (ONE >> 1) + (y >> 1)
    # Newton's method for 1/(1 + y): two steps with 31 bits, which give 24, and two with 62.
    short = half_sum >> LIMB_BITS
    inverse = _INTERCEPT - ((short * _SLOPE) >> (LIMB_BITS - 1))
    for _ in range(2):
        inverse = (inverse * ((1 << LIMB_BITS) - ((short * inverse) >> LIMB_BITS))) >> (LIMB_BITS - 1)
    inverse = inverse << LIMB_BITS
    # `half_sum` may be above 1, which no product overflows: the sum of its factors is below 2.
    for _ in range(2):
        inverse = multiply(inverse, ONE - multiply(half_sum, inverse)) << 1
    z = multiply(xp.abs(ONE - y), inverse)
    square = multiply(z, z)
    series = _LOGARITHM[-1]
    for coefficient in reversed(_LOGARITHM[:-1]):
        series = coefficient + multiply(series, square)
    return multiply(inverse, series) << 1


def _sum(
    xp: Operations, k: Any, whole: Any, fraction: Any, half: Any, numbers: DecodedSegments
) -> tuple[Any, Any]:
    """P·k + 2·half·(whole + fraction): the whole part, and the fraction in 62 bits."""
    product = xp.multiply(fraction, half)
    low = whole * (half & LIMB) + (product & LIMB)
    high = whole * (half >> LIMB_BITS) + (product >> LIMB_BITS) + (low >> LIMB_BITS)
    low = ((low & LIMB) << 1) + k * (numbers.exponent_fraction & LIMB)
    high = (high << 1) + k * (numbers.exponent_fraction >> LIMB_BITS) + (low >> LIMB_BITS)
    return (
        k * numbers.exponent_whole + (high >> LIMB_BITS),
        ((high & LIMB) << LIMB_BITS) | (low & LIMB),
    )
