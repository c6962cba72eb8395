"""Values 2^(-E): exponentials and powers, in integers in units of 2⁻⁶².

E is stored as a whole part and a fraction of 62 bits. For an exponential, E is a number of steps
times a rate. For a power, E is P·log₂ w, with w written as 2ᵏ·y or 2ᵏ/y for a y in [5/7, 10/7]:

    P·log₂ w = P·k + P·(y - 1)·B(y) or P·k + P·(1 - y)·B(y),    B(y) = log₂(y)/(y - 1)

B lies between 1.2 and 1.7, with a relative error below 2⁻⁵⁷.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import factorial
from typing import Any

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import (
    FIXED_BITS,
    LIMB,
    LIMB_BITS,
    ONE,
    Operations,
    cut_into_limbs,
    in_fixed_point,
)

RATE_LIMBS = 4
"""Limbs of a rate r·2⁹³ below 2¹²⁴: its whole part, and three limbs of its fraction."""

POWER_LIMBS = 3
"""Limbs of P·2⁶²: its whole part, and two limbs of its fraction."""


def power_limbs(power: Fraction) -> tuple[int, ...]:
    """Return the limbs of P·2⁶², rounded to the nearest integer."""
    # Rates are rounded down. P is not, because its error is multiplied by a logarithm that may be
    # above 31.
    half_unit = Fraction(1, 2 << FIXED_BITS)
    return cut_into_limbs(in_fixed_point(power + half_unit, FIXED_BITS), POWER_LIMBS)


def power_times(xp: Operations, number: Any, power: Sequence[Any]) -> Any:
    """Return P·number in 62 bits, for P up to 4 and a number in [-2/7, 3/7]."""
    whole, high, low = power
    return number * whole + xp.multiply(number, (high << LIMB_BITS) | low)


def steps_times_rate(steps: Any, rate: Sequence[Any]) -> tuple[Any, Any]:
    """Return steps·r: the whole part, and the fraction in 62 bits, rounded down."""
    # Long multiplication, limb by limb, each carrying into the next. With 4-bit limbs, 0xB·0x0.3C5:
    #     low     0xB·0x5 >> 4           = 0x3
    #     middle  0xB·0xC + 0x3          = 0x87, of which 7 stays and 8 is carried
    #     high    0xB·0x3 + 0x8          = 0x29, of which 9 stays and 2 is carried
    #     whole   0xB·0x0 + 0x2          = 0x2, so the result is 2 and 0x97/0x100
    # instead of 0x2.977.
    rate_whole, rate_high, rate_middle, rate_low = rate
    low = (steps * rate_low) >> LIMB_BITS
    middle = steps * rate_middle + low
    high = steps * rate_high + (middle >> LIMB_BITS)
    whole = steps * rate_whole + (high >> LIMB_BITS)
    fraction = ((high & LIMB) << LIMB_BITS) | (middle & LIMB)
    return whole, fraction


# 1/k!: up to ln 2 the first omitted term is (ln 2)¹⁹/19! < 2⁻⁶⁶.
EXPONENTIAL = tuple(ONE // factorial(k) for k in range(19))
LN_2 = exact.LN_2 >> (exact.BITS - FIXED_BITS)


def two_to_minus(xp: Operations, whole: Any, fraction: Any) -> Any:
    """Return 2^(-whole - fraction/2⁶²), less than 5.6 units of 2⁻⁶² off."""
    # 2^(-f) = e⁻ᵘ with u = f·ln 2, by Horner's rule for the Taylor series of the exponential:
    # 1 - u·(1 - u·(1/2 - u·(1/6 - …)))
    u = xp.multiply(fraction, LN_2)
    series = EXPONENTIAL[-1]
    for coefficient in reversed(EXPONENTIAL[:-1]):
        series = coefficient - xp.multiply(series, u)
    # To shift an int64 by 64 or more is undefined in C; 63 already leaves nothing of at most 2⁶².
    return series >> xp.minimum(whole, FIXED_BITS + 1)


# 2/ln 2/(2k + 1)/4: log₂(y) = 2/ln 2·(z + z³/3 + …) with z = (y - 1)/(y + 1). For y in [5/7, 10/7]
# this ∣z∣ is at most 3/17, and the first omitted term is below 2⁻⁶⁴ of the sum.
LOGARITHM = tuple((ONE << exact.BITS) // (2 * exact.LN_2 * (2 * k + 1)) for k in range(12))

# The first guess for 1/s on [12/7, 17/7], with s = 1 + y: c·(29/7 - s) is within 1.6 %, the best
# that a straight line can do. Here with 31 fractional bits, as a function of s/2.
_SLOPE = round((2 << LIMB_BITS) * 49 / (204 + 29 * 29 / 4))
_INTERCEPT = _SLOPE * 29 // 7


def half_log_slope(xp: Operations, y: Any) -> Any:
    """Return B(y)/2 for y in [5/7, 10/7]: half, because B itself is above 1."""
    inverse = inverse_of_one_plus(xp, y)
    z = xp.multiply(xp.abs(ONE - y), inverse)
    square = xp.multiply(z, z)
    series = LOGARITHM[-1]
    for coefficient in reversed(LOGARITHM[:-1]):
        series = coefficient + xp.multiply(series, square)
    return xp.multiply(inverse, series) << 1


def inverse_of_one_plus(xp: Operations, y: Any) -> Any:
    """Return 1/(1 + y) for y in [5/7, 10/7]."""
    # Newton's method doubles the correct bits at each step: from 6 to 24 in 31-bit numbers, whose
    # products fit into int64, and to all of them in 62 bits.
    half_sum = (ONE >> 1) + (y >> 1)
    short_half_sum = half_sum >> LIMB_BITS
    short = _INTERCEPT - ((short_half_sum * _SLOPE) >> (LIMB_BITS - 1))
    for _ in range(2):
        short = short_newton_step(short_half_sum, short)
    inverse = short << LIMB_BITS
    for _ in range(2):
        inverse = newton_step(xp, half_sum, inverse)
    return inverse


def short_newton_step(half_sum: Any, inverse: Any) -> Any:
    """Return a better approximation of 1/(1 + y), in 31-bit numbers."""
    correction = (1 << LIMB_BITS) - ((half_sum * inverse) >> LIMB_BITS)
    return (inverse * correction) >> (LIMB_BITS - 1)


def newton_step(xp: Operations, half_sum: Any, inverse: Any) -> Any:
    """Return a better approximation of 1/(1 + y), in 62-bit numbers."""
    # `half_sum` is at most 17/14, and its factor 1/(1 + y) at most 7/12: within the range of
    # `multiply`.
    return xp.multiply(inverse, ONE - xp.multiply(half_sum, inverse)) << 1


def exponent_of_power(
    xp: Operations, k: Any, whole: Any, fraction: Any, half_slope: Any, power: Sequence[Any]
) -> tuple[Any, Any]:
    """Return E = P·k + B(y)·product: the whole part, and the fraction in 62 bits.

    The product, P·(y - 1) or P·(1 - y), is `whole` plus `fraction`, and `half_slope` is B(y)/2.
    """
    # Again limb by limb. With 4-bit limbs, P = 0x1.80 (1.5), k = 2, 3.25 = 0x3.40 and
    # half_slope = 0x0.9C:
    #     product  0x40·0x9C >> 8                = 0x27
    #     low      3·0xC + 0x7                   = 0x2B, of which B stays and 2 is carried
    #     high     3·0x9 + 0x2 + 0x2             = 0x1F
    #     low      0xB·2 + 2·0x0                 = 0x16, of which 6 stays and 1 is carried
    #     high     0x1F·2 + 2·0x8 + 0x1          = 0x4F, of which F stays and 4 is carried
    #     whole    2·1 + 0x4                     = 6, so the result is 6 and 0xF6/0x100 = 6.961
    power_whole, power_high, power_low = power
    product = xp.multiply(fraction, half_slope)
    low = whole * (half_slope & LIMB) + (product & LIMB)
    high = whole * (half_slope >> LIMB_BITS) + (product >> LIMB_BITS) + (low >> LIMB_BITS)
    low = ((low & LIMB) << 1) + k * power_low
    high = (high << 1) + k * power_high + (low >> LIMB_BITS)
    total_whole = k * power_whole + (high >> LIMB_BITS)
    total_fraction = ((high & LIMB) << LIMB_BITS) | (low & LIMB)
    return total_whole, total_fraction
