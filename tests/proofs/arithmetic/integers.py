"""Integers as polynomials: the product's arithmetic on them proves an identity for every input.

An `Integer` is a polynomial in unknown integers, with an interval in which it lies. `x & mask`
introduces the remainder of x as another unknown, and `x >> n` is (x - remainder)/2ⁿ. So what a
function of limbs computes can be compared with its formula, symbol by symbol:

    x = integer("x", Interval(0, 2**62))
    ((x >> 31) << 31) + (x & LIMB) is the polynomial x

Like a bounded number, it overflows, compares with one outcome or fails, and has no truth value.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import ClassVar, NoReturn, Union

from proofs.arithmetic.bounded import INT64
from proofs.arithmetic.intervals import Interval, Monomial, Polynomial, constant, point, variable

from plateau_jax.numerics.arithmetic import PYTHON

Terms = frozenset[tuple[Monomial, Fraction]]
Number = Union["Integer", int]


@dataclass(frozen=True, slots=True, eq=False)
class Integer:
    """An int64 that is a polynomial in unknown integers."""

    value: Polynomial
    range: Interval
    zeros: int = 0
    """Number of lowest bits that are known to be 0."""
    answer: ClassVar[bool | None] = None
    """The answer of `>=` if both are possible; a proof then follows one after the other."""

    def __post_init__(self) -> None:
        assert self.range.within(INT64), f"int64 overflows: {self.range}"

    def __add__(self, other: Number) -> "Integer":
        other = _as_integer(other)
        zeros = min(self.zeros, other.zeros)
        return Integer(self.value + other.value, self.range + other.range, zeros)

    def __radd__(self, other: int) -> "Integer":
        return self + other

    def __neg__(self) -> "Integer":
        return Integer(-self.value, -self.range, self.zeros)

    def __sub__(self, other: Number) -> "Integer":
        return self + -_as_integer(other)

    def __rsub__(self, other: int) -> "Integer":
        return -self + other

    def __mul__(self, other: Number) -> "Integer":
        other = _as_integer(other)
        return Integer(self.value * other.value, self.range * other.range)

    def __rmul__(self, other: int) -> "Integer":
        return self * other

    def __lshift__(self, bits: int) -> "Integer":
        assert 0 <= bits < 64, f"a shift by {bits} bits"
        shifted = self * (1 << bits)
        return Integer(shifted.value, shifted.range, self.zeros + bits)

    def __and__(self, mask: int) -> "Integer":
        bits = mask.bit_length()
        assert mask == (1 << bits) - 1, "a mask of the lowest bits"
        # From 32 to 47, the remainder modulo 16 is x - 32.
        block = int(self.range.low) >> bits << bits
        if self.range.within(Interval(block, block + mask)):
            return self - block
        remainder = _remainder(frozenset(self.value.terms.items()), bits)
        return Integer(remainder, remainder.range)

    def __rshift__(self, bits: int) -> "Integer":
        assert 0 <= bits < 64, f"a shift by {bits} bits"
        remainder = self & ((1 << bits) - 1)
        quotient = (self.value - remainder.value).halved(bits)
        down = Interval(Fraction(1, 1 << bits) - 1, 0)
        return Integer(quotient, (self.range.halved(bits) + down).integers())

    def __or__(self, other: Number) -> "Integer":
        """Return the sum, for numbers that have no bit in common."""
        other = _as_integer(other)
        lowest_bits = Interval(0, (1 << self.zeros) - 1)
        assert other.range.within(lowest_bits), "numbers with a bit in common"
        return self + other

    def __bool__(self) -> NoReturn:
        raise AssertionError("a truth value of an unknown number")

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Integer | int)
        difference = (self.value - _as_integer(other).value).range
        is_different = 0 not in difference
        assert is_different or difference.is_point, "a comparison with both outcomes"
        return not is_different

    def __lt__(self, other: Number) -> bool:
        difference = self.range - _as_integer(other).range
        if difference.is_below(point(0)):
            return True
        if difference.is_not_negative:
            return False
        assert self.answer is not None, "a comparison with both outcomes"
        return not self.answer

    def __ge__(self, other: Number) -> bool:
        return not self < other


def integer(name: str, within: Interval) -> Integer:
    """Return an unknown integer in an interval."""
    return Integer(variable(name, within), within)


def _as_integer(number: Number) -> Integer:
    if isinstance(number, Integer):
        return number
    return Integer(constant(number), point(number))


@cache
def _remainder(terms: Terms, bits: int) -> Polynomial:
    """Return the remainder of a polynomial modulo 2ⁿ, the same unknown for the same polynomial."""
    return variable(f"remainder of {bits} bits", Interval(0, (1 << bits) - 1))


def _unchanged(number: Number) -> Number:
    return number


INTEGERS = PYTHON._replace(int64=_unchanged)
"""The operations on `Integer`: the product's `multiply`, and Python's operators."""
