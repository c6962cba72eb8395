"""Levels computed once, on the host: decimals of 100 digits, and integers of 224 bits.

A level is a decimal with 100 significant digits, however small it is: an exponential that ends near
0 depends on that small level all along. `from_decimal` returns the integer nearest to level·2²²⁴.
This is far finer than float32, whose smallest number is 2⁻¹⁴⁹, and than the 62-bit fixed point of
the runtime. So rounding it to either of them is, in effect, a single rounding of the exact level.
"""

import struct
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = 224
ONE = 1 << BITS

_GUARD = 128
# π·2³⁵²
_PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89452821E638D01377BE5466CF

PI = _PI >> _GUARD

_DECIMAL = Context(prec=100)  # digits
_RELIABLE = Context(prec=80)
"""Computed numbers are correct to at least 80 digits: what should be 2 may be 1.99…9 to 100 digits,
but is 2 to 80."""

LN_2 = int(_DECIMAL.multiply(_DECIMAL.ln(2), ONE))


Level = Decimal
"""A level of a curve, with 100 digits."""

_COMPARED = Context(prec=60)  # digits


def as_level(number: float) -> Level:
    """Return the number as the decimal that it prints as."""
    return Decimal(repr(number))


def rounded(level: Level) -> Level:
    """Round a level to 60 digits, for comparison with another level."""
    # Levels that agree to 60 digits count as equal, however they were computed: halfway from 1 to
    # 0, a cosine is at the same level as a stage that ends at 0.5.
    return _COMPARED.plus(level)


def as_written(number: float) -> Fraction:
    """Return the decimal that the number prints as: 32.3 is 323/10, not the nearest double."""
    return Fraction(repr(number))


def percent_of(whole: int, percentage: float) -> int:
    """Return the percentage of the whole, rounded down."""
    # In rationals: 32.3 % of 1000 is 323, but floats give 322.99999999999994, which rounds down to
    # 322.
    fraction = as_written(percentage)
    return whole * fraction.numerator // (100 * fraction.denominator)


def half_cosine(x: Fraction) -> Decimal:
    """Return (1 - cos πx)/2 for x in [0, 1]."""
    # By its Taylor series, in integers with guard bits: decimals take five times as long. Above 1/2
    # it is 1 minus the value at 1 - x, whose series is shorter.
    if 2 * x > 1:
        return _DECIMAL.subtract(1, half_cosine(1 - x))
    angle = _PI * x.numerator // x.denominator
    square = (angle * angle) >> (BITS + _GUARD)
    term = 1 << (BITS + _GUARD)
    total = order = 0
    while term:
        term = ((term * square) >> (BITS + _GUARD)) // ((order + 1) * (order + 2))
        order += 2
        total += term if order % 4 == 2 else -term
    return _DECIMAL.divide(total, 2 << (BITS + _GUARD))


def square_root(x: Fraction) -> Decimal:
    """Return √x."""
    return _DECIMAL.sqrt(to_decimal(x))


def scaled(number: Decimal, factor: Decimal) -> Decimal:
    """Return the product."""
    return _DECIMAL.multiply(number, factor)


def nearest_power(number: Fraction, exponent: Fraction) -> float:
    """Return the float64 nearest to a fraction above 0 raised to a power; it may be infinity."""
    # The 100 digits are first rounded to 80: otherwise a wrong last digit would decide how a result
    # halfway between two float64 is rounded.
    return float(_RELIABLE.plus(power(to_decimal(number), exponent)))


def to_decimal(number: Fraction) -> Decimal:
    """Return the number to 100 digits."""
    return _DECIMAL.divide(number.numerator, number.denominator)


@lru_cache(maxsize=1024)
def from_decimal(number: Decimal) -> int:
    """Return the number in 224 bits."""
    # Cached, because a segment begins at the level at which the previous one ends.
    return round(_DECIMAL.multiply(number, ONE))


def interpolate(start: Decimal, end: Decimal, fraction: Decimal) -> Decimal:
    """Return start·(1 - fraction) + end·fraction."""
    # Unlike start + (end - start)·fraction this is accurate next to an end that is 0: no term is
    # negative.
    return _DECIMAL.fma(end, fraction, _DECIMAL.multiply(start, _DECIMAL.subtract(1, fraction)))


@lru_cache(maxsize=1024)
def _logarithm(number: Decimal) -> Decimal:
    # Cached, as `power` is: these are the slowest computations, and derived curves share levels.
    return _DECIMAL.ln(number)


def geometric_mean(start: Decimal, end: Decimal, x: Fraction) -> Decimal:
    """Return start^(1 - x)·end^x, the weighted geometric mean."""
    logarithm = _logarithm(start)
    difference = _DECIMAL.subtract(_logarithm(end), logarithm)
    change = _DECIMAL.divide(_DECIMAL.multiply(difference, x.numerator), x.denominator)
    return _DECIMAL.exp(_DECIMAL.add(logarithm, change))


@lru_cache(maxsize=1024)
def power(base: Decimal, exponent: Fraction) -> Decimal:
    """Return base^exponent, for a base above 0."""
    logarithm = _DECIMAL.multiply(_logarithm(base), exponent.numerator)
    return _DECIMAL.exp(_DECIMAL.divide(logarithm, exponent.denominator))


def quotient(numerator: Decimal, denominator: Decimal) -> Decimal:
    """Return numerator/denominator."""
    # A level of 0.5 may be computed as 0.49…9; an exponential from there to 0.25 still has the rate
    # 1/L.
    return _RELIABLE.divide(numerator, denominator)


def log2_ratio(high: Decimal, low: Decimal) -> Fraction:
    """Return log₂(high/low)."""
    return Fraction(_DECIMAL.divide(_logarithm(quotient(high, low)), _logarithm(Decimal(2))))


def nearest_float32(value: int) -> np.float32:
    """Return the float32 nearest to the value, ties to even, subnormal numbers included."""
    return np.float32(round_to_float32(value, BITS))


def round_to_float32(value: int, bits: int) -> float:
    """Return the float32 nearest to value/2^bits, ties to even, as a Python float."""
    # Rounded in integers, since `np.float32(int)` goes by way of float64 and rounds twice. Adding
    # just under a half, or a half if the last kept bit is odd, rounds ties to even. With 2 bits to
    # drop, 10 = 4·2.5 and 14 = 4·3.5 become (10 + 1 + 0) >> 2 = 2 and (14 + 1 + 1) >> 2 = 4.
    smallest_exponent = 149  # of float32: the smallest subnormal number is 2⁻¹⁴⁹
    dropped = max(value.bit_length() - 24, bits - smallest_exponent, 0)
    if dropped:
        odd = (value >> dropped) & 1
        value = (value + (1 << (dropped - 1)) - 1 + odd) >> dropped
    return value * 2.0 ** (dropped - bits)


def float32_bits(number: float) -> int:
    """Return the bits of a float32, as an integer without a sign."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return bits


def values_between(low: float, high: float, multipliers: NDArray[np.float32]) -> NDArray[Any]:
    """Return low + (high - low)·m for each multiplier m, rounded to float32 once.

    Args:
        low: Any number that float32 can hold.
        high: The same.
        multipliers: float32, in [0, 1].
    """
    m = multipliers.astype(np.float64)
    values = low * (1 - m) + high * m
    # The four operations are off by less than this. Where both ends round to the same float32, so
    # does the exact value.
    margin = 2.0**-50 * (abs(low) + abs(high))
    with np.errstate(over="ignore"):  # next to the largest float32
        below = np.asarray(values - margin, np.float32)
        above = np.asarray(values + margin, np.float32)
    for m_near_border in np.unique(multipliers[below != above]).tolist():
        exact_value = Fraction(low) + (Fraction(high) - Fraction(low)) * Fraction(m_near_border)
        below[multipliers == m_near_border] = _nearest_float32_of(exact_value)
    return below


def _nearest_float32_of(number: Fraction) -> float:
    """Return the float32 nearest to a number whose denominator is a power of two."""
    magnitude = round_to_float32(abs(number.numerator), number.denominator.bit_length() - 1)
    if number < 0:
        return -magnitude
    return magnitude
