"""Numbers computed once, on the host, to about 224 bits.

A value v in [0, 1] is the integer nearest to v·2²²⁴. That is far below anything that float32, of
which the smallest is 2⁻¹⁴⁹, or the 62-bit fixed point of the runtime can see: what is rounded from
here is rounded once.
"""

from decimal import Context
from fractions import Fraction
from math import isqrt

import numpy as np

BITS = 224
ONE = 1 << BITS

_GUARD = 32
_PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89  # π·2²⁵⁶

PI = _PI >> _GUARD

_DECIMAL = Context(prec=100)  # digits, for logarithms and powers

LN_2 = int(_DECIMAL.multiply(_DECIMAL.ln(2), ONE))


def decimal(number: float) -> Fraction:
    """The number as the decimal that it prints as: 32.3 is 323/10, not the nearest double."""
    return Fraction(repr(number))


def percent_of(whole: int, percentage: float) -> int:
    """The percentage of the whole, rounded down."""
    share = decimal(percentage)
    return whole * share.numerator // (100 * share.denominator)


def from_fraction(number: Fraction) -> int:
    """The number in 224 bits."""
    return (number.numerator << BITS + 1) // number.denominator + 1 >> 1


def half_cosine(numerator: int, denominator: int) -> int:
    """(1 + cos(π·numerator/denominator))/2 for 0 <= numerator <= denominator, by its Taylor series."""
    if 2 * numerator > denominator:
        return ONE - half_cosine(denominator - numerator, denominator)
    angle = _PI * numerator // denominator
    square = angle * angle >> BITS + _GUARD
    term = total = 1 << BITS + _GUARD
    order = 0
    while term:
        term = (term * square >> BITS + _GUARD) // ((order + 1) * (order + 2))
        order += 2
        total += term if order % 4 == 0 else -term
    return (ONE + (total >> _GUARD)) // 2


def square_root(number: Fraction) -> int:
    """The root of a number in [0, 1], rounded down."""
    return isqrt((number.numerator << 2 * BITS) // number.denominator)


def geometric_mean(start: int, end: int, x: Fraction) -> int:
    """start^(1 - x)·end^x, zeros counting as 2⁻²²⁴."""
    logarithm = _DECIMAL.ln(max(start, 1))
    way = _DECIMAL.subtract(_DECIMAL.ln(max(end, 1)), logarithm)
    gone = _DECIMAL.divide(_DECIMAL.multiply(way, x.numerator), x.denominator)
    return round(_DECIMAL.exp(_DECIMAL.add(logarithm, gone)))


def log2_ratio(high: int, low: int) -> Fraction:
    """log₂(high/low), zeros counting as 2⁻²²⁴."""
    ratio = _DECIMAL.divide(max(high, 1), max(low, 1))
    return Fraction(_DECIMAL.divide(_DECIMAL.ln(ratio), _DECIMAL.ln(2)))


def nearest_float32(value: int) -> np.float32:
    """The float32 nearest to the value, ties to even, subnormal numbers included."""
    return np.float32(rounded(value, BITS))


def rounded(value: int, bits: int) -> float:
    """The float32 nearest to value/2^bits, ties to even, as a Python float."""
    smallest_exponent = 149
    dropped = max(value.bit_length() - 24, bits - smallest_exponent, 0)
    if dropped:
        odd = value >> dropped & 1
        value = value + (1 << dropped - 1) - 1 + odd >> dropped
    return value * 2.0 ** (dropped - bits)
