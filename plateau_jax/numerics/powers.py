"""The exponents of exponentials, "x^P" and "t^-P", whose values are all 2^(-E).

For an exponential, E is the r of the table times the steps j. For the other two, E = P·log₂ w with
a w >= 1: 1/x for "x^P", and for "t^-P" the t that is 1 at the higher level. All numbers are
integers in units of 2⁻⁶². An integer k and a y in [5/7, 10/7] are chosen so that w = 2ᵏ/y for
"x^P", and w = 2ᵏ·y for "t^-P". Then

    E = P·k + a·B(y),    B(y) = log₂(y)/(y - 1)

with a = P·(1 - y) for "x^P", and P·(y - 1) for "t^-P". B lies between 1.2 and 1.7, with a relative
error of 2⁻⁵⁹. For "x^P" a is the r = P/L of the table times a number of steps. So an E near 0 has
all its digits for every P, and x^P is monotone: from step to step E changes by P/L, which is at
least 2⁻³⁶.

An example: √x after 3 of 16 steps, so P = 1/2 and w = 16/3. The greatest 3·2ᵏ below 16·10/7 is 12,
so k = 2 and y = 12/16. Then a = (16 - 12)·P/L = 1/8, B = 1.66, E = 1 + 0.2075, and 2^(-E) = 0.4330
= √(3/16).
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

# 2/ln 2/(2k + 1)/4: log₂(y) = 2/ln 2·(z + z³/3 + …) with z = (y - 1)/(y + 1). For y in [5/7, 10/7]
# this ∣z∣ is at most 3/17, and the first omitted term is below 2⁻⁶⁴ of the sum.
_LOGARITHM = tuple((ONE << exact.BITS) // (2 * exact.LN_2 * (2 * k + 1)) for k in range(12))

# The guess for 1/s on [12/7, 17/7], where s = 1 + y: c·(29/7 - s) is within 1.6 %, and no straight
# line is nearer. Here with 31 fractional bits, as a function of s/2.
_SLOPE = round((2 << LIMB_BITS) * 49 / (204 + 29 * 29 / 4))
_INTERCEPT = _SLOPE * 29 // 7


def exponent(
    xp: Operations, elapsed: Any, remaining: Any, from_high: Any, segment: DecodedSegments
) -> tuple[Any, Any]:
    """Return E for the shapes whose value is 2^(-E): the whole part, and the fraction in 62 bits.

    `elapsed` and `remaining` count steps from the ends of the segment, `from_high` from the end
    with the higher level.
    """
    if segment.power is None and segment.inverse_power is None:
        return _steps_times_rate(from_high, segment)
    # One path for all three shapes: for an exponential, r·j is the result; for "x^P" it is a; for
    # "t^-P" it is t - 1, from which a follows.
    k, y = 0, ONE
    is_formula = False
    if segment.power is not None:
        counted = xp.int64(xp.where(segment.power == FROM_START, elapsed, remaining))
        length = xp.int64(segment.length)
        k, scaled = _scale_near_length(xp, counted, length)
        y = ratio(scaled, segment)
        is_formula = segment.power != 0
        from_high = xp.where(is_formula, length - scaled, from_high)
    whole, fraction = _steps_times_rate(from_high, segment)
    if segment.inverse_power is not None:
        is_inverse = segment.inverse_power != 0
        is_formula = is_formula | is_inverse
        t_whole = 1 + from_high * (segment.rate_top << LIMB_BITS) + whole
        t_k, y_minus_1 = _normalize(xp, t_whole, fraction)
        a = y_minus_1 * segment.exponent_whole + xp.multiply(y_minus_1, segment.exponent_fraction)
        k, y = xp.where(is_inverse, t_k, k), xp.where(is_inverse, ONE + y_minus_1, y)
        whole = xp.where(is_inverse, a >> FIXED_BITS, whole)
        fraction = xp.where(is_inverse, a & (ONE - 1), fraction)
    e_whole, e_fraction = _add_exponents(xp, k, whole, fraction, _half_log_slope(xp, y), segment)
    return xp.where(is_formula, e_whole, whole), xp.where(is_formula, e_fraction, fraction)


def parabola(xp: Operations, from_high: Any, segment: DecodedSegments) -> Any:
    """Return S of a "t^-P" between nearly equal levels, x + (P + 1)/2·r·j·(1 - x).

    With t = 1 + g·x from one level to the other, g < 2⁻²², the omitted terms are below 4·g², and
    less than 2⁻⁶² once multiplied by the difference of the levels, which is 4·g at most. S grows by
    about 2³¹ units from step to step, so it is monotone. 2^(-E) itself might not be: its steps may
    be smaller than its error.
    """
    x = ratio(from_high, segment)
    _, growth = _steps_times_rate(from_high, segment)
    bend = (
        growth * (segment.exponent_whole + 1) + xp.multiply(growth, segment.exponent_fraction)
    ) >> 1
    return x + xp.multiply(bend, ONE - x)


def _steps_times_rate(steps: Any, segment: DecodedSegments) -> tuple[Any, Any]:
    """Return steps·r without `rate_top`: the whole part, and the fraction in 62 bits, rounded down."""
    # Long multiplication, limb by limb, each carrying into the next. With 4-bit limbs, 0xB·0x0.3C5:
    #     low     0xB·0x5 >> 4           = 0x3
    #     middle  0xB·0xC + 0x3          = 0x87, of which 7 stays and 8 is carried
    #     high    0xB·0x3 + 0x8          = 0x29, of which 9 stays and 2 is carried
    #     whole   0xB·0x0 + 0x2          = 0x2,  so the result is 2 and 0x97/0x100 (exactly: 0x2.977)
    low = (steps * segment.rate_low) >> LIMB_BITS
    middle = steps * segment.rate_middle + low
    high = steps * segment.rate_high + (middle >> LIMB_BITS)
    whole = steps * segment.rate_whole + (high >> LIMB_BITS)
    return whole, ((high & LIMB) << LIMB_BITS) | (middle & LIMB)


def _scale_near_length(xp: Operations, steps: Any, length: Any) -> tuple[Any, Any]:
    """Return k and steps·2ᵏ, the greatest below 10/7 of the length."""
    k = 0
    for bits in (16, 8, 4, 2, 1):
        shifted = steps << bits
        fits = 7 * shifted < 10 * length
        steps, k = xp.where(fits, shifted, steps), k + xp.where(fits, bits, 0)
    return k, steps


def _normalize(xp: Operations, whole: Any, fraction: Any) -> tuple[Any, Any]:
    """Return k and w/2ᵏ - 1 in [-2/7, 3/7), for a w from 1 to 2⁶²."""
    # 11 = 2³·1.375 gives 3 and 0.375. 12 = 2³·1.5 is past 10/7, so 12 = 2⁴·0.75 gives 4 and -0.25.
    k = 0
    for bits in (32, 16, 8, 4, 2, 1):
        fits = whole >= 1 << bits
        dropped = whole & ((1 << bits) - 1)
        shifted = (dropped << (FIXED_BITS - bits)) | (fraction >> bits)
        fraction, whole = xp.where(fits, shifted, fraction), xp.where(fits, whole >> bits, whole)
        k = k + xp.where(fits, bits, 0)
    is_past = fraction >= 3 * ONE // 7
    return k + xp.where(is_past, 1, 0), xp.where(is_past, (fraction - ONE) >> 1, fraction)


def _half_log_slope(xp: Operations, y: Any) -> Any:
    """Return B(y)/2 = log₂(y)/(y - 1)/2 for y in [5/7, 10/7], to a relative 2⁻⁵⁹. B itself is above 1."""
    multiply = xp.multiply
    half_sum = (ONE >> 1) + (y >> 1)
    # Newton's method for 1/(1 + y), which doubles the correct bits at each step: from 6 to 24 in
    # 31-bit numbers, whose products fit into int64, and to all of them in 62 bits.
    short = half_sum >> LIMB_BITS
    inverse = _INTERCEPT - ((short * _SLOPE) >> (LIMB_BITS - 1))
    for _ in range(2):
        inverse = (inverse * ((1 << LIMB_BITS) - ((short * inverse) >> LIMB_BITS))) >> (
            LIMB_BITS - 1
        )
    inverse = inverse << LIMB_BITS
    # `half_sum` may be above 1, but its factor is then so small that `multiply` does not overflow:
    # the two add up to less than 2.
    for _ in range(2):
        inverse = multiply(inverse, ONE - multiply(half_sum, inverse)) << 1
    z = multiply(xp.abs(ONE - y), inverse)
    square = multiply(z, z)
    series = _LOGARITHM[-1]
    for coefficient in reversed(_LOGARITHM[:-1]):
        series = coefficient + multiply(series, square)
    return multiply(inverse, series) << 1


def _add_exponents(
    xp: Operations, k: Any, whole: Any, fraction: Any, half: Any, segment: DecodedSegments
) -> tuple[Any, Any]:
    """Return P·k + 2·half·(whole + fraction): the whole part, and the fraction in 62 bits."""
    # Again limb by limb. With 4-bit limbs, P = 0x1.80 (1.5), k = 2, 3.25 = 0x3.40 and half =
    # 0x0.9C:
    #     product  0x40·0x9C >> 8                = 0x27
    #     low      3·0xC + 0x7                   = 0x2B, of which B stays and 2 is carried
    #     high     3·0x9 + 0x2 + 0x2             = 0x1F
    #     low      0xB·2 + 2·0x0                 = 0x16, of which 6 stays and 1 is carried
    #     high     0x1F·2 + 2·0x8 + 0x1          = 0x4F, of which F stays and 4 is carried
    #     whole    2·1 + 0x4                     = 6, so the result is 6 and 0xF6/0x100 = 6.961
    product = xp.multiply(fraction, half)
    low = whole * (half & LIMB) + (product & LIMB)
    high = whole * (half >> LIMB_BITS) + (product >> LIMB_BITS) + (low >> LIMB_BITS)
    low = ((low & LIMB) << 1) + k * (segment.exponent_fraction & LIMB)
    high = (high << 1) + k * (segment.exponent_fraction >> LIMB_BITS) + (low >> LIMB_BITS)
    return (
        k * segment.exponent_whole + (high >> LIMB_BITS),
        ((high & LIMB) << LIMB_BITS) | (low & LIMB),
    )
