"""The straight line: S(x) = x."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import Operations
from plateau_jax.numerics.exact import Level
from plateau_jax.shapes.shape import Interpolated, SegmentPosition


class Linear(Interpolated):
    """S(x) = x."""

    name = "linear"
    counted_from = "nearer end"

    def level(self, start: Level, end: Level, x: Fraction) -> Level:
        return exact.interpolate(start, end, exact.to_decimal(x))

    @staticmethod
    def interpolant(xp: Operations, at: SegmentPosition, parameters: Sequence[Any]) -> Any:
        return at.x  # as in `fixed_point`, which begins with it for every shape
