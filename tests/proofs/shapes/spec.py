"""What a shape is, and what is proved about it: the base classes of specs.

The tests read everything about shapes from their specs. A formula shares no code with the product.
A proof runs the product's integers on numbers that carry bounds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import pytest
from proofs.arithmetic.bounded import Bounded
from proofs.arithmetic.intervals import Interval

from plateau_jax.numerics.arithmetic import Operations
from plateau_jax.shapes.shape import SegmentPosition


def units(low: str, high: str) -> Interval:
    """Return an error in units of 2⁻⁶², from two decimals.

    Both ends are rounded outward to thousandths. A proof fails if it shows a smaller bound, too: it
    may have lost a part of the error.
    """
    return Interval(Fraction(low), Fraction(high))


class ShapeSpec(ABC):
    """A shape without P, or a formula for every P in its range.

    The formulas take `mp`, a context of mpmath with the precision that a test needs.
    """

    name: ClassVar[str]
    """The name that a user writes, with P in place of a number."""
    title: ClassVar[str]
    """Its row in the table of bounds in `docs/proofs.md`, which formulas of a family may share."""

    error: ClassVar[Interval]
    """How far the integers are off: S, or 1 - S, or the factor of the higher level."""
    value_error: ClassVar[Interval]
    """How far a value between any two levels is off, before it is rounded to float32."""

    samples: ClassVar[tuple[str, ...]]
    """The shape as a user writes it; of a formula, several, with each P at an end of its range."""
    other_names: ClassVar[tuple[str, ...]] = ()
    """Formulas with a P for which they are this shape."""
    file_name: ClassVar[str]
    """The golden file `long_…` with the integers of the samples, under all their names."""
    stages: ClassVar[Mapping[str, str]]
    """By the name of a golden curve `staged_…`, the shape along which it falls and rises."""

    @abstractmethod
    def level(self, mp: Any, start: Any, end: Any, x: Any, power: Any) -> Any:
        """Return the exact level at x in [0, 1]."""

    def place(self, mp: Any, start: Any, end: Any, level: Any, power: Any) -> Any:
        """Return the x at which a level is reached, by bisection; an inverse formula is faster."""
        low = mp.mpf(0)
        high = mp.mpf(1)
        for _ in range(285):
            middle = (low + high) / 2
            is_below = self.level(mp, start, end, middle, power) < level
            if is_below == (start < end):
                low = middle
            else:
                high = middle
        return low

    @abstractmethod
    def can_join(self, mp: Any, start: Any, end: Any, power: Any) -> bool:
        """Return True if the shape is defined between two levels."""

    @abstractmethod
    def prove_error(self) -> Interval:
        """Return how far the integers are off, for every x, every length and every P."""

    @abstractmethod
    def prove_monotone(self) -> None:
        """Fail unless the integers never go the wrong way from one step to the next.

        Interpolants that are counted from the nearer end have this proof up to the middle.
        """


class InterpolatedSpec(ShapeSpec):
    """A shape whose level is a + (b - a)·S(x) between level a and level b."""

    counted_from: ClassVar[Literal["start", "end", "nearer end"]]
    """The end at which every digit of a level is exact, even at level 0.

    A shape that is counted from the nearer end has S(1 - x) = 1 - S(x), and S is convex up to 1/2.
    """

    @abstractmethod
    def formula(self, mp: Any, x: Any, power: Any) -> Any:
        """Return S(x); for a shape that is counted from its end, 1 - S(x)."""

    def level(self, mp: Any, start: Any, end: Any, x: Any, power: Any) -> Any:
        if self.counted_from == "end":
            return end + (start - end) * self.formula(mp, x, power)
        return start + (end - start) * self.formula(mp, x, power)

    def can_join(self, mp: Any, start: Any, end: Any, power: Any) -> bool:
        return True

    @property
    def largest(self) -> Fraction:
        """The largest S or 1 - S that is computed."""
        if self.counted_from == "nearer end":
            return Fraction(1, 2)
        return Fraction(1)

    def counts_from_start(self, elapsed: int, remaining: int) -> bool:
        """Return True if the value at a step is counted from the start level.

        In the middle either end would do, but the bits would differ.
        """
        if self.counted_from == "nearer end":
            return elapsed < remaining
        return self.counted_from == "start"


@dataclass(frozen=True)
class ReplacedFactor:
    """A factor that is any number, in place of the one that a shape computes."""

    parameters: tuple[Any, ...]
    """What the table has for the shape."""
    check: Callable[[Operations, SegmentPosition], None]
    """Fails unless the factor was computed once since the last check, for this position."""


class GeometricSpec(ShapeSpec):
    """A shape whose level is the higher level times a factor."""

    @abstractmethod
    def most_octaves(self, power: Any) -> Any:
        """Return how many powers of two the two levels may be apart."""

    def can_join(self, mp: Any, start: Any, end: Any, power: Any) -> bool:
        if start == 0 or end == 0:
            return False
        return abs(mp.log(start / end, 2)) < self.most_octaves(power)

    @abstractmethod
    def replace_factor(self, factor: Bounded, monkeypatch: pytest.MonkeyPatch) -> ReplacedFactor:
        """Replace the functions that compute the factor by one that returns this number."""
