"""The numbers of the proofs: what they say about all integers holds for drawn ones.

A drawn case is a box with a number in it: an exact rational, the integer that approximates it, and
a `Bounded` that stands for both. After each operation the results must still lie in the bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.examples import examples
from support.numerics import bounded, integers
from support.numerics.bounded import BOUNDED, Bounded, near
from support.numerics.integers import Integer
from support.numerics.intervals import (
    Interval,
    Polynomial,
    Variable,
    constant,
    ln_2,
    pi,
    point,
    power_of,
)
from support.numerics.oracle import exactly, mp

from plateau_jax.numerics.arithmetic import LIMB, ONE, multiply

rationals = st.fractions(-8, 8, max_denominator=1000)
positive_rationals = st.fractions(Fraction(1, 8), 8, max_denominator=1000)


@dataclass(frozen=True)
class Inside:
    """An interval and a number in it."""

    interval: Interval
    number: Fraction


@st.composite
def numbers_inside(draw: st.DrawFn, numbers: Any = rationals) -> Inside:
    ends = [draw(numbers), draw(numbers), draw(numbers)]
    low, number, high = sorted(ends)
    return Inside(Interval(low, high), number)


@examples(200)
@given(numbers_inside(), numbers_inside(positive_rationals), st.integers(0, 5))
def test_operations_of_intervals_contain_those_of_their_numbers(one, other, exponent):
    a, b = one.number, other.number
    assert a + b in one.interval + other.interval
    assert a - b in one.interval - other.interval
    assert -a in -one.interval
    assert a * b in one.interval * other.interval
    assert a / b in one.interval / other.interval
    assert a**exponent in one.interval**exponent
    assert b**-exponent in other.interval**-exponent
    assert a / 2**exponent in one.interval.halved(exponent)
    assert a * b in one.interval.scaled(b)
    assert a in one.interval.union(other.interval)
    assert b in one.interval.union(other.interval)
    assert max(a, b) in one.interval.larger(other.interval)
    assert abs(a) <= one.interval.magnitude
    assert any(a in box for box in one.interval.boxes(7))


@given(st.integers(-50, 50), st.integers(-50, 50))
def test_intersection_and_integers_keep_what_is_in_both(a, b):
    low, high = sorted((a, b))
    wide = Interval(Fraction(low) - Fraction(1, 3), Fraction(high) + Fraction(1, 3))
    whole = wide.integers()
    assert (whole.low, whole.high) == (low, high)
    assert wide.intersection(whole).within(whole)


def test_empty_interval_is_an_error():
    with pytest.raises(AssertionError, match="without numbers"):
        Interval(1, 0)


@examples(100)
@given(numbers_inside(positive_rationals), numbers_inside(positive_rationals))
def test_polynomial_contains_its_values(one, other):
    t, e = Variable("t", one.interval), Variable("e", other.interval)
    x, y = one.number, other.number
    formula = (power_of(t, 2) - power_of(e, 1)) * (power_of(t, -1) + constant(3))
    assert (x**2 - y) * (1 / x + 3) in formula.range
    assert (formula - formula).range.magnitude == 0
    assert power_of(t, 1) * power_of(t, -1) == constant(1)


def test_constants_contain_pi_and_ln_2():
    for interval, expected in ((pi(), mp.pi), (ln_2(), mp.ln(2))):
        assert exactly(interval.low) <= expected <= exactly(interval.high)
        assert interval.high - interval.low < Fraction(1, 2**110)


# Bounded numbers.


@dataclass(frozen=True)
class Approximated:
    """An exact number, the integer that approximates it, and the bounds of both."""

    exact: Fraction
    computed: int
    bounds: Bounded

    def assert_within_bounds(self) -> None:
        assert self.exact in self.bounds.exact.range
        assert self.computed in self.bounds.computed
        assert self.computed - self.exact in self.bounds.error


@st.composite
def approximations(draw: st.DrawFn, low: int = -(2**40), high: int = 2**40) -> Approximated:
    integer = draw(st.integers(low, high))
    exact = integer + draw(st.fractions(-4, 4, max_denominator=50))
    around = [draw(st.integers(0, 2**20)), draw(st.integers(0, 2**20))]
    box = Interval(exact - around[0], exact + around[1])
    error = Interval(min(integer - exact, 0) - draw(st.integers(0, 3)), max(integer - exact, 1))
    bounds = near(box, error)
    if low >= 0:
        bounds = near(box, error, at_least=0)
    return Approximated(exact, integer, bounds)


Binary = Callable[[Any, Any], Any]


def add(a: Any, b: Any) -> Any:
    return a + b


def subtract(a: Any, b: Any) -> Any:
    return a - b


def subtract_twice(a: Any, b: Any) -> Any:
    return 7 - a - b


@pytest.mark.parametrize("operation", [add, subtract, subtract_twice])
@given(one=approximations(), other=approximations())
def test_sums_stay_within_bounds(operation: Binary, one, other):
    exact = operation(one.exact, other.exact)
    computed = operation(one.computed, other.computed)
    Approximated(exact, computed, operation(one.bounds, other.bounds)).assert_within_bounds()


@given(approximations(-(2**20), 2**20), approximations(-(2**20), 2**20), st.integers(-9, 9))
def test_products_of_integers_stay_within_bounds(one, other, factor):
    exact = one.exact * other.exact * factor
    computed = one.computed * other.computed * factor
    Approximated(exact, computed, one.bounds * other.bounds * factor).assert_within_bounds()


@examples(100)
@given(approximations(), st.integers(0, 20))
def test_shifts_stay_within_bounds(number, bits):
    left = Approximated(number.exact * 2**bits, number.computed << bits, number.bounds << bits)
    left.assert_within_bounds()
    right = Approximated(number.exact / 2**bits, number.computed >> bits, number.bounds >> bits)
    right.assert_within_bounds()


@examples(200)
@given(approximations(-ONE // 2, ONE), approximations(0, ONE))
def test_products_of_fractions_stay_within_bounds(one, other):
    exact = one.exact * other.exact / ONE
    computed = multiply(one.computed, other.computed)
    product = BOUNDED.multiply(one.bounds, other.bounds)
    Approximated(exact, computed, product).assert_within_bounds()


@given(approximations(-5, 5), approximations(-5, 5))
def test_larger_and_smaller_stay_within_bounds(one, other):
    for operation, name in ((max, "maximum"), (min, "minimum")):
        exact = operation(one.exact, other.exact)
        computed = operation(one.computed, other.computed)
        bounds = getattr(BOUNDED, name)(one.bounds, other.bounds)
        Approximated(exact, computed, bounds).assert_within_bounds()
    Approximated(abs(one.exact), abs(one.computed), abs(one.bounds)).assert_within_bounds()


@given(approximations(), st.integers(1, 40))
def test_limbs_stay_within_bounds(number, bits):
    limb = number.bounds & ((1 << bits) - 1)
    assert number.computed & ((1 << bits) - 1) in limb.computed
    assert (number.computed & LIMB) | 5 in ((number.bounds & LIMB) | bounded.integer(5, 5)).computed


@given(approximations(), approximations())
def test_comparison_has_one_outcome_or_fails(one, other):
    try:
        is_less = one.bounds < other.bounds
    except AssertionError:
        return
    assert is_less == (one.computed < other.computed)
    assert (one.bounds >= other.bounds) == (one.computed >= other.computed)
    assert (other.bounds > one.bounds) == is_less
    assert (other.bounds <= one.bounds) != is_less


def test_polynomials_keep_what_cancels():
    t = Variable("t", Interval(1, 2))
    y = near(power_of(t, 1).scaled(1000), Interval(-1, 0))
    assert (y - y).exact.range.magnitude == 0
    assert (y + 3 - y).exact.range.magnitude == 3
    assert (y * y - y * y).exact.range.magnitude == 0


def overflow_in_sum() -> Any:
    return bounded.integer(0, 2**62) + bounded.integer(0, 2**62)


def overflow_in_product() -> Any:
    return bounded.integer(0, 2**32) * bounded.integer(0, 2**31)


def overflow_of_polynomial() -> Any:
    return integers.integer("x", Interval(0, 2**62)) << 1


def operand_above_one() -> Any:
    return BOUNDED.multiply(bounded.integer(0, 3 * ONE // 2), bounded.integer(0, ONE))


def negative_operand() -> Any:
    return BOUNDED.multiply(ONE, bounded.integer(-1, ONE))


def undecided_comparison() -> Any:
    return bounded.integer(0, 9) < 5


def undecided_comparison_of_polynomials() -> Any:
    return integers.integer("x", Interval(0, 9)) >= 5


def common_bit() -> Any:
    return integers.integer("x", Interval(0, 9)) | 1


FAILURES = {
    overflow_in_sum: "int64 overflows",
    overflow_in_product: "int64 overflows",
    overflow_of_polynomial: "int64 overflows",
    operand_above_one: "operands of multiply",
    negative_operand: "operands of multiply",
    undecided_comparison: "both outcomes",
    undecided_comparison_of_polynomials: "both outcomes",
    common_bit: "a bit in common",
}


@pytest.mark.parametrize("step", FAILURES)
def test_step_that_proves_nothing_fails(step: Callable[[], Any]):
    with pytest.raises(AssertionError, match=FAILURES[step]):
        step()


# Integers as polynomials.


def value_of(polynomial: Polynomial, number: Fraction, x: Variable) -> Fraction | None:
    """Return a polynomial in x alone at a number; None if it has other variables."""
    total = Fraction()
    for monomial, coefficient in polynomial.terms.items():
        for variable, exponent in monomial:
            if variable is not x:
                return None
            coefficient *= number**exponent
        total += coefficient
    return total


@given(st.integers(0, 2**40), st.integers(1, 30), st.integers(-9, 9))
def test_digits_of_an_unknown_integer_add_up(number, bits, factor):
    x = integers.integer("x", Interval(0, 2**40))
    digits = ((x >> bits) << bits) | (x & ((1 << bits) - 1))
    assert digits.value == x.value
    assert number in digits.range
    assert (x * factor - x * (factor - 1)).value == x.value
    assert (number >> bits) in (x >> bits).range


@given(st.integers(0, 100), st.integers(3, 6))
def test_digits_that_the_range_decides_are_known(number, bits):
    size = 1 << bits
    begin = number * size
    x = integers.integer("x", Interval(begin, begin + size - 1))
    assert ((x >> bits).value - constant(number)).range.magnitude == 0
    assert (x & (size - 1)).value == x.value - constant(begin)
    assert isinstance(x + 1, Integer)
    assert x >= begin
    assert not x < begin


def test_point_is_one_number():
    assert point(3).is_point
    assert floor(point(Fraction(1, 3)).low * 3) == 0
