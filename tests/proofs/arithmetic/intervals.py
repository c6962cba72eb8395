"""Intervals of rationals, and polynomials in variables that lie in intervals.

Nothing here is rounded to nearest: an end of an interval is exact, or rounded outward. So what an
interval contains stays in it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from operator import attrgetter

Rational = Fraction | int

_GRAIN_BITS = 128
_GRAIN = 1 << _GRAIN_BITS


class Interval:
    """All real numbers between two multiples of 2⁻¹²⁸."""

    __slots__ = "high_units", "low_units"

    def __init__(self, low: Rational, high: Rational) -> None:
        """Round both ends outward to multiples of 2⁻¹²⁸: so they stay short."""
        self.low_units = floor(low * _GRAIN)
        self.high_units = ceil(high * _GRAIN)
        assert self.low_units <= self.high_units, "an interval without numbers"

    @property
    def low(self) -> Fraction:
        return Fraction(self.low_units, _GRAIN)

    @property
    def high(self) -> Fraction:
        return Fraction(self.high_units, _GRAIN)

    @property
    def width(self) -> Fraction:
        return self.high - self.low

    @property
    def is_not_negative(self) -> bool:
        return self.low_units >= 0

    @property
    def is_point(self) -> bool:
        return self.low_units == self.high_units

    def __repr__(self) -> str:
        return f"[{float(self.low)}, {float(self.high)}]"

    def __add__(self, other: "Interval") -> "Interval":
        return _interval(self.low_units + other.low_units, self.high_units + other.high_units)

    def __neg__(self) -> "Interval":
        return _interval(-self.high_units, -self.low_units)

    def __sub__(self, other: "Interval") -> "Interval":
        return _interval(self.low_units - other.high_units, self.high_units - other.low_units)

    def __mul__(self, other: "Interval") -> "Interval":
        corners = (
            self.low_units * other.low_units,
            self.low_units * other.high_units,
            self.high_units * other.low_units,
            self.high_units * other.high_units,
        )
        # -(-v >> n) rounds up.
        return _interval(min(corners) >> _GRAIN_BITS, -(-max(corners) >> _GRAIN_BITS))

    def __truediv__(self, other: "Interval") -> "Interval":
        assert other.low_units > 0, "a divisor that may be 0"
        return self * Interval(1 / other.high, 1 / other.low)

    def __pow__(self, exponent: int) -> "Interval":
        if exponent < 0:
            return point(1) / self**-exponent
        if exponent == 0:
            return point(1)
        ends = self.low_units**exponent, self.high_units**exponent
        low = min(ends)
        if exponent % 2 == 0 and self.low_units <= 0 <= self.high_units:
            low = 0
        extra_bits = _GRAIN_BITS * (exponent - 1)
        return _interval(low >> extra_bits, -(-max(ends) >> extra_bits))

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Interval)
        return self.low_units == other.low_units and self.high_units == other.high_units

    def __contains__(self, number: Rational) -> bool:
        return self.low <= number <= self.high

    def scaled(self, factor: Rational) -> "Interval":
        """Return the interval times a number."""
        return self * point(factor)

    def halved(self, times: int) -> "Interval":
        """Return the interval divided by a power of two."""
        return _interval(self.low_units >> times, -(-self.high_units >> times))

    def union(self, other: "Interval") -> "Interval":
        """Return the shortest interval that contains both."""
        return _interval(
            min(self.low_units, other.low_units), max(self.high_units, other.high_units)
        )

    def intersection(self, other: "Interval") -> "Interval":
        """Return the numbers in both."""
        return _interval(
            max(self.low_units, other.low_units), min(self.high_units, other.high_units)
        )

    def is_below(self, other: "Interval") -> bool:
        """Return True if each number here is below each number there."""
        return self.high_units < other.low_units

    def larger(self, other: "Interval") -> "Interval":
        """Return the larger one of a number here and a number there."""
        return _interval(
            max(self.low_units, other.low_units), max(self.high_units, other.high_units)
        )

    def integers(self) -> "Interval":
        """Return the interval from its first to its last integer."""
        first = -(-self.low_units >> _GRAIN_BITS) << _GRAIN_BITS
        last = self.high_units >> _GRAIN_BITS << _GRAIN_BITS
        return _interval(first, last)

    def outward(self, units: int) -> "Interval":
        """Round both ends outward to multiples of 1/units, or to one that they hardly pass."""
        hardly = Fraction(1, 2**50)
        low = Fraction(floor((self.low + hardly) * units), units)
        high = Fraction(ceil((self.high - hardly) * units), units)
        return Interval(low, high)

    def within(self, other: "Interval") -> bool:
        """Return True if the other interval contains this one."""
        return other.low_units <= self.low_units and self.high_units <= other.high_units

    @property
    def magnitude(self) -> Fraction:
        """The greatest absolute value."""
        return max(-self.low, self.high)

    @property
    def range(self) -> "Interval":
        """The interval itself, as the range of a polynomial is an interval."""
        return self

    def boxes(self, count: int) -> "Iterator[Interval]":
        """Cut the interval into pieces of equal length."""
        width = (self.high - self.low) / count
        for index in range(count):
            yield Interval(self.low + index * width, self.low + (index + 1) * width)


def _interval(low: int, high: int) -> Interval:
    """Return an interval from its ends times 2¹²⁸."""
    assert low <= high, "an interval without numbers"
    interval = Interval.__new__(Interval)
    interval.low_units = low
    interval.high_units = high
    return interval


def point(number: Rational) -> Interval:
    """Return the interval of one number, or the shortest one around it."""
    return Interval(number, number)


NOTHING = point(0)

ROUNDED_DOWN = Interval(-1, 0)
"""The error of a number that is rounded down."""

HALF_A_UNIT = Interval(Fraction(-1, 2), Fraction(1, 2))
"""The error of a number that is rounded to the nearest integer."""


@dataclass(frozen=True, eq=False, slots=True)
class Variable:
    """An unknown number in an interval. Two variables are independent."""

    name: str
    range: Interval


Monomial = frozenset[tuple[Variable, int]]
"""A product of variables, each with its exponent, which may be negative."""

_NO_VARIABLE: Monomial = frozenset()


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of products of powers of variables, each with a rational coefficient.

    It knows more than an interval: t - t is 0, but [1, 2] - [1, 2] is [-1, 1].
    """

    terms: Mapping[Monomial, Fraction]

    def __add__(self, other: "Polynomial") -> "Polynomial":
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, Fraction()) + coefficient
        return _without_zeros(terms)

    def __neg__(self) -> "Polynomial":
        return self.scaled(-1)

    def __sub__(self, other: "Polynomial") -> "Polynomial":
        return self + -other

    def __mul__(self, other: "Polynomial") -> "Polynomial":
        terms: dict[Monomial, Fraction] = {}
        for one, coefficient in self.terms.items():
            for another, factor in other.terms.items():
                monomial = _product(one, another)
                terms[monomial] = terms.get(monomial, Fraction()) + coefficient * factor
        return _without_zeros(terms)

    def scaled(self, factor: Rational) -> "Polynomial":
        """Return the polynomial times a number."""
        return self * constant(factor)

    def halved(self, times: int) -> "Polynomial":
        """Return the polynomial divided by a power of two."""
        return self.scaled(Fraction(1, 1 << times))

    @property
    def range(self) -> Interval:
        """An interval that contains every value."""
        total = NOTHING
        for monomial, coefficient in self.terms.items():
            term = point(coefficient)
            for variable, exponent in monomial:
                term *= variable.range**exponent
            total += term
        return total


def _product(one: Monomial, other: Monomial) -> Monomial:
    exponents = dict(one)
    for variable, exponent in other:
        exponents[variable] = exponents.get(variable, 0) + exponent
    return frozenset((name, exponent) for name, exponent in exponents.items() if exponent)


def _without_zeros(terms: Mapping[Monomial, Fraction]) -> Polynomial:
    return Polynomial({monomial: factor for monomial, factor in terms.items() if factor})


def constant(number: Rational) -> Polynomial:
    """Return a number as a polynomial."""
    return _without_zeros({_NO_VARIABLE: Fraction(number)})


def variable(name: str, within: Interval) -> Polynomial:
    """Return a new variable as a polynomial."""
    return power_of(Variable(name, within), 1)


def power_of(variable: Variable, exponent: int) -> Polynomial:
    """Return a power of a variable as a polynomial."""
    return Polynomial({frozenset([(variable, exponent)]): Fraction(1)})


def union(intervals: Iterable[Interval]) -> Interval:
    """Return the shortest interval that contains all intervals."""
    first, *others = intervals
    total = first
    for interval in others:
        total = total.union(interval)
    return total


def octaves(domain: Interval) -> Iterator[Interval]:
    """Cut an interval of positive numbers into pieces from one number to its double."""
    low = domain.low
    while low < domain.high:
        yield Interval(low, min(2 * low, domain.high))
        low *= 2


def assert_covered(domain: Interval, boxes: Iterable[Interval]) -> None:
    """Check that each number of the domain is in one of the boxes."""
    reached = domain.low
    for box in sorted(boxes, key=attrgetter("low")):
        assert box.low <= reached, f"no box between {float(reached)} and {float(box.low)}"
        reached = max(reached, box.high)
    assert reached >= domain.high, f"no box from {float(reached)} on"


def pi() -> Interval:
    """Return π, by Machin's formula 16·arctan(1/5) - 4·arctan(1/239)."""
    return _arctan(Fraction(1, 5)).scaled(16) - _arctan(Fraction(1, 239)).scaled(4)


def _arctan(x: Fraction) -> Interval:
    """Return arctan x = x - x³/3 + x⁵/5 - …, which lies between any two sums in a row."""
    total = Fraction()
    before = total
    for k in range(60):
        before = total
        total += (-1) ** k * x ** (2 * k + 1) / (2 * k + 1)
    return Interval(min(before, total), max(before, total))


def ln_2() -> Interval:
    """Return ln 2 = 2·(1/3 + 1/(3·3³) + 1/(5·3⁵) + …)."""
    terms = [Fraction(2, (2 * k + 1) * 3 ** (2 * k + 1)) for k in range(90)]
    # Each omitted term is below a ninth of the one before.
    return Interval(sum(terms), sum(terms) + terms[-1] / 8)
