"""The numbers of the proofs: what they say about all integers holds for drawn ones.

A drawn case is a box with a number in it: an exact rational, the integer that approximates it, and
a `Bounded` that stands for both. After each operation the results must still lie in the bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from operator import eq, ge, lt, ne
from typing import Any

import pytest
from hypothesis import given, strategies as st
from proofs.arithmetic import bounded, integers
from proofs.arithmetic.bounded import BOUNDED, Bounded, near
from proofs.arithmetic.integers import Integer
from proofs.arithmetic.intervals import (
    Interval,
    Polynomial,
    Variable,
    assert_covered,
    constant,
    ln_2,
    pi,
    point,
    power_of,
)
from proofs.arithmetic.multiples import LENGTH, Multiple
from support.examples import examples
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
def test_operations_of_intervals_contain_those_of_their_numbers(
    one: Inside, other: Inside, exponent: int
) -> None:
    a = one.number
    b = other.number
    around_a = one.interval
    around_b = other.interval
    assert a + b in around_a + around_b
    assert a - b in around_a - around_b
    assert -a in -around_a
    assert a * b in around_a * around_b
    assert a / b in around_a / around_b
    assert a**exponent in around_a**exponent
    assert b**-exponent in around_b**-exponent
    assert a / 2**exponent in around_a.halved(exponent)
    assert a * b in around_a.scaled(b)
    assert a in around_a.union(around_b)
    assert b in around_a.union(around_b)
    assert max(a, b) in around_a.larger(around_b)
    assert abs(a) <= around_a.magnitude
    assert any(a in box for box in around_a.boxes(7))


@given(st.integers(-50, 50), st.integers(-50, 50))
def test_intersection_and_integers_keep_what_is_in_both(a: int, b: int) -> None:
    low = min(a, b)
    high = max(a, b)
    third = Fraction(1, 3)
    wide = Interval(low - third, high + third)
    whole = wide.integers()
    assert whole == Interval(low, high)
    assert wide.intersection(whole).within(whole)


def test_empty_interval_is_an_error() -> None:
    with pytest.raises(AssertionError, match="without numbers"):
        Interval(1, 0)


@examples(100)
@given(numbers_inside(positive_rationals), numbers_inside(positive_rationals))
def test_polynomial_contains_its_values(one: Inside, other: Inside) -> None:
    t = Variable("t", one.interval)
    e = Variable("e", other.interval)
    x = one.number
    y = other.number
    formula = (power_of(t, 2) - power_of(e, 1)) * (power_of(t, -1) + constant(3))
    value = (x**2 - y) * (1 / x + 3)
    assert value in formula.range
    assert (formula - formula).range.magnitude == 0
    assert power_of(t, 1) * power_of(t, -1) == constant(1)


def test_constants_contain_pi_and_ln_2() -> None:
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
    below = draw(st.integers(0, 2**20))
    above = draw(st.integers(0, 2**20))
    box = Interval(exact - below, exact + above)
    margin = draw(st.integers(0, 3))
    least_error = min(integer - exact, 0) - margin
    error = Interval(least_error, max(integer - exact, 1))
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
def test_sums_stay_within_bounds(operation: Binary, one: Approximated, other: Approximated) -> None:
    exact = operation(one.exact, other.exact)
    computed = operation(one.computed, other.computed)
    bounds = operation(one.bounds, other.bounds)
    Approximated(exact, computed, bounds).assert_within_bounds()


small_approximations = approximations(-(2**20), 2**20)


@given(small_approximations, small_approximations, st.integers(-9, 9))
def test_products_of_integers_stay_within_bounds(
    one: Approximated, other: Approximated, factor: int
) -> None:
    exact = one.exact * other.exact * factor
    computed = one.computed * other.computed * factor
    bounds = one.bounds * other.bounds * factor
    Approximated(exact, computed, bounds).assert_within_bounds()


@examples(100)
@given(approximations(), st.integers(0, 20))
def test_shifts_stay_within_bounds(number: Approximated, bits: int) -> None:
    left = Approximated(
        number.exact * 2**bits,
        number.computed << bits,
        number.bounds << bits,
    )
    left.assert_within_bounds()
    right = Approximated(
        number.exact / 2**bits,
        number.computed >> bits,
        number.bounds >> bits,
    )
    right.assert_within_bounds()


@examples(200)
@given(approximations(-ONE // 2, ONE), approximations(0, ONE))
def test_products_of_fractions_stay_within_bounds(one: Approximated, other: Approximated) -> None:
    exact = one.exact * other.exact / ONE
    computed = multiply(one.computed, other.computed)
    product = BOUNDED.multiply(one.bounds, other.bounds)
    Approximated(exact, computed, product).assert_within_bounds()


@given(approximations(-5, 5), approximations(-5, 5))
def test_larger_and_smaller_stay_within_bounds(one: Approximated, other: Approximated) -> None:
    for operation, name in ((max, "maximum"), (min, "minimum")):
        exact = operation(one.exact, other.exact)
        computed = operation(one.computed, other.computed)
        bounds = getattr(BOUNDED, name)(one.bounds, other.bounds)
        Approximated(exact, computed, bounds).assert_within_bounds()


@given(approximations(-5, 5))
def test_absolute_values_stay_within_bounds(number: Approximated) -> None:
    absolute = Approximated(
        abs(number.exact),
        abs(number.computed),
        abs(number.bounds),
    )
    absolute.assert_within_bounds()


@given(st.integers(-(2**40), 2**40), st.integers(0, 2**20), st.integers(1, 40))
def test_bits_stay_within_bounds(number: int, width: int, bits: int) -> None:
    mask = (1 << bits) - 1
    numbers = bounded.integer(number - width, number + width)
    lowest = numbers & mask
    assert number & mask in lowest.computed
    either = (numbers & LIMB) | bounded.integer(width, 2 * width)
    assert (number & LIMB) | width in either.computed


small_integers = st.integers(-(2**20), 2**20)


@given(small_integers, small_integers, small_integers, small_integers)
def test_error_of_a_product_has_all_terms(a: int, error_of_a: int, b: int, error_of_b: int) -> None:
    """Also the product of both errors, which are as large as the numbers here."""
    one = near(point(a), point(error_of_a))
    other = near(point(b), point(error_of_b))
    error = (a + error_of_a) * (b + error_of_b) - a * b
    assert (one * other).error == point(error)


@given(small_integers, small_integers, small_integers, small_integers)
def test_error_of_a_product_of_fractions_has_all_terms(
    a: int, error_of_a: int, b: int, error_of_b: int
) -> None:
    a = abs(a)
    b = abs(b)
    error_of_a = abs(error_of_a)
    error_of_b = abs(error_of_b)
    scale = 2**41
    one = near(point(a * scale), point(error_of_a * scale))
    other = near(point(b * scale), point(error_of_b * scale))
    product = BOUNDED.multiply(one, other)
    error = (a + error_of_a) * (b + error_of_b) - a * b
    assert product.error == point(error * 2**20) + bounded.ERROR_OF_PRODUCT


@given(approximations(), approximations())
def test_comparison_has_one_outcome_or_fails(one: Approximated, other: Approximated) -> None:
    a = one.bounds
    b = other.bounds
    least_difference = a.computed.low - b.computed.high
    greatest_difference = a.computed.high - b.computed.low
    if least_difference < 0 <= greatest_difference:
        with pytest.raises(AssertionError, match="both outcomes"):
            a < b  # noqa: B015  (the comparison itself fails)
        return
    is_less = one.computed < other.computed
    assert (a < b) == is_less
    assert (a >= b) != is_less
    assert (b > a) == is_less
    assert (b <= a) != is_less


def test_polynomials_keep_what_cancels() -> None:
    t = Variable("t", Interval(1, 2))
    y = near(power_of(t, 1).scaled(1000), Interval(-1, 0))
    assert (y - y).exact.range.magnitude == 0
    assert (y + 3 - y).exact.range.magnitude == 3
    assert (y * y - y * y).exact.range.magnitude == 0


def test_larger_number_may_be_the_one_that_is_computed_lower() -> None:
    exact_5 = near(point(5), point(-4))
    exact_3 = near(point(3), point(1))
    larger = BOUNDED.maximum(exact_5, exact_3)
    Approximated(Fraction(5), 4, larger).assert_within_bounds()


def test_absolute_value_of_a_number_that_changes_its_sign() -> None:
    bounds = abs(near(point(-1), point(2)))
    Approximated(Fraction(1), 1, bounds).assert_within_bounds()


def test_bits_of_two_limbs_may_exceed_both() -> None:
    either = bounded.integer(4, 4) | bounded.integer(3, 3)
    assert 7 in either.computed


def test_digit_of_a_range_that_reaches_the_next_block() -> None:
    x = integers.integer("x", Interval(32, 48))
    assert (x & 15).range == Interval(0, 15)


def test_digits_of_different_numbers_differ() -> None:
    x = integers.integer("x", Interval(0, 99))
    digit = x & 15
    assert digit.value == (x & 15).value
    assert digit.value != ((3 * x) & 15).value


STEPS_WITHOUT_PROOF: list[Any] = []


def fails(message: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Add a step that fails with a message, because it would prove nothing."""

    def add(step: Callable[[], Any]) -> Callable[[], Any]:
        STEPS_WITHOUT_PROOF.append(pytest.param(step, message, id=step.__name__))
        return step

    return add


def digit_of(kind: Any) -> Any:
    """Return an unknown number from 0 to 9 of a kind of numbers."""
    if kind is Bounded:
        return bounded.integer(0, 9)
    if kind is Integer:
        return integers.integer("x", Interval(0, 9))
    return Multiple(Fraction(0), Fraction(9))


@fails("int64 overflows")
def overflow_in_sum() -> Any:
    number = bounded.integer(0, 2**62)
    return number + number


@fails("int64 overflows")
def overflow_below() -> Any:
    return bounded.integer(-(2**62), 0) - bounded.integer(1, 2**62 + 1)


@fails("int64 overflows")
def overflow_in_product() -> Any:
    return bounded.integer(0, 2**32) * bounded.integer(0, 2**31)


@fails("int64 overflows")
def overflow_of_polynomial() -> Any:
    return integers.integer("x", Interval(0, 2**62)) << 1


@fails("int64 overflows")
def overflow_of_multiple() -> Any:
    return LENGTH << 33


@fails("operands of multiply")
def operand_above_one() -> Any:
    a = bounded.integer(0, 3 * ONE // 2)
    b = bounded.integer(0, ONE)
    return BOUNDED.multiply(a, b)


@fails("operands of multiply")
def negative_operand() -> Any:
    return BOUNDED.multiply(ONE, bounded.integer(-1, ONE))


@fails("a bit in common")
def common_bit() -> Any:
    return digit_of(Integer) | 1


@fails("a bit in common")
def common_bit_of_a_sum() -> Any:
    return ((digit_of(Integer) << 2) + digit_of(Integer)) | 1


@fails("a bit in common")
def common_bit_after_a_shift() -> Any:
    return (digit_of(Integer) << 2) | 5


@fails("bits of a negative number")
def negative_bits() -> Any:
    return bounded.integer(-5, 3) | 1


@fails("bits of a negative number")
def negative_mask() -> Any:
    return digit_of(Bounded) | -1


@fails("not exact")
def bits_of_an_approximation() -> Any:
    return near(Interval(0, 9), Interval(0, 1)) & 1


@fails("not exact")
def digits_of_an_approximation() -> Any:
    return bounded.integer(0, 0) | near(Interval(0, 9), Interval(0, 1))


@fails("a mask of the lowest bits")
def mask_with_a_gap() -> Any:
    return digit_of(Bounded) & 5


@fails("a mask of the lowest bits")
def mask_of_a_polynomial_with_a_gap() -> Any:
    return digit_of(Integer) & 5


@fails("a divisor that may be 0")
def divisor_that_may_be_0() -> Any:
    return point(1) / Interval(0, 1)


@fails("both outcomes")
def comparison_of_multiples_that_touch() -> Any:
    return Multiple(Fraction(1, 2), Fraction(1)) < LENGTH


@fails("without numbers")
def intervals_without_common_numbers() -> Any:
    return Interval(0, 1).intersection(Interval(2, 3))


@fails("no box between")
def boxes_with_a_gap() -> Any:
    nearly_2 = 2 - Fraction(1, 2**99)
    assert_covered(Interval(0, 3), [Interval(2, 3), Interval(0, nearly_2)])


@fails("no box between")
def boxes_that_begin_late() -> Any:
    assert_covered(Interval(0, 3), [Interval(1, 3)])


@fails("no box from")
def boxes_that_end_early() -> Any:
    assert_covered(Interval(0, 3), [Interval(0, 2)])


@pytest.mark.parametrize(("step", "message"), STEPS_WITHOUT_PROOF)
def test_step_that_proves_nothing_fails(step: Callable[[], Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        step()


every_kind = pytest.mark.parametrize("kind", [Bounded, Integer, Multiple])


@every_kind
def test_unknown_number_has_no_truth_value(kind: type[Any]) -> None:
    digit = digit_of(kind)
    for condition in (digit, 0 * digit):
        with pytest.raises(AssertionError, match="truth value"):
            BOUNDED.where(condition, 1, 2)


@every_kind
@pytest.mark.parametrize("bits", [-1, 64])
def test_shift_by_more_than_int64_has_fails(kind: type[Any], bits: int) -> None:
    with pytest.raises(AssertionError, match="a shift by"):
        digit_of(kind) << bits


@pytest.mark.parametrize("kind", [Bounded, Integer])
@pytest.mark.parametrize("bits", [-1, 64])
def test_shift_to_the_right_by_more_than_int64_has_fails(kind: type[Any], bits: int) -> None:
    with pytest.raises(AssertionError, match="a shift by"):
        digit_of(kind) >> bits


@pytest.mark.parametrize("kind", [Bounded, Integer])
@pytest.mark.parametrize("compare", [eq, ne, lt, ge])
def test_comparison_with_both_outcomes_fails(kind: type[Any], compare: Binary) -> None:
    for number in (0, 5, 9):
        if (compare, number) not in ((lt, 0), (ge, 0)):
            with pytest.raises(AssertionError, match="both outcomes"):
                compare(digit_of(kind), number)


def test_comparison_of_multiples_with_both_outcomes_fails() -> None:
    with pytest.raises(AssertionError, match="both outcomes"):
        digit_of(Multiple) < LENGTH  # noqa: B015 -- the comparison fails


@pytest.mark.parametrize("kind", [Bounded, Integer])
def test_comparison_with_one_outcome_has_it(kind: type[Any]) -> None:
    digit = digit_of(kind)
    assert digit != 10
    assert not digit == -1  # noqa: SIM201 -- both operators
    assert digit < 10
    assert digit >= 0
    zero = 0 * digit
    assert zero == 0
    assert not zero != 0  # noqa: SIM202 -- both operators


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
def test_digits_of_an_unknown_integer_add_up(number: int, bits: int, factor: int) -> None:
    x = integers.integer("x", Interval(0, 2**40))
    high = x >> bits
    low = x & ((1 << bits) - 1)
    digits = (high << bits) | low
    assert digits.value == x.value
    assert number in digits.range
    difference = x * factor - x * (factor - 1)
    assert difference.value == x.value
    assert number >> bits in high.range


@given(st.integers(0, 100), st.integers(3, 6))
def test_digits_that_the_range_decides_are_known(number: int, bits: int) -> None:
    size = 1 << bits
    begin = number * size
    x = integers.integer("x", Interval(begin, begin + size - 1))
    high = x >> bits
    low = x & (size - 1)
    assert (high.value - constant(number)).range.magnitude == 0
    assert low.value == x.value - constant(begin)
    assert isinstance(x + 1, Integer)
    assert x >= begin
    assert not x < begin


def test_point_is_one_number() -> None:
    assert point(3).low == point(3).high == 3
    assert Fraction(1, 3) in point(Fraction(1, 3))
