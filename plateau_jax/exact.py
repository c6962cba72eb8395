"""Numbers computed once, on the host, to about 224 bits.

A value v in [0, 1] is the integer nearest to v·2²²⁴. That is far below anything that float32, of
which the smallest is 2⁻¹⁴⁹, or the 62-bit fixed point of the runtime can see: what is rounded from
here is rounded once.
"""

from fractions import Fraction

import numpy as np

BITS = 224
ONE = 1 << BITS

_GUARD = 32
_PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89  # π·2²⁵⁶

PI = _PI >> _GUARD


def decimal(number: float) -> Fraction:
    """The number as the decimal that it prints as: 32.3 is 323/10, not the nearest double."""
    return Fraction(repr(number))


def percent_of(whole: int, percentage: float) -> int:
    """The percentage of the whole, rounded down."""
    share = decimal(percentage)
    return whole * share.numerator // (100 * share.denominator)


def from_decimal(number: float) -> int:
    """The number in [0, 1], read as a decimal, in 224 bits."""
    return round(decimal(number) * ONE)


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


def blend(low: int, high: int, weight: int) -> int:
    """low + (high - low)·weight."""
    return low + ((high - low) * weight >> BITS)


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
