"""The phase of a straight line and of a cosine, and how far the cosine's polynomial is off."""

from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from support.numerics.bounded import Bounded, near
from support.numerics.intervals import NOTHING, Interval, alternating_rest, pi, point
from support.numerics.proven import ERROR_OF_X

from plateau_jax.numerics.arithmetic import ONE
from plateau_jax.shapes import cosine
from plateau_jax.shapes.shape import SegmentPosition

PI = pi()


def at_x(x: Bounded) -> SegmentPosition:
    return SegmentPosition(None, None, x)


def phases(count: int) -> Iterator[Bounded]:
    """Yield x as the arithmetic has it, box by box."""
    for box in Interval(0, Fraction(1, 2)).boxes(count):
        yield near(box.scaled(ONE), ERROR_OF_X, at_least=0)


@cache
def sine_coefficient(k: int) -> Interval:
    """Return half the k-th coefficient of sin(πx/2), without its sign: (π/2)²ᵏ⁺¹/(2k + 1)!/2."""
    term = PI.scaled(Fraction(ONE, 4))
    half_pi = PI.scaled(Fraction(1, 2))
    for factor in range(2, 2 * k + 2):
        term = term * half_pi.scaled(Fraction(1, factor))
    return term


def sine_error(x: Interval) -> Interval:
    """Return what half the sine's polynomial is off, with its rounded coefficients.

    The series alternates, so what it omits lies between 0 and the next term.
    """
    total = NOTHING
    for k, coefficient in enumerate(cosine._SINE):
        rounding = point(coefficient) - sine_coefficient(k)
        assert rounding.magnitude <= Fraction(501, 1000), f"coefficient {k} is not the nearest"
        total += rounding.scaled((-1) ** k) * x ** (2 * k + 1)
    count = len(cosine._SINE)
    omitted = sine_coefficient(count) * x ** (2 * count + 1)
    return total + alternating_rest(count, omitted)
