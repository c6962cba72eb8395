"""The lemmas of the proofs: what they say about all numbers in a box holds for drawn ones.

A test draws an exact number and the integer that approximates it, runs the product on the integer,
and compares with the formula in 300 bits. Where the terms of a bound are small next to others, the
product is made worse, or the box a single number, so that a bound without one of them would fail.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import assume, given, strategies as st
from proofs.arithmetic import errors_of_exponentials
from proofs.arithmetic.bounded import Bounded, near
from proofs.arithmetic.errors_of_exponentials import (
    HALF,
    Power,
    Slope,
    exponential_coefficients,
    inverse_of_one_plus,
    logarithm_coefficients,
    power_between,
    powers,
    relative_error,
    slope_between,
    slopes,
    with_relative_error,
)
from proofs.arithmetic.errors_of_powers import (
    Exponent,
    any_parabola,
    error_of_inverse_power_exponent,
    error_of_power_exponent,
    exponents_in,
    omitted_from_parabola,
    omitted_from_values_on_parabola,
    powers_between,
)
from proofs.arithmetic.errors_of_root import root_of_square
from proofs.arithmetic.errors_of_sine import cosine_at, phases, sine_coefficients
from proofs.arithmetic.intervals import Interval, Variable, point, power_of
from proofs.arithmetic.multiples import Multiple, steps_scaled_by_fours, steps_scaled_by_twos
from proofs.arithmetic.positions import position
from proofs.arithmetic.proven import (
    ERROR_OF_EXPONENT,
    ERROR_OF_GROWTH,
    ERROR_OF_INVERSE,
    ERROR_OF_NORMALIZED,
    ERROR_OF_SCALED_STEPS,
    ERROR_OF_X,
    ERROR_OF_Y,
    LEAST_GROWTH,
    MAX_T,
    MOST_K_OF_T,
    MOST_K_OF_X,
    NORMALIZED,
    POWERS_OF_T,
    POWERS_OF_X,
    error_of_steps_times,
)
from support.curves.strategies import MAX_STEP, magnitudes
from support.examples import corners, examples
from support.numerics.oracle import exactly, mp

from plateau_jax.numerics import exponents
from plateau_jax.numerics.arithmetic import ONE, PYTHON, cut_into_limbs, ratio
from plateau_jax.numerics.exponents import (
    exponent_of_power,
    half_log_slope,
    power_limbs,
    power_times,
    steps_times_rate,
    two_to_minus,
)
from plateau_jax.shapes import cosine, inverse_power, power as power_shapes, root
from plateau_jax.shapes.cosine import Cosine
from plateau_jax.shapes.inverse_power import InversePower
from plateau_jax.shapes.power import PowerFromStart

UNIT = Fraction(1, ONE)
INVERSE_ONE = 2**93
PRECISION = 280


def as_fraction(number: Any) -> Fraction:
    """Return a number of 300 bits as a fraction."""
    return Fraction(int(mp.ldexp(number, PRECISION)), 2**PRECISION)


def log2(number: Fraction) -> Fraction:
    return as_fraction(mp.log(exactly(number), 2))


def two_to_the_minus(exponent: Fraction) -> Fraction:
    return as_fraction(mp.mpf(2) ** -exactly(exponent))


@dataclass(frozen=True)
class ApproximatedNumber:
    """An exact number, and the integer that approximates it in units of 2⁻⁶²."""

    exact: Fraction
    computed: int


fractions_of_one = st.fractions(0, 1, max_denominator=10**6)


@st.composite
def approximated(draw: st.DrawFn, domain: Interval, error: Interval) -> ApproximatedNumber:
    """Draw a number in the domain, and an integer that is off by an error in the interval."""
    place = draw(fractions_of_one)
    exact = domain.low + (domain.high - domain.low) * place
    least = exact * ONE + error.low
    most = exact * ONE + error.high
    computed = floor(least + (most - least) * draw(fractions_of_one))
    assume(computed >= least)
    return ApproximatedNumber(exact, computed)


normalized = approximated(NORMALIZED, ERROR_OF_Y)


def box_of_y(y: Fraction) -> Slope:
    return next(slope for slope in slopes() if y in slope.y)


# Products of steps with 1/L and with rates.

lengths = corners(1, MAX_STEP) | magnitudes(1, MAX_STEP)


def inverse_of(length: int) -> tuple[int, int]:
    """Return 1/L as a row of the table has it: 62 bits, and the next 31."""
    return divmod(INVERSE_ONE // length, HALF)


@examples(200)
@given(lengths, fractions_of_one)
def test_ratio_of_steps(length: int, place: Fraction) -> None:
    inverse, rest = inverse_of(length)
    for steps, error in (
        (floor(length * place / 2), ERROR_OF_X),
        (floor(length * place), ERROR_OF_SCALED_STEPS),
        (floor(length * place * 10 / 7), ERROR_OF_Y),
    ):
        computed = ratio(steps, inverse, rest)
        exact = Fraction(steps, length) * ONE
        assert computed - exact in error


rates = corners(0, 2**124 - 1) | magnitudes(0, 2**124 - 1)


@examples(200)
@given(corners(-MAX_STEP, MAX_STEP), rates)
def test_product_with_a_rate(steps: int, rate: int) -> None:
    limbs = cut_into_limbs(rate, 4)
    whole, fraction = steps_times_rate(steps, limbs)
    assert 0 <= fraction < ONE
    assert whole * ONE + fraction == steps * rate // HALF


@given(corners(-MAX_STEP, MAX_STEP), rates, fractions_of_one)
def test_error_of_product_with_a_rate(steps: int, rate: int, rest: Fraction) -> None:
    """The rate is rounded down by any part of a unit."""
    part = point(Fraction(steps, MAX_STEP))
    error = error_of_steps_times(ERROR_OF_INVERSE, part)
    computed = steps * rate // HALF
    exact = steps * (rate + rest) / HALF
    assert computed - exact in error


def test_error_of_product_with_a_rate_is_reached() -> None:
    """Nearly: with the longest segment, and a rate and a product that lose nearly a unit."""
    hardly = Fraction(1, 2**100)
    for steps in (MAX_STEP, -MAX_STEP, MAX_STEP // 2):
        part = point(Fraction(steps, MAX_STEP))
        error = error_of_steps_times(ERROR_OF_INVERSE, part)
        error_of_rate = Fraction(-steps, HALF)
        least = min(error_of_rate, 0) - 1
        most = max(error_of_rate, 0)
        assert abs(error.low - least) < hardly
        assert abs(error.high - most) < hardly


# The sine, its coefficients, and the cosine.


def alternating_sum(coefficients: Sequence[Bounded], x: Fraction) -> Interval:
    """Return all values of c₀ - c₁·x + c₂·x² - …, of the exact coefficients."""
    total = point(0)
    for k, coefficient in enumerate(coefficients):
        assert coefficient.computed - coefficient.exact.range == coefficient.error
        total += coefficient.exact.range.scaled((-x) ** k)
    return total


def assert_sharp(bounds: Interval, expected: Fraction, most: Fraction) -> None:
    """Check that the bounds contain a number and not much else."""
    assert expected in bounds
    assert bounds.high - bounds.low < most


@given(st.fractions(Fraction(1, 10), Fraction(1, 2), max_denominator=10**6))
def test_coefficients_of_sine_have_its_omitted_terms(x: Fraction) -> None:
    """Half the sine of πx/2, divided by x, in units."""
    coefficients = sine_coefficients(point(x))
    bounds = alternating_sum(coefficients, x**2)
    sine = as_fraction(mp.sin(mp.pi * exactly(x) / 2))
    assert_sharp(bounds, sine / x / 2 * ONE, Fraction(1, 2))


@given(st.fractions(Fraction(1, 10), Fraction(7, 10), max_denominator=10**6))
def test_coefficients_of_exponential_have_its_omitted_terms(u: Fraction) -> None:
    coefficients = exponential_coefficients(point(u))
    bounds = alternating_sum(coefficients, u)
    exponential = as_fraction(mp.exp(-exactly(u)))
    assert_sharp(bounds, exponential * ONE, Fraction(1, 10))


@given(st.fractions(Fraction(1, 10), Fraction(3, 17), max_denominator=10**6))
def test_coefficients_of_logarithm_have_its_omitted_terms(z: Fraction) -> None:
    """The inverse hyperbolic tangent of z, divided by 2·ln 2·z, in units."""
    coefficients = logarithm_coefficients(point(z**2))
    bounds = alternating_sum(coefficients, -(z**2))
    logarithm = as_fraction(mp.atanh(exactly(z)) / (2 * mp.log(2)))
    assert_sharp(bounds, logarithm / z * ONE, Fraction(1, 2))


def cosine_of(x: int) -> int:
    return Cosine.interpolant(PYTHON, position(x=x), ())


def box_of_phase(x: Fraction) -> Bounded:
    return next(box for box in phases(64) if x * ONE in box.exact.range)


def error_of_cosine(x: ApproximatedNumber) -> Fraction:
    """Check that the cosine is within the bounds of its box, and return its error."""
    box = box_of_phase(x.exact)
    bounds = cosine_at(box)
    exact = as_fraction((1 - mp.cospi(exactly(x.exact))) / 2)
    error = cosine_of(x.computed) - exact * ONE
    assert exact * ONE in bounds.exact.range
    assert error in bounds.error
    return error


half_a_segment = approximated(Interval(0, Fraction(1, 2)), ERROR_OF_X)


@given(half_a_segment)
def test_cosine(x: ApproximatedNumber) -> None:
    assume(x.computed >= 0)
    error_of_cosine(x)


# The product with shorter series and with other constants. Then one part of the error is far larger
# than the others, and the bounds must follow.


@contextmanager
def changed(module: object, name: str, place: int) -> Iterator[None]:
    """Change a coefficient of a series by 2³⁰ units, more than all roundings together."""
    coefficients = list(getattr(module, name))
    coefficients[place] += 2**30
    with patch.object(module, name, tuple(coefficients)):
        yield


@contextmanager
def shortened(module: object, name: str, count: int) -> Iterator[None]:
    """Omit all but the first coefficients of a series."""
    coefficients = getattr(module, name)
    with patch.object(module, name, coefficients[:count]):
        yield


far_from_0 = approximated(Interval(Fraction(2, 5), Fraction(1, 2)), ERROR_OF_X)


@given(far_from_0)
def test_bounds_of_cosine_follow_its_coefficients(x: ApproximatedNumber) -> None:
    with shortened(cosine, "SINE", 4):
        error = error_of_cosine(x)
    assert abs(error) > 2**30
    for place in (0, 1, 2):
        with changed(cosine, "SINE", place):
            error = error_of_cosine(x)
        assert abs(error) > 2**20


# 2^(-E).

one_octave = approximated(Interval(0, 1 - 2 * UNIT), Interval(0, 0))


def error_of_power(power: Power, whole: int, fraction: int) -> Fraction:
    """Check that 2^(-E) is within the bounds of the box, and return its error."""
    exponent = whole + fraction * UNIT
    exact = two_to_the_minus(exponent)
    computed = two_to_minus(PYTHON, whole, fraction)
    error = computed - exact * ONE
    assert exponent in power.exponent
    assert exact in power.value
    assert computed in power.integers
    assert error in power.error
    return error


def boxes_of_exponent(exponent: Fraction) -> list[Power]:
    return [power for power in powers() if exponent in power.exponent]


@examples(200)
@given(magnitudes(0, 63), corners(0, ONE - 1))
def test_two_to_minus(whole: int, fraction: int) -> None:
    boxes = boxes_of_exponent(whole + fraction * UNIT)
    assert boxes
    for power in boxes:
        error_of_power(power, whole, fraction)


fractions_of_octave = st.integers(ONE // 2, ONE - 1)


@given(fractions_of_octave)
def test_bounds_of_power_of_two_follow_its_constants(fraction: int) -> None:
    """The number u is about 2/3 of ln 2 or more."""
    with shortened(exponents, "EXPONENTIAL", 7):
        error = error_of_power(power_around(fraction), 0, fraction)
    assert abs(error) > 2**30
    for place in (0, 1, 2):
        with changed(exponents, "EXPONENTIAL", place):
            error = error_of_power(power_around(fraction), 0, fraction)
        assert abs(error) > 2**20
    with patch.object(exponents, "LN_2", exponents.LN_2 + 2**30):
        error = error_of_power(power_around(fraction), 0, fraction)
    assert abs(error) > 2**25


def power_around(fraction: int) -> Power:
    return power_between(0, Interval(fraction - 2**40, fraction + 2**40))


@given(st.integers(0, 62), fractions_of_octave, st.integers(-(2**21), 2**21))
def test_error_of_an_exponent_is_an_error_of_its_power(
    whole: int, fraction: int, error: int
) -> None:
    """The mean value theorem, for errors that outweigh the others."""
    computed_exponent = whole + fraction * UNIT
    computed = two_to_minus(PYTHON, whole, fraction)
    exact = two_to_the_minus(computed_exponent - error * UNIT)
    error_of_result = computed - exact * ONE
    for power in boxes_of_exponent(computed_exponent):
        assert error_of_result in power.error_for(point(error))


def test_error_of_an_exponent_beyond_the_margin_fails() -> None:
    power = powers()[0]
    with pytest.raises(AssertionError):
        power.error_for(point(2**23))


# B(y) and 1/(1 + y).


def slope_of(y: Fraction) -> Fraction:
    """Return B(y) = log₂(y)/(y - 1)."""
    if y == 1:
        return as_fraction(1 / mp.log(2))
    return log2(y) / (y - 1)


@given(normalized)
def test_inverse_of_one_plus(y: ApproximatedNumber) -> None:
    computed = exponents.inverse_of_one_plus(PYTHON, y.computed)
    box = box_of_y(y.exact).y
    bounds = inverse_of_one_plus((box.low + 1, box.high + 1))
    error = computed * UNIT * (1 + y.exact) - 1
    assert error in bounds


def error_of_slope(slope: Slope, y: ApproximatedNumber) -> Fraction:
    """Check that `half_log_slope` is within the bounds, and return its relative error."""
    computed = half_log_slope(PYTHON, y.computed)
    exact = slope_of(y.exact)
    error = 2 * computed * UNIT / exact - 1
    assert computed in slope.integers
    assert exact in slope.slope
    assert exact * (y.exact - 1) in slope.logarithm
    assert error in slope.relative_error
    return error


@examples(200)
@given(normalized)
def test_half_log_slope(y: ApproximatedNumber) -> None:
    error_of_slope(box_of_y(y.exact), y)


def slope_around(y: Fraction) -> Slope:
    distance = Fraction(1, 2**20)
    return slope_between(y - distance, y + distance)


far_from_1 = approximated(Interval(Fraction(13, 10), Fraction(7, 5)), ERROR_OF_Y)


@given(far_from_1)
def test_bounds_of_slope_follow_its_constants(y: ApproximatedNumber) -> None:
    with shortened(exponents, "LOGARITHM", 5):
        error = error_of_slope(slope_around(y.exact), y)
    assert abs(error) > 2**20 * UNIT
    for place in (0, 1, 2):
        with changed(exponents, "LOGARITHM", place):
            error = error_of_slope(slope_around(y.exact), y)
        assert abs(error) > 2**15 * UNIT


@given(st.fractions(Fraction(11, 10), Fraction(7, 5), max_denominator=10**6))
def test_bounds_of_slope_follow_the_error_of_y(y: Fraction) -> None:
    rounded_up = ApproximatedNumber(y, floor(y * ONE) + 2**30)
    with patch.object(errors_of_exponentials, "ERROR_OF_Y", Interval(0, 2**30)):
        inverse_of_one_plus.cache_clear()
        slope = slope_around(y)
    inverse_of_one_plus.cache_clear()
    error = error_of_slope(slope, rounded_up)
    assert abs(error) > 2**25 * UNIT


@given(st.fractions(1, 2, max_denominator=1000), st.integers(-(2**20), 2**20))
def test_relative_error_of_an_inverse(number: Fraction, units: int) -> None:
    """(1 + e)/t with a relative error e, as a polynomial and as an integer."""
    t = Variable("t", Interval(number, number + Fraction(1, 1000)))
    exact_t = number + Fraction(1, 2000)
    computed = floor(ONE / exact_t) + units
    exact_error = computed * UNIT * exact_t - 1
    inverse = power_of(t, -1)
    error_in_units = point(computed - ONE / exact_t)
    approximation = near(inverse.scaled(ONE), error_in_units)
    error = relative_error(approximation, power_of(t, 1), ONE)
    assert exact_error in error
    restarted = with_relative_error(inverse, error, ONE)
    assert computed in restarted.computed
    assert computed in restarted.exact.range


# E = P·k + B·p.


@given(
    st.integers(0, 62),
    st.fractions(Fraction(1, 20), 20, max_denominator=100),
    st.fractions(Fraction(-1, 2), Fraction(1, 2), max_denominator=100),
    st.fractions(-100, 100, max_denominator=10),
)
def test_error_of_exponent_has_all_terms_and_no_other(
    k: int, p: Fraction, octaves: Fraction, of_product: Fraction
) -> None:
    """With P off by half a unit, B by a relative error, the product, and digits lost at the end."""
    b = Fraction(3, 2)
    relative = Fraction(-1, 2**50), Fraction(1, 2**48)
    slope = Slope(point(1), point(b), Interval(*relative), point(0), point(0))
    exact = p * (k + octaves)
    exponent = Exponent(point(exact), point(p), point(k), point(octaves), slope)
    product = p * octaves / b
    errors: list[Fraction] = []
    for error_of_p in (Fraction(-1, 2), Fraction(1, 2)):
        for relative_error_of_b in relative:
            for lost in (ERROR_OF_EXPONENT.low, ERROR_OF_EXPONENT.high):
                computed_p = p + error_of_p * UNIT
                computed_b = b * (1 + relative_error_of_b)
                computed_product = product + of_product * UNIT
                computed = computed_p * k + computed_b * computed_product + lost * UNIT
                errors.append((computed - exact) * ONE)
    bounds = exponent.error(point(of_product))
    hardly = Fraction(1, 2**40)
    assert bounds.low <= min(errors) < bounds.low + hardly
    assert bounds.high - hardly < max(errors) <= bounds.high


def exponents_around(
    total: Fraction, p: Fraction, k: int, y: Fraction, family: tuple[Interval, int, int]
) -> list[Exponent]:
    """Return the boxes of E that contain P, k and y."""
    powers_of_family, most_k, sign = family
    near_total = point(total) + Interval(-UNIT, UNIT)
    boxes = exponents_in(near_total, powers_of_family, most_k, sign)
    return [box for box in boxes if p in box.power and k in box.k and y in box.slope.y]


def digits(whole: int, fraction: int) -> int:
    return whole * ONE + fraction


powers_of_x = st.fractions(*map(Fraction, PowerFromStart.powers), max_denominator=10**6)
powers_of_t = st.fractions(*map(Fraction, InversePower.powers), max_denominator=10**6)


@examples(200)
@given(lengths, fractions_of_one, powers_of_x)
def test_exponent_of_power_of_fraction(length: int, place: Fraction, p: Fraction) -> None:
    """(j/L)^P is 2^(-E) with E = P·(k - log₂ y)."""
    assume(length > 1)
    steps = min(max(1, floor(length * place)), length - 1)
    k, scaled = power_shapes.scale_near_length(PYTHON, steps, length)
    y = Fraction(scaled, length)
    total = p * (k - log2(y))
    rate = floor(p * INVERSE_ONE / length)
    whole, fraction = steps_times_rate(length - scaled, cut_into_limbs(rate, 4))
    computed_y = ratio(scaled, *inverse_of(length))
    half_slope = half_log_slope(PYTHON, computed_y)
    computed = exponent_of_power(PYTHON, k, whole, fraction, half_slope, power_limbs(p))
    error = digits(*computed) - total * ONE
    boxes = exponents_around(total, p, k, y, (POWERS_OF_X, MOST_K_OF_X, -1))
    assert boxes
    for box in boxes:
        assert error in error_of_power_exponent(box)


@examples(200)
@given(magnitudes(1, MAX_T), st.integers(0, ONE - 1), fractions_of_one, powers_of_t)
def test_exponent_of_inverse_power(whole: int, fraction: int, rest: Fraction, p: Fraction) -> None:
    """t^(-P) is 2^(-E) with E = P·(k + log₂ y), for a t that is off like a product with a rate."""
    error = ERROR_OF_GROWTH.low * rest
    t = whole + (fraction - error) * UNIT
    assume(t <= MAX_T)
    k, y_minus_1 = inverse_power.normalize(PYTHON, whole, fraction)
    y = t / 2**k
    total = p * (k + log2(y))
    limbs = power_limbs(p)
    product = power_times(PYTHON, y_minus_1, limbs) + inverse_power.CENTERING
    half_slope = half_log_slope(PYTHON, ONE + y_minus_1)
    computed = exponent_of_power(PYTHON, k, *divmod(product, ONE), half_slope, limbs)
    error_of_exponent = digits(*computed) - total * ONE
    boxes = exponents_around(total, p, k, y, (POWERS_OF_T, MOST_K_OF_T, 1))
    assert boxes
    for box in boxes:
        assert error_of_exponent in error_of_inverse_power_exponent(box)


@given(powers_of_t, corners(-2 * ONE // 7, 3 * ONE // 7))
def test_power_times(p: Fraction, number: int) -> None:
    units = floor(p * ONE + Fraction(1, 2))
    computed = power_times(PYTHON, number, power_limbs(p))
    exact = Fraction(number * units, ONE)
    assert computed - exact in Interval(-2, 0)


@given(magnitudes(1, MAX_T - 1), st.integers(0, ONE - 1), fractions_of_one)
def test_normalized_number(whole: int, fraction: int, rest: Fraction) -> None:
    """t/2ᵏ - 1 is off like t, and rounded down once more."""
    k, y_minus_1 = inverse_power.normalize(PYTHON, whole, fraction)
    assert y_minus_1 + ONE == digits(whole, fraction) >> k
    t = whole * ONE + fraction - ERROR_OF_GROWTH.low * rest
    error = y_minus_1 + ONE - t / 2**k
    assert error in ERROR_OF_NORMALIZED
    assert y_minus_1 * UNIT + 1 in NORMALIZED + Interval(-UNIT, UNIT)


@given(powers_of_x, powers_of_x, rates, fractions_of_one)
def test_powers_between(least: Fraction, most: Fraction, doublings: int, place: Fraction) -> None:
    """Each P with P·d in an interval is in the result, and the ends are."""
    domain = Interval(min(least, most), max(least, most))
    p = domain.low + (domain.high - domain.low) * place
    d = Fraction(doublings, 2**118)
    total = Interval(p * d, p * d + 1)
    doublings_around = Interval(d, d + Fraction(1, 10))
    candidates = powers_between(total, doublings_around, domain)
    assert candidates
    assert p in candidates
    assert candidates.within(domain)


# The number of steps that a shape scales.


BY_FOURS = steps_scaled_by_fours()
BY_TWOS = steps_scaled_by_twos()


@examples(400)
@given(
    lengths,
    st.sampled_from((Fraction(1), Fraction(5, 7))),
    st.integers(0, MAX_STEP.bit_length()),
    st.integers(-1, 2),
)
def test_steps_are_scaled_in_one_range(
    length: int, border: Fraction, halvings: int, distance: int
) -> None:
    """The steps are next to a border between two ranges."""
    steps = floor(length * border / 2**halvings) + distance
    assume(1 <= steps < length)
    fraction = Fraction(steps, length)
    k, _ = root.scale_by_fours(PYTHON, steps, length)
    assert ranges_with(fraction, BY_FOURS) == [k]
    k, _ = power_shapes.scale_near_length(PYTHON, steps, length)
    assert ranges_with(fraction, BY_TWOS) == [k]


def ranges_with(fraction: Fraction, ranges: list[Multiple]) -> list[int]:
    """Return the numbers of the ranges with a fraction of the length."""
    return [k for k, steps in enumerate(ranges) if steps.least <= fraction <= steps.most]


# The square root.


@examples(50)
@given(approximated(Interval(Fraction(1, 4), 1), ERROR_OF_SCALED_STEPS))
def test_root_of_a_number(y: ApproximatedNumber) -> None:
    exact = as_fraction(mp.sqrt(exactly(y.exact)))
    largest = 1 - Fraction(1, 2**32)
    assume(exact < largest)
    width = Fraction(1, 2**7)
    low = floor(exact / width) * width
    high = min(low + width, largest)
    t, bounds = root_of_square(Interval(low, high))
    error_of_formula = bounds.exact - power_of(t, 1).scaled(ONE)
    computed = root.square_root(PYTHON, y.computed)
    assert computed - exact * ONE in error_of_formula.range + bounds.error


# The parabola between nearly equal levels.


@dataclass(frozen=True)
class Parabola:
    """t^(-P) with t = 1 + g·x, and the parabola that replaces it."""

    power: Fraction
    growth: Fraction
    x: Fraction

    @property
    def interpolant(self) -> Fraction:
        """The exact S."""
        power = exactly(self.power)
        level = (1 + exactly(self.growth * self.x)) ** -power
        last = (1 + exactly(self.growth)) ** -power
        return as_fraction((1 - level) / (1 - last))

    @property
    def parabola(self) -> Fraction:
        return self.x + (self.power + 1) / 2 * self.growth * self.x * (1 - self.x)


parabolas = st.builds(
    Parabola,
    powers_of_t,
    st.fractions(LEAST_GROWTH / 2**10, LEAST_GROWTH, max_denominator=2**60),
    st.fractions(Fraction(1, 1000), 1, max_denominator=1000),
)


@given(parabolas)
def test_terms_that_the_parabola_omits(curve: Parabola) -> None:
    bounds = omitted_from_parabola(point(curve.power), point(curve.x))
    omitted = curve.interpolant - curve.parabola
    coefficient = omitted / curve.x / curve.growth**2
    assert_sharp(bounds, coefficient, Fraction(1, 10**4))


@given(parabolas)
def test_error_of_values_on_the_parabola(curve: Parabola) -> None:
    """From the level 1 down to (1 + g)^(-P), in units."""
    last = as_fraction((1 + exactly(curve.growth)) ** -exactly(curve.power))
    omitted = (curve.parabola - curve.interpolant) * (1 - last)
    assert omitted * ONE in omitted_from_values_on_parabola()


@given(parabolas, fractions_of_one, fractions_of_one)
def test_error_of_parabola(curve: Parabola, rest_of_x: Fraction, rest_of_growth: Fraction) -> None:
    x = floor(curve.x * ONE + ERROR_OF_SCALED_STEPS.low * rest_of_x)
    growth = floor(curve.growth * curve.x * ONE + ERROR_OF_GROWTH.low * rest_of_growth)
    assume(growth >= 0)
    computed = inverse_power.parabola_at(PYTHON, x, growth, power_limbs(curve.power))
    assert computed - curve.parabola * ONE in any_parabola().error
