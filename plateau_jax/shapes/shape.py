"""Base classes of shapes: exact levels, parameters in the table, and fixed-point values."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple

from plateau_jax.numerics.arithmetic import Operations
from plateau_jax.numerics.exact import Level


class SegmentPosition(NamedTuple):
    """The position of each step in its segment of L steps, and the numbers of this segment."""

    elapsed: Any
    """Steps since the start level."""
    remaining: Any
    """Steps to the end level."""
    x: Any
    """The smaller of the two divided by L, in 62 bits."""
    length: Any
    """L."""
    inverse: Any
    """1/L in 62 bits, rounded down."""
    inverse_rest: Any
    """The next 31 bits of 1/L."""
    start: Any
    """Start level, in 62 bits."""
    end: Any
    """End level, in 62 bits."""


class Shape(ABC):
    """How a segment of L steps goes from its start level to its end level.

    A class without P is a single shape. A class with P stands for a formula, and an instance has a
    value of P.
    """

    name: ClassVar[str]
    """The name that a user writes, with P in place of a number."""
    powers: ClassVar[tuple[str, str] | None] = None
    """The least and the greatest P, as decimals; None for a shape without P."""
    initial_power: ClassVar[str | None] = None
    """The P that the design page begins with; None for a shape without P."""
    equal_shapes: ClassVar[Mapping[str, str]] = {}
    """For some values of P, the simpler name of the same shape."""

    limbs: ClassVar[Mapping[str, int]] = {}
    """The numbers that `parameters` returns, by name, in order, with their numbers of limbs."""

    def __init__(self, power: Fraction = Fraction(1)) -> None:
        self.power = power
        """P, exactly the decimal that was written; 1 for a shape without P."""

    @abstractmethod
    def level(self, start: Level, end: Level, x: Fraction) -> Level:
        """Return the exact level at x in (0, 1), for two different levels."""

    def why_undefined(self, start: Level, end: Level) -> str:
        """Explain why the shape cannot join the two levels; "" if it can."""
        return ""

    def parameters(self, start: Level, end: Level, length: int) -> tuple[int, ...]:
        """Return the limbs, of 31 bits each, that a row of the table stores."""
        return ()


CountedFrom = Literal["start", "end", "nearer end"]
"""The end of a segment from which an interpolant is counted:

    "start"         S(j/L), the fraction of the way from the start level
    "end"           1 - S(j/L), the fraction of the way from the end level
    "nearer end"    "start" up to the middle, then "end"; for shapes with S(1 - x) = 1 - S(x)
"""


class Interpolated(Shape):
    """A shape whose level is a - (a - b)·S(j/L) after j of the L steps from level a to level b.

    The interpolant S rises from S(0) = 0 to S(1) = 1 and never decreases.
    """

    counted_from: ClassVar[CountedFrom]

    @staticmethod
    @abstractmethod
    def interpolant(xp: Operations, at: SegmentPosition, parameters: Sequence[Any]) -> Any:
        """Return S in 62 bits, or 1 - S, as `counted_from` says."""


class Geometric(Shape):
    """A shape whose levels are the higher level times 2^(-E)."""

    @staticmethod
    @abstractmethod
    def fixed_level(xp: Operations, at: SegmentPosition, parameters: Sequence[Any]) -> Any:
        """Return the level in 62 bits."""


def steps_from_higher_level(xp: Operations, at: SegmentPosition) -> Any:
    """Return the steps from the end of the segment with the higher level, int64."""
    return xp.int64(xp.where(at.start < at.end, at.remaining, at.elapsed))


def level_below(xp: Operations, at: SegmentPosition, factor: Any) -> Any:
    """Return the higher level times a factor, but never less than the lower level."""
    # A factor may be a few units off.
    high = xp.maximum(at.start, at.end)
    low = xp.minimum(at.start, at.end)
    return xp.maximum(xp.multiply(high, factor), low)
