"""Powers: "1-x^P", with S(x) = x^P, and "(1-x)^P", with S(x) = 1 - (1 - x)^P.

They are named after the level of a stage from 1 to 0. In integers, w^P = 2^(-E) with
E = P·log₂(1/w), where w is the distance from one end of the segment as a fraction of its length.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import (
    INVERSE_BITS,
    Operations,
    cut_into_limbs,
    in_fixed_point,
    ratio,
)
from plateau_jax.numerics.exact import Level
from plateau_jax.numerics.exponents import (
    POWER_LIMBS,
    RATE_LIMBS,
    exponent_of_power,
    half_log_slope,
    power_limbs,
    steps_times_rate,
    two_to_minus,
)
from plateau_jax.shapes.shape import Interpolated, SegmentPosition


class _Power(Interpolated):
    """The parameters of both powers in the table."""

    powers = "0.05", "20"
    initial_power = "2"
    limbs: ClassVar[Mapping[str, int]] = {"rate": RATE_LIMBS, "power": POWER_LIMBS}

    def parameters(self, start: Level, end: Level, length: int) -> tuple[int, ...]:
        """Return r·2⁹³ with r = P/L, and P·2⁶²."""
        rate = in_fixed_point(self.power / length, INVERSE_BITS)
        return *cut_into_limbs(rate, RATE_LIMBS), *power_limbs(self.power)


class PowerFromStart(_Power):
    """S(x) = x^P."""

    name = "1-x^P"
    equal_shapes: ClassVar[Mapping[str, str]] = {"1": "linear", "0.5": "1-sqrt"}
    counted_from = "start"

    def level(self, start: Level, end: Level, x: Fraction) -> Level:
        return exact.interpolate(start, end, exact.power(exact.to_decimal(x), self.power))

    @staticmethod
    def interpolant(xp: Operations, at: SegmentPosition, parameters: Sequence[Any]) -> Any:
        return _power_of_fraction(xp, at, at.elapsed, parameters)


class PowerFromEnd(_Power):
    """S(x) = 1 - (1 - x)^P."""

    name = "(1-x)^P"
    equal_shapes: ClassVar[Mapping[str, str]] = {"1": "linear"}
    counted_from = "end"

    def level(self, start: Level, end: Level, x: Fraction) -> Level:
        return exact.interpolate(end, start, exact.power(exact.to_decimal(1 - x), self.power))

    @staticmethod
    def interpolant(xp: Operations, at: SegmentPosition, parameters: Sequence[Any]) -> Any:
        return _power_of_fraction(xp, at, at.remaining, parameters)


def _power_of_fraction(
    xp: Operations, at: SegmentPosition, steps: Any, parameters: Sequence[Any]
) -> Any:
    """Return (steps/L)^P in 62 bits, less than 14.2 units off."""
    # With steps/L = y/2ᵏ and y near 1, E = P·k + P·(1 - y)·B(y); `exponents` defines B. The product
    # P·(1 - y) is r times a number of steps, so an E near 0 has all its digits, and x^P is
    # monotone: from step to step E changes by P/L, which is at least 2⁻³⁶.
    #
    # √x after 3 of 16 steps, so P = 1/2: the greatest 3·2ᵏ below 16·10/7 is 12, so k = 2 and
    # y = 12/16. Then P·(1 - y) = (16 - 12)·P/L = 1/8, B = 1.66, E = 1 + 0.2075, and
    # 2^(-E) = 0.4330 = √(3/16).
    rate = parameters[:RATE_LIMBS]
    power = parameters[RATE_LIMBS:]
    length = xp.int64(at.length)
    k, scaled = scale_near_length(xp, xp.int64(steps), length)
    whole, fraction = steps_times_rate(length - scaled, rate)
    half_slope = half_log_slope(xp, ratio(scaled, at.inverse, at.inverse_rest))
    return two_to_minus(xp, *exponent_of_power(xp, k, whole, fraction, half_slope, power))


def scale_near_length(xp: Operations, steps: Any, length: Any) -> tuple[Any, Any]:
    """Return k and steps·2ᵏ, the greatest below 10/7 of the length."""
    k = 0
    for bits in (16, 8, 4, 2, 1):
        shifted = steps << bits
        fits = 7 * shifted < 10 * length
        steps = xp.where(fits, shifted, steps)
        k = k + xp.where(fits, bits, 0)
    return k, steps
