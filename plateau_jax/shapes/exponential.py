"""The exponential: the level a^(1 - x)·b^x, which changes by the same factor at every step.

Between the higher level h and the lower level l, falling or rising in L steps, the level is

    h·2^(-j·r)    with r = log₂(h/l)/L

at j steps from the end with the higher level.
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
)
from plateau_jax.numerics.exact import Level
from plateau_jax.numerics.exponents import RATE_LIMBS, steps_times_rate, two_to_minus
from plateau_jax.shapes.shape import (
    Geometric,
    SegmentPosition,
    level_below,
    steps_from_higher_level,
)


class Exponential(Geometric):
    """The level a^(1 - x)·b^x."""

    name = "exponential"
    limbs: ClassVar[Mapping[str, int]] = {"rate": RATE_LIMBS}

    def level(self, start: Level, end: Level, x: Fraction) -> Level:
        return exact.geometric_mean(start, end, x)

    def why_undefined(self, start: Level, end: Level) -> str:
        return "from or to 0 is not defined" if start == 0 or end == 0 else ""

    def parameters(self, start: Level, end: Level, length: int) -> tuple[int, ...]:
        """Return r·2⁹³."""
        octaves = exact.log2_ratio(max(start, end), min(start, end))
        return cut_into_limbs(in_fixed_point(octaves / length, INVERSE_BITS), RATE_LIMBS)

    @staticmethod
    def fixed_level(xp: Operations, at: SegmentPosition, parameters: Sequence[Any]) -> Any:
        steps = steps_from_higher_level(xp, at)
        whole, fraction = steps_times_rate(steps, parameters)
        return level_below(xp, at, two_to_minus(xp, whole, fraction))
