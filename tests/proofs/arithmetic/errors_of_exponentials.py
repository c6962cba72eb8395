"""The errors of the functions of `exponents`, box by box: lemmas for the proofs of four shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import factorial
from unittest.mock import Mock, patch

from proofs.arithmetic.bounded import BOUNDED, Bounded, approximating, near, rounded
from proofs.arithmetic.intervals import (
    NOTHING,
    Interval,
    Polynomial,
    Rational,
    Variable,
    constant,
    ln_2,
    point,
    power_of,
    union,
)
from proofs.arithmetic.proven import ERROR_OF_Y, NORMALIZED

from plateau_jax.numerics import exponents
from plateau_jax.numerics.arithmetic import FIXED_BITS, LIMB_BITS, ONE, Operations

HALF = 1 << LIMB_BITS
LN_2 = ln_2()

MARGIN = Interval(Fraction(-1, 2**40), Fraction(1, 2**40))
"""More than any error of an E or a y, as a number: `error_for` fails otherwise."""


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
    """Return the relative error of `inverse_of_one_plus` if 1 + y lies in this interval.

    Each Newton step starts from a number of which only the relative error e is known: (1 + e)/(1 +
    y). The formula of the step is then (1 - e²)/(1 + y) as a polynomial in e and 1/(1 + y), and its
    rounding is added.
    """
    low, high = sums
    one_plus_y = Variable("1 + y", Interval(low, high))
    exact = power_of(one_plus_y, 1)
    inverse = power_of(one_plus_y, -1)
    y = near((exact - constant(1)).scaled(ONE), ERROR_OF_Y)
    short_step = exponents.short_newton_step
    step = exponents.newton_step

    def restarted_short_step(half_sum: Bounded, approximation: Bounded) -> Bounded:
        error = relative_error(approximation, exact, HALF)
        return short_step(half_sum, with_relative_error(inverse, error, HALF))

    def restarted_step(xp: Operations, half_sum: Bounded, approximation: Bounded) -> Bounded:
        error = relative_error(approximation, exact, ONE)
        return step(xp, half_sum, with_relative_error(inverse, error, ONE))

    short_steps = Mock(side_effect=restarted_short_step)
    steps = Mock(side_effect=restarted_step)
    with (
        patch.object(exponents, "short_newton_step", short_steps),
        patch.object(exponents, "newton_step", steps),
    ):
        approximation = exponents.inverse_of_one_plus(BOUNDED, y)
    assert (short_steps.call_count, steps.call_count) == (2, 2)
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


def logarithm_coefficients(square: Interval) -> tuple[Bounded, ...]:
    """Return the product's coefficients of Σ z²ᵏ/(2k + 1)/(2·ln 2) with the exact ones.

    The last one stands for the terms that the product omits, too. For z² in the interval they lie
    below a geometric series.
    """
    count = len(exponents.LOGARITHM)
    exact = [point(ONE) / LN_2.scaled(2 * (2 * k + 1)) for k in range(count + 1)]
    first_omitted = exact.pop() * square
    omitted = first_omitted / (point(1) - square)
    exact[-1] += Interval(0, omitted.high)
    return tuple(map(rounded, exponents.LOGARITHM, exact))


def slope_between(low: Rational, high: Rational) -> Slope:
    """Return the bounds of `half_log_slope` for y in an interval."""
    y = Interval(low, high)
    y_in_units = near(y.scaled(ONE), ERROR_OF_Y)
    one_plus_y = y + point(1)
    error = inverse_of_one_plus((low + 1, high + 1))
    exact = point(ONE) / one_plus_y
    inverse = Mock(return_value=near(exact, error * exact))
    z = (y - point(1)) / one_plus_y
    with (
        patch.object(exponents, "inverse_of_one_plus", inverse),
        patch.object(exponents, "LOGARITHM", logarithm_coefficients(z**2)),
    ):
        half = exponents.half_log_slope(BOUNDED, y_in_units)
    inverse.assert_called_once_with(BOUNDED, y_in_units)
    slope = half.exact.range.scaled(Fraction(2, ONE))
    relative = half.error / half.exact.range
    logarithm = slope * (y - point(1))
    return Slope(y, slope, relative, logarithm, half.computed)


@cache
def slopes() -> tuple[Slope, ...]:
    """Return the bounds on all of [5/7, 10/7], which is cut at 1: there y - 1 changes its sign."""
    below_1 = Interval((NORMALIZED + MARGIN).low, 1)
    from_1 = Interval(1, (NORMALIZED + MARGIN).high)
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


def exponential_coefficients(u: Interval) -> tuple[Bounded, ...]:
    """Return the product's coefficients of e⁻ᵘ = 1 - u + u²/2 - … with the exact ones.

    The last one stands for the terms that the product omits, too. For u in the interval, which ends
    below 1, the series alternates, so they lie between 0 and the first of them.
    """
    count = len(exponents.EXPONENTIAL)
    exact = [point(Fraction(ONE, factorial(k))) for k in range(count + 1)]
    first_omitted = exact.pop() * u
    exact[-1] -= Interval(0, first_omitted.high)
    return tuple(map(rounded, exponents.EXPONENTIAL, exact))


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
        assert error_of_exponent.scaled(Fraction(1, ONE)).within(MARGIN)
        # The derivative of 2^(-E) is -ln 2·2^(-E). Next to the box, as far as the error of E
        # reaches, it is hardly larger.
        slope = (self.value * LN_2).scaled(1 + MARGIN.high)
        return self.error - slope * error_of_exponent


def power_between(whole: int, box: Interval) -> Power:
    """Return the bounds of `two_to_minus` for a whole part and fractions in a box, in units.

    The number u = f·ln 2 is the exact argument of the series that follows. Its own error comes
    after it, by the mean value theorem: the derivative of e⁻ᵘ is -e⁻ᵘ.
    """
    fraction = approximating(box, NOTHING)
    ln_2_in_units = rounded(exponents.LN_2, LN_2.scaled(ONE))
    u = BOUNDED.multiply(fraction, ln_2_in_units)
    # All u, computed or exact, and all between them.
    any_u = approximating(u.computed.union(u.exact.range), NOTHING)

    def multiply(a: Bounded, b: Bounded) -> Bounded:
        if b is ln_2_in_units:
            assert a is fraction
            return any_u
        return BOUNDED.multiply(a, b)

    products = Mock(side_effect=multiply)
    coefficients = exponential_coefficients(any_u.exact.range.scaled(Fraction(1, ONE)))
    with (
        patch.object(exponents, "LN_2", ln_2_in_units),
        patch.object(exponents, "EXPONENTIAL", coefficients),
    ):
        recording = BOUNDED._replace(multiply=products)
        result = exponents.two_to_minus(recording, whole, fraction)
    assert products.call_count == len(coefficients)
    exponent = box.scaled(Fraction(1, ONE)) + point(whole)
    value = result.exact.range.scaled(Fraction(1, ONE))
    return Power(exponent, value, result.error - value * u.error, result.computed)


@cache
def powers() -> tuple[Power, ...]:
    """Return the bounds of `two_to_minus` for all E from 0 to 64; near 0 the boxes are smaller."""
    bounds: list[Power] = []
    for whole in range(FIXED_BITS + 2):
        for box in Interval(0, ONE).boxes(_boxes_of(whole)):
            bounds.append(power_between(whole, box))
    return tuple(bounds)


def _boxes_of(whole: int) -> int:
    if whole == 0:
        return 64
    if whole == 1:
        return 16
    if whole < 6:
        return 4
    return 1


@cache
def least_change_of_exponent() -> Fraction:
    """Return the units by which E must change so that 2^(-E) never goes the wrong way.

    Before the shift by the whole part, 2^(-f) lies in [1/2, 1] and changes by at least ln 2/2 times
    as much as E. Its error has this width. With a larger whole part the error is shifted too, and
    becomes smaller.
    """
    first = [power.error for power in powers() if power.exponent.high <= 1]
    return union(first).width / (LN_2.low / 2)
