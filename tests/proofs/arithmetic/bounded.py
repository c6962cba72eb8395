"""Numbers that carry bounds: the product's arithmetic on them proves a bound for every input.

A `Bounded` stands for every integer that a variable of the product can be, in units of 2⁻⁶²,
together with the exact number that the variable approximates: that of the same formula without any
rounding. It has

    exact       an interval, or a polynomial, that contains the exact number
    error       an interval that contains computed - exact
    computed    an interval that contains the integer

Each operator bounds all three. Two rules are all there is to rounding: `>>` rounds down, so its
error lies in (-1, 0], and `multiply` is at most two units low, which
`test_product_is_at_most_two_units_low` proves.

An operation fails unless its result fits into int64, whatever the integers are. A shift fails
unless it is by less than 64 bits. A comparison fails unless it has the same outcome for all of
them; the proof then needs smaller boxes, or two cases. A number has no truth value.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn, Union

from proofs.arithmetic.intervals import (
    NOTHING,
    Interval,
    Polynomial,
    constant,
    point,
)
from proofs.arithmetic.proven import OPERANDS

from plateau_jax.numerics.arithmetic import FIXED_BITS, PYTHON

INT64 = Interval(-(2**63), 2**63 - 1)

ERROR_OF_PRODUCT = Interval(-2, 0)
"""The error of `multiply` for exact operands."""

Exact = Interval | Polynomial
Number = Union["Bounded", int]


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """All integers that a variable can be, and the exact number that it approximates."""

    exact: Exact
    error: Interval
    computed: Interval

    def __post_init__(self) -> None:
        assert self.computed.within(INT64), f"int64 overflows: {self.computed}"

    def __add__(self, other: Number) -> "Bounded":
        other = as_bounded(other)
        exact = _sum(self.exact, other.exact)
        return _bounded(exact, self.error + other.error, self.computed + other.computed)

    def __radd__(self, other: int) -> "Bounded":
        return self + other

    def __neg__(self) -> "Bounded":
        return Bounded(-self.exact, -self.error, -self.computed)

    def __sub__(self, other: Number) -> "Bounded":
        return self + -as_bounded(other)

    def __rsub__(self, other: int) -> "Bounded":
        return -self + other

    def __mul__(self, other: Number) -> "Bounded":
        other = as_bounded(other)
        exact = _product(self.exact, other.exact)
        return _bounded(exact, _product_error(self, other), self.computed * other.computed)

    def __rmul__(self, other: int) -> "Bounded":
        return self * other

    def __lshift__(self, bits: int) -> "Bounded":
        assert 0 <= bits < 64, f"a shift by {bits} bits"
        return self * (1 << bits)

    def __rshift__(self, bits: int) -> "Bounded":
        assert 0 <= bits < 64, f"a shift by {bits} bits"
        down = Interval(Fraction(1, 1 << bits) - 1, 0)
        computed = self.computed.halved(bits) + down
        return _bounded(self.exact.halved(bits), self.error.halved(bits) + down, computed)

    def __and__(self, mask: int) -> "Bounded":
        """Return the lowest bits: an integer about which nothing else is known."""
        assert self.error == NOTHING, "bits of a number that is not exact"
        assert mask & (mask + 1) == 0, "a mask of the lowest bits"
        return integer(0, mask)

    def __or__(self, other: Number) -> "Bounded":
        """Return all bits of two numbers: an integer about which nothing else is known."""
        other = as_bounded(other)
        assert self.error == other.error == NOTHING, "bits of a number that is not exact"
        both = self.computed.union(other.computed)
        assert both.is_not_negative, "bits of a negative number"
        return integer(0, (1 << int(both.high).bit_length()) - 1)

    def __abs__(self) -> "Bounded":
        exact = self.exact.range
        if self.computed.is_not_negative and exact.is_not_negative:
            return self
        if (-self.computed).is_not_negative and (-exact).is_not_negative:
            return -self
        # | |a'| - |a| | <= |a' - a|
        most = self.error.magnitude
        exact = Interval(0, exact.magnitude)
        return _bounded(exact, Interval(-most, most), Interval(0, self.computed.magnitude))

    def __bool__(self) -> NoReturn:
        raise AssertionError("a truth value of an unknown number")

    def __lt__(self, other: Number) -> bool:
        other = as_bounded(other)
        is_less = self.computed.is_below(other.computed)
        is_not_less = (self.computed - other.computed).is_not_negative
        assert is_less or is_not_less, "a comparison with both outcomes"
        return is_less

    def __ge__(self, other: Number) -> bool:
        return not self < other

    def __gt__(self, other: Number) -> bool:
        return as_bounded(other) < self

    def __le__(self, other: Number) -> bool:
        return not self > other

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Bounded | int)
        return not self < other and not self > other


def _sum(a: Exact, b: Exact) -> Exact:
    pair = _polynomials(a, b)
    if pair is None:
        return a.range + b.range
    return pair[0] + pair[1]


def _product(a: Exact, b: Exact) -> Exact:
    pair = _polynomials(a, b)
    if pair is None:
        return a.range * b.range
    return pair[0] * pair[1]


def _polynomials(a: Exact, b: Exact) -> tuple[Polynomial, Polynomial] | None:
    """Return both as polynomials if one is a polynomial, and the other too or a single number."""
    if isinstance(a, Polynomial) and isinstance(b, Polynomial):
        return a, b
    if isinstance(a, Polynomial) and b.range.is_point:
        return a, constant(b.range.low)
    if isinstance(b, Polynomial) and a.range.is_point:
        return constant(a.range.low), b
    return None


def _product_error(a: Bounded, b: Bounded) -> Interval:
    # a'b' - ab = (a' - a)·b' + a·(b' - b)
    return a.error * b.computed + a.exact.range * b.error


def _bounded(exact: Exact, error: Interval, computed: Interval) -> Bounded:
    """Return a number whose integer lies both in `computed` and in exact + error."""
    integers = (exact.range + error).intersection(computed).integers()
    return Bounded(exact, error, integers)


def integer(low: int, high: int) -> Bounded:
    """Return any integer from `low` to `high`; it is exact."""
    return Bounded(Interval(low, high), NOTHING, Interval(low, high))


def near(exact: Exact, error: Interval, at_least: int | None = None) -> Bounded:
    """Return any integer that is off an exact number by the error, and not below `at_least`."""
    computed = exact.range + error
    if at_least is not None:
        computed = Interval(max(computed.low, at_least), computed.high)
    return _bounded(exact, error, computed)


def rounded(number: int, exact: Interval) -> Bounded:
    """Return a constant of the product as an approximation of an exact number."""
    return Bounded(exact, point(number) - exact, point(number))


def approximating(computed: Interval, error: Interval) -> Bounded:
    """Return any integer in `computed`, as an approximation of an exact number with this error."""
    return _bounded(computed - error, error, computed)


def as_bounded(number: Number) -> Bounded:
    """Return an integer as a number without error."""
    if isinstance(number, Bounded):
        return number
    return integer(number, number)


_NOT_NEGATIVE = Interval(0, INT64.high)


def _multiply(a: Number, b: Number) -> Bounded:
    """Do what `multiply` promises, for operands for which it promises it."""
    a = as_bounded(a)
    b = as_bounded(b)
    in_range = [
        a.computed.within(range_of_a) and b.computed.within(range_of_b)
        for range_of_a, range_of_b in OPERANDS
    ]
    assert any(in_range), f"operands of multiply: {a.computed}, {b.computed}"
    exact = _product(a.exact, b.exact).halved(FIXED_BITS)
    error = _product_error(a, b).halved(FIXED_BITS) + ERROR_OF_PRODUCT
    computed = (a.computed * b.computed).halved(FIXED_BITS) + ERROR_OF_PRODUCT
    if a.computed.is_not_negative:
        computed = computed.intersection(_NOT_NEGATIVE)
    return _bounded(exact, error, computed)


def _minimum(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return -_maximum(-as_bounded(a), -as_bounded(b))


def _maximum(a: Number, b: Number) -> Bounded:
    # The errors of two numbers bound that of the larger one: if a' >= b', then a' - max(a, b) <= a'
    # - a, and a' - max(a, b) >= min(a' - a, b' - b).
    a = as_bounded(a)
    b = as_bounded(b)
    if _is_below(a, b):
        return b
    if _is_below(b, a):
        return a
    exact = a.exact.range.larger(b.exact.range)
    error = a.error.union(b.error)
    return _bounded(exact, error, a.computed.larger(b.computed))


def _is_below(a: Bounded, b: Bounded) -> bool:
    return a.computed.is_below(b.computed) and a.exact.range.is_below(b.exact.range)


BOUNDED = PYTHON._replace(minimum=_minimum, maximum=_maximum, multiply=_multiply)
"""The operations of the arithmetic on `Bounded`."""
