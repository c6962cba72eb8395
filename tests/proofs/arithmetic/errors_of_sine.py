"""The phase of a straight line and of a cosine, and the cosine with all of its error."""

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from unittest.mock import patch

from proofs.arithmetic.bounded import BOUNDED, Bounded, near, rounded
from proofs.arithmetic.intervals import Interval, pi
from proofs.arithmetic.positions import position
from proofs.arithmetic.proven import ERROR_OF_X

from plateau_jax.numerics.arithmetic import ONE, Operations
from plateau_jax.shapes import cosine
from plateau_jax.shapes.cosine import Cosine
from plateau_jax.shapes.shape import SegmentPosition

PI = pi()
PHASES = Interval(0, Fraction(1, 2))


def at_x(x: Bounded) -> SegmentPosition:
    return position(x=x)


def phases(count: int) -> Iterator[Bounded]:
    """Yield x as the arithmetic has it, box by box."""
    for box in PHASES.boxes(count):
        yield near(box.scaled(ONE), ERROR_OF_X, at_least=0)


@cache
def sine_coefficient(k: int) -> Interval:
    """Return half the k-th coefficient of sin(πx/2), without its sign: (π/2)²ᵏ⁺¹/(2k + 1)!/2."""
    term = PI.scaled(Fraction(ONE, 4))
    half_pi = PI.scaled(Fraction(1, 2))
    for factor in range(2, 2 * k + 2):
        term = term * half_pi.scaled(Fraction(1, factor))
    return term


def sine_coefficients(x: Interval) -> tuple[Bounded, ...]:
    """Return the product's coefficients as approximations of the exact ones, for x in an interval.

    The last one stands for the terms that the product omits, too. The series alternates, so they
    lie between 0 and the first of them.
    """
    count = len(cosine.SINE)
    exact = [sine_coefficient(k) for k in range(count)]
    first_omitted = sine_coefficient(count) * x**2
    exact[-1] -= Interval(0, first_omitted.high)
    return tuple(map(rounded, cosine.SINE, exact))


def cosine_at(x: Bounded, xp: Operations = BOUNDED) -> Bounded:
    """Return S at x, with the exact S and all of its error."""
    coefficients = sine_coefficients(x.exact.range.scaled(Fraction(1, ONE)))
    with patch.object(cosine, "SINE", coefficients):
        return Cosine.interpolant(xp, at_x(x), ())
