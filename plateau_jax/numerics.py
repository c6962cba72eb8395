"""Exact numbers: percentages, levels in decimals, functions of levels, and their roundings.

A level is a decimal with 100 significant digits, however small it is: an exponential that ends near
0 depends on that small level all along. mpmath computes functions of levels, in 352 bits. `fixed`
converts a result to an integer, in units of 2⁻²²⁴.
"""

from decimal import Context, Decimal
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

BITS = 224
"""Fractional bits of an exact level as an integer: multipliers below 2⁻¹²⁶ are 0, so all others
have 98 bits."""

SLACK = 1 << (BITS - 208)
"""An upper bound on the sum of all rounding errors in a fixed level."""

_DECIMAL = Context(prec=100)  # digits
_COMPARED = Context(prec=60)  # digits

Level = Decimal
"""A level of a curve, with 100 digits."""


def as_level(number: float) -> Level:
    """Return the number as the decimal that it prints as."""
    return Decimal(repr(number))


def rounded(level: Level) -> Level:
    """Round a level to 60 digits, for comparison with another level."""
    # Levels that agree to 60 digits count as equal, however they were computed: halfway from 1 to
    # 0, a cosine is at the same level as a stage that ends at 0.5.
    return _COMPARED.plus(level)


def scaled(number: Decimal, factor: Decimal) -> Decimal:
    """Return number · factor, in 100 digits."""
    return _DECIMAL.multiply(number, factor)


def percent_of(whole: int, percentage: Decimal) -> int:
    """Return the percentage of the whole, rounded down."""
    # In decimals: 32.3 % of 1000 is 323, but floats give 322.99999999999994.
    return int(scaled(Decimal(whole), percentage)) // 100


@cache
def mpmath_context() -> Any:
    """Return mpmath's functions and numbers, in 352 bits, some 105 digits."""
    # Imported here, because it adds a fifth to the time of `import plateau_jax`.
    from mpmath import MPContext  # pyright: ignore[reportMissingTypeStubs]  (it has none)

    mp: Any = MPContext()
    mp.prec = 352
    return mp


@lru_cache(1024)
def to_mpf(number: Fraction | Level) -> Any:
    """Return a rational or a level as a number of mpmath."""
    numerator, denominator = number.as_integer_ratio()
    return mpmath_context().mpf(numerator) / denominator


def to_level(number: Any) -> Level:
    """Return a number of mpmath, at least 0, as a level."""
    digits, exponent = map(int, number.man_exp)  # with gmpy2 installed, they are its integers
    if exponent < 0:
        return _DECIMAL.divide(digits, 1 << -exponent)
    return _DECIMAL.plus(Decimal(digits << exponent))


def fixed(number: Any) -> int:
    """Return a number of mpmath in units of 2^-BITS, rounded down."""
    return int(number.to_fixed(BITS))


def nearest_power(number: Fraction, exponent: Fraction) -> float:
    """Return the float64 nearest to a fraction above 0 raised to a power; it may be infinity."""
    return float(to_mpf(number) ** to_mpf(exponent))


def nearest_float32(level: Level) -> float:
    """Return the float32 nearest to a level, the larger one of a tie; 0 below 2⁻¹²⁶."""
    return round_up_ties(fixed(to_mpf(level)))


def round_up_ties(level: int) -> float:
    """Return the float32 nearest to a level in units of 2^-BITS, the larger one of a tie."""
    return round_to_float32(level + SLACK, BITS)


def round_to_float32(value: int, exponent: int) -> float:
    """Return the float32 nearest to value/2^exponent, ties to even; 0 below 2⁻¹²⁶."""
    # Rounded in integers, since `np.float32(int)` goes by way of float64 and rounds twice. Adding
    # just under a half, or a half if the last kept bit is odd, rounds ties to even. With 2 bits to
    # drop, 10 = 4·2.5 and 14 = 4·3.5 become (10 + 1 + 0) >> 2 = 2 and (14 + 1 + 1) >> 2 = 4.
    dropped = max(value.bit_length() - 24, 0)
    if dropped:
        odd = (value >> dropped) & 1
        value = (value + (1 << (dropped - 1)) - 1 + odd) >> dropped
    number = value * 2.0 ** (dropped - exponent)
    return number if number >= 2.0**-126 else 0.0
