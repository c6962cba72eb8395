"""The half cosine: S(x) = (1 - cos πx)/2 = sin²(πx/2)."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import FIXED_BITS, Operations
from plateau_jax.numerics.exact import Level
from plateau_jax.shapes.shape import Interpolated, SegmentPosition


class Cosine(Interpolated):
    """S(x) = (1 - cos πx)/2."""

    name = "cosine"
    counted_from = "nearer end"

    def level(self, start: Level, end: Level, x: Fraction) -> Level:
        return exact.interpolate(start, end, exact.half_cosine(x))

    @staticmethod
    def interpolant(xp: Operations, at: SegmentPosition, parameters: Sequence[Any]) -> Any:
        """Return sin²(πx/2) for x in [0, 1/2], less than 12 units of 2⁻⁶² off."""
        square = xp.multiply(at.x, at.x)
        # Horner's rule. The alternating signs of the series keep every intermediate value positive.
        series = SINE[-1]
        for coefficient in reversed(SINE[:-1]):
            series = coefficient - xp.multiply(series, square)
        sine = xp.multiply(at.x, series) << 1
        return xp.multiply(sine, sine)


def _sine_coefficients(count: int) -> tuple[int, ...]:
    """Return half the Taylor coefficients of sin(πx/2), since the first, π/2, is above 1.

    They are (π/2)²ᵏ⁺¹/(2k + 1)!/2, without their signs.
    """
    half_pi = exact.PI // 2
    dropped = exact.BITS - FIXED_BITS
    half_unit = 1 << (dropped - 1)
    coefficients: list[int] = []
    term = half_pi
    for k in range(count):
        coefficients.append((term // 2 + half_unit) >> dropped)
        term = (term * half_pi) >> exact.BITS
        term = (term * half_pi) >> exact.BITS
        term //= (2 * k + 2) * (2 * k + 3)
    return tuple(coefficients)


# On [0, 1/2] the first omitted term is (π/4)¹⁹/19! < 2⁻⁶³.
SINE = _sine_coefficients(9)
