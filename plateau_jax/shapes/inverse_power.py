"""The inverse power "t^-P": the level t^(-P), with t linear in the step.

Between the higher level h and the lower level l, falling or rising in L steps, the level is

    h·t^(-P) = h·2^(-E)    with t = 1 + j·r,  r = ((h/l)^(1/P) - 1)/L  and  E = P·log₂ t

at j steps from the end with the higher level.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import (
    FIXED_BITS,
    INVERSE_BITS,
    LIMB_BITS,
    ONE,
    Operations,
    cut_into_limbs,
    in_fixed_point,
    ratio,
)
from plateau_jax.numerics.exact import Level, rounded
from plateau_jax.numerics.exponents import (
    POWER_LIMBS,
    RATE_LIMBS,
    exponent_of_power,
    half_log_slope,
    power_limbs,
    power_times,
    steps_times_rate,
    two_to_minus,
)
from plateau_jax.shapes.shape import (
    Geometric,
    SegmentPosition,
    level_below,
    steps_from_higher_level,
)

_MAX_RATIO = Decimal(2**62)
"""The greatest (h/l)^(1/P), so that t fits into 62 bits."""

LEAST_GROWTH = Fraction(1, 1 << 22)
"""If t grows by less than this, a parabola replaces the power: see `parabola_at`."""

CENTERING = 6
"""Units of 2⁻⁶² added to P·(y - 1). All products round down, which alone would make t^(-P) up to 19
units too large, above the promised 16 (2⁻⁵⁸). With 6 it is less than 16 too large and less than 13
too small."""


class InversePower(Geometric):
    """The level t^(-P)."""

    name = "t^-P"
    powers = "0.25", "4"
    initial_power = "0.5"
    limbs: ClassVar[Mapping[str, int]] = {
        "rate": 1 + RATE_LIMBS,
        "power": POWER_LIMBS,
        "is_nearly_equal": 1,
    }

    def level(self, start: Level, end: Level, x: Fraction) -> Level:
        first = exact.power(start, -1 / self.power)
        last = exact.power(end, -1 / self.power)
        return exact.power(exact.interpolate(first, last, exact.to_decimal(x)), -self.power)

    def why_undefined(self, start: Level, end: Level) -> str:
        if start == 0 or end == 0:
            return "from or to 0 is not defined"
        if rounded(self._ratio_of_bases(start, end)) > _MAX_RATIO:
            least = f"2**-{62 * float(self.power):g}"
            return (
                f"between these levels is too steep: the lower one must be at least {least} times "
                "the higher one. Take a larger P or closer levels"
            )
        return ""

    def _ratio_of_bases(self, start: Level, end: Level) -> Decimal:
        """Return (h/l)^(1/P), the factor by which t grows."""
        return exact.power(exact.quotient(max(start, end), min(start, end)), 1 / self.power)

    def parameters(self, start: Level, end: Level, length: int) -> tuple[int, ...]:
        """Return r·2⁹³, P·2⁶², and 1 for nearly equal levels, else 0."""
        growth = Fraction(self._ratio_of_bases(start, end)) - 1
        rate = in_fixed_point(growth / length, INVERSE_BITS)
        is_nearly_equal = int(growth < LEAST_GROWTH)
        return *cut_into_limbs(rate, 1 + RATE_LIMBS), *power_limbs(self.power), is_nearly_equal

    @staticmethod
    def fixed_level(xp: Operations, at: SegmentPosition, parameters: Sequence[Any]) -> Any:
        top, *rest, is_nearly_equal = parameters
        rate = rest[:RATE_LIMBS]
        power = rest[RATE_LIMBS:]
        steps = steps_from_higher_level(xp, at)
        whole, fraction = steps_times_rate(steps, rate)
        t = 1 + steps * (top << LIMB_BITS) + whole
        curved = level_below(xp, at, inverse_power_of(xp, t, fraction, power))
        parabola = parabola_at(xp, ratio(steps, at.inverse, at.inverse_rest), fraction, power)
        high = xp.maximum(at.start, at.end)
        flat = high - xp.multiply(xp.abs(at.start - at.end), parabola)
        return xp.where(is_nearly_equal != 0, flat, curved)


def inverse_power_of(xp: Operations, whole: Any, fraction: Any, power: Sequence[Any]) -> Any:
    """Return t^(-P) in 62 bits, less than 16 units off, for t = whole + fraction from 1 to 2⁶²."""
    # With t = 2ᵏ·y and y near 1, E = P·k + P·(y - 1)·B(y).
    k, y_minus_1 = normalize(xp, whole, fraction)
    product = power_times(xp, y_minus_1, power) + CENTERING
    whole = product >> FIXED_BITS
    fraction = product & (ONE - 1)
    half_slope = half_log_slope(xp, ONE + y_minus_1)
    return two_to_minus(xp, *exponent_of_power(xp, k, whole, fraction, half_slope, power))


def normalize(xp: Operations, whole: Any, fraction: Any) -> tuple[Any, Any]:
    """Return k and t/2ᵏ - 1, which lies in [-2/7, 3/7)."""
    # 11 = 2³·1.375 gives 3 and 0.375. 12 = 2³·1.5 is past 10/7, so 12 = 2⁴·0.75 gives 4 and -0.25.
    k = 0
    for bits in (32, 16, 8, 4, 2, 1):
        fits = whole >= 1 << bits
        dropped = whole & ((1 << bits) - 1)
        shifted = (dropped << (FIXED_BITS - bits)) | (fraction >> bits)
        fraction = xp.where(fits, shifted, fraction)
        whole = xp.where(fits, whole >> bits, whole)
        k = k + xp.where(fits, bits, 0)
    is_past = fraction >= 3 * ONE // 7
    k = k + xp.where(is_past, 1, 0)
    return k, xp.where(is_past, (fraction - ONE) >> 1, fraction)


def parabola_at(xp: Operations, x: Any, growth: Any, power: Sequence[Any]) -> Any:
    """Return S between nearly equal levels: x + (P + 1)/2·growth·(1 - x), with growth = t - 1.

    With t = 1 + g·x from one level to the other and g < 2⁻²², the omitted terms are below 4·g², and
    below 2⁻⁶² after multiplication by the difference of the levels, which is at most 4·g. S grows
    by about 2³¹ units from step to step, so it is monotone. 2^(-E) might not be: from step to step
    it may change by less than its error.
    """
    bend = (growth + power_times(xp, growth, power)) >> 1
    return x + xp.multiply(bend, ONE - x)
