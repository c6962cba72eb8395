"""The errors of the functions of `exponents`, box by box: lemmas for the proofs of four shapes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import factorial
from typing import Any
from unittest.mock import patch

from support.numerics.bounded import BOUNDED, Bounded, approximating, near
from support.numerics.intervals import (
    NOTHING,
    Interval,
    Polynomial,
    Rational,
    Variable,
    alternating_rest,
    constant,
    ln_2,
    point,
    power_of,
)

from plateau_jax.numerics import exponents
from plateau_jax.numerics.arithmetic import ONE, Operations

HALF = 2**31
ROUNDED_DOWN = Interval(-1, 0)
LN_2 = ln_2()

ERROR_OF_Y = Interval(Fraction(-5, 2), 0)
"""The error of y: of `ratio` for up to 10/7·2³¹ steps, and of a normalized t."""


def relative_error(approximation: Bounded, exact: Polynomial, one: int) -> Interval:
    """Return computed·exact - 1, for an approximation of 1/exact in units of 1/one."""
    assert isinstance(approximation.exact, Polynomial)
    unit = Fraction(1, one)
    of_formula = (approximation.exact * exact).scaled(unit) - constant(1)
    return of_formula.range + (approximation.error * exact.range).scaled(unit)


def with_relative_error(inverse: Polynomial, error: Interval, one: int) -> Bounded:
    """Return every integer that is off `inverse` by a relative error, as one more variable."""
    factor = constant(1) + power_of(Variable("relative error", error), 1)
    return near((inverse * factor).scaled(one), NOTHING)


@cache
def inverse_of_one_plus(sums: tuple[Rational, Rational]) -> Interval:
    """Return the relative error of `_inverse_of_one_plus` if 1 + y lies in this interval.

    Each Newton step starts from a number of which only the relative error e is known: (1 + e)/(1 +
    y). The formula of the step is then (1 - e²)/(1 + y) as a polynomial in e and 1/(1 + y), and its
    rounding is added.
    """
    low, high = sums
    one_plus_y = Variable("1 + y", Interval(low, high))
    exact = power_of(one_plus_y, 1)
    inverse = power_of(one_plus_y, -1)
    y = near((exact - constant(1)).scaled(ONE), ERROR_OF_Y)
    short_step = exponents._short_newton_step
    step = exponents._newton_step

    def restarted_short_step(half_sum: Bounded, approximation: Bounded) -> Bounded:
        error = relative_error(approximation, exact, HALF)
        return short_step(half_sum, with_relative_error(inverse, error, HALF))

    def restarted_step(xp: Operations, half_sum: Bounded, approximation: Bounded) -> Bounded:
        error = relative_error(approximation, exact, ONE)
        return step(xp, half_sum, with_relative_error(inverse, error, ONE))

    with (
        patch.object(exponents, "_short_newton_step", restarted_short_step),
        patch.object(exponents, "_newton_step", restarted_step),
    ):
        approximation = exponents._inverse_of_one_plus(BOUNDED, y)
    return relative_error(approximation, exact, ONE)


@dataclass(frozen=True)
class Slope:
    """B(y) = log₂(y)/(y - 1) for the y in a box, and the relative error of `half_log_slope`."""

    y: Interval
    slope: Interval
    relative_error: Interval
    logarithm: Interval
    """log₂ y"""
    integers: Interval
    """The integers that `half_log_slope` returns."""


def _omitted_from_logarithm(square: Interval) -> Interval:
    """Return what the rounded series Σ z²ᵏ/(2k + 1)/(2·ln 2) is off, for z² in an interval.

    A coefficient is rounded down. The omitted terms are below a geometric series.
    """
    total = NOTHING
    for k, coefficient in enumerate(exponents._LOGARITHM):
        exact = point(ONE) / LN_2.scaled(2 * (2 * k + 1))
        rounding = point(coefficient) - exact
        assert rounding.within(ROUNDED_DOWN), f"coefficient {k} of the logarithm"
        total += rounding * square**k
    count = len(exponents._LOGARITHM)
    first = square**count * point(ONE) / LN_2.scaled(2 * (2 * count + 1))
    rest = first / (point(1) - square)
    return total - Interval(0, rest.high)


def slope_between(low: Rational, high: Rational) -> Slope:
    """Return the bounds of `half_log_slope` for y in an interval."""
    y = Interval(low, high)
    one_plus_y = y + point(1)
    error = inverse_of_one_plus((low + 1, high + 1))
    exact = point(ONE) / one_plus_y
    inverse = near(exact, error * exact)
    with patch.object(exponents, "_inverse_of_one_plus", return_value=inverse):
        half = exponents.half_log_slope(BOUNDED, near(y.scaled(ONE), ERROR_OF_Y))
    z = (y - point(1)) / one_plus_y
    omitted = (_omitted_from_logarithm(z**2) / one_plus_y).scaled(2)
    slope = (half.exact.range - omitted).scaled(Fraction(2, ONE))
    relative = (half.error + omitted) / half.exact.range
    logarithm = slope * (y - point(1))
    return Slope(y, slope, relative, logarithm, half.computed)


@cache
def slopes() -> tuple[Slope, ...]:
    """Return the bounds on all of [5/7, 10/7], which is cut at 1: there y - 1 changes its sign."""
    margin = Fraction(1, 2**40)  # the exact y may lie a few units outside
    below_1 = Interval(Fraction(5, 7) - margin, 1)
    from_1 = Interval(1, Fraction(10, 7) + margin)
    boxes = [*below_1.boxes(8), *from_1.boxes(24)]
    return tuple(slope_between(box.low, box.high) for box in boxes)


@cache
def slopes_below_1() -> Slope:
    """Return the bounds for all y up to 1."""
    return _merged([slope for slope in slopes() if slope.y.high <= 1])


@cache
def slopes_from_1() -> Slope:
    """Return the bounds for all y from 1."""
    return _merged([slope for slope in slopes() if slope.y.low >= 1])


def _merged(slopes: Sequence[Slope]) -> Slope:
    """Return the bounds for all y in several boxes."""
    return Slope(
        y=union(slope.y for slope in slopes),
        slope=union(slope.slope for slope in slopes),
        relative_error=union(slope.relative_error for slope in slopes),
        logarithm=union(slope.logarithm for slope in slopes),
        integers=union(slope.integers for slope in slopes),
    )


def _omitted_from_exponential(u: Interval) -> Interval:
    """Return what the rounded terms differ by from e⁻ᵘ, for u up to ln 2.

    A coefficient is rounded down. The series alternates, so what it omits lies between 0 and the
    next term.
    """
    total = NOTHING
    for k, coefficient in enumerate(exponents._EXPONENTIAL):
        rounding = point(coefficient) - point(Fraction(ONE, factorial(k)))
        assert rounding.within(ROUNDED_DOWN), f"coefficient {k} of the exponential"
        total += rounding.scaled((-1) ** k) * u**k
    count = len(exponents._EXPONENTIAL)
    first = u**count * point(Fraction(ONE, factorial(count)))
    return total + alternating_rest(count, first)


@dataclass(frozen=True)
class Power:
    """2^(-E) for the E in a box: its value, and the error of `two_to_minus` for an exact E."""

    exponent: Interval
    value: Interval
    error: Interval
    integers: Interval
    """The integers that `two_to_minus` returns."""

    def error_for(self, error_of_exponent: Interval) -> Interval:
        """Return the error for an E that has an error itself, by the mean value theorem."""
        # The derivative of 2^(-E) is -ln 2·2^(-E). Next to the box, as far as the error of E
        # reaches, it is hardly larger.
        slope = (self.value * LN_2).scaled(1 + Fraction(1, 2**40))
        return self.error - slope * error_of_exponent


def _power(whole: int, box: Interval) -> Power:
    """Return the bounds of `two_to_minus` for a whole part and fractions in a box.

    The number u = f·ln 2 is the exact argument of the series that follows. Its own error comes
    after it, by the mean value theorem: the derivative of e⁻ᵘ is -e⁻ᵘ.
    """
    rounding_of_ln_2 = point(exponents._LN_2) - LN_2.scaled(ONE)
    assert rounding_of_ln_2.within(ROUNDED_DOWN), "ln 2"
    fraction = box.scaled(Fraction(1, ONE))
    errors_of_u: list[Interval] = []

    def multiply(a: Bounded, b: Any) -> Bounded:
        product = BOUNDED.multiply(a, b)
        is_u = not errors_of_u  # the first product
        if not is_u:
            return product
        errors_of_u.append(product.error + rounding_of_ln_2 * fraction)
        return approximating(product.computed, NOTHING)

    recording = BOUNDED._replace(multiply=multiply)
    result = exponents.two_to_minus(recording, whole, approximating(box, NOTHING))
    (error_of_u,) = errors_of_u
    omitted = _omitted_from_exponential(fraction * LN_2).halved(whole)
    value = (result.exact.range - omitted).scaled(Fraction(1, ONE))
    error = result.error + omitted - value * error_of_u
    return Power(fraction + point(whole), value, error, result.computed)


@cache
def powers() -> tuple[Power, ...]:
    """Return the bounds of `two_to_minus` for all E from 0 to 64; near 0 the boxes are smaller."""
    bounds: list[Power] = []
    for whole in range(64):
        for box in Interval(0, ONE - 1).boxes(_boxes_of(whole)):
            bounds.append(_power(whole, box))
    return tuple(bounds)


def _boxes_of(whole: int) -> int:
    if whole == 0:
        return 64
    if whole == 1:
        return 16
    if whole < 6:
        return 4
    return 1


def union(intervals: Iterable[Interval]) -> Interval:
    """Return the shortest interval that contains all intervals."""
    first, *others = intervals
    total = first
    for interval in others:
        total = total.union(interval)
    return total
