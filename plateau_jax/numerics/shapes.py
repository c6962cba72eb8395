"""The shapes: those with a name, in exact numbers and in fixed point, and the formulas with a number P."""

import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from sys import intern
from typing import Any, Final, NamedTuple

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import FIXED_BITS, LIMB_BITS, ONE, DecodedSegments, Operations, ratio
from plateau_jax.validation.checks import short_repr


def _sine_coefficients(count: int) -> tuple[int, ...]:
    """(π/2)²ᵏ⁺¹/(2k + 1)!/2: the Taylor series of sin(πx/2), halved because π/2 is over 1."""
    half_pi, dropped = exact.PI // 2, exact.BITS - FIXED_BITS
    power = half_pi
    coefficients: list[int] = []
    for k in range(count):
        coefficients.append((power // 2 + (1 << (dropped - 1))) >> dropped)
        power = (((power * half_pi) >> exact.BITS) * half_pi) >> exact.BITS
        power //= (2 * k + 2) * (2 * k + 3)
    return tuple(coefficients)


# On [0, 1/2] the first term left out is (π/4)¹⁹/19! < 2⁻⁶³.
_SINE = _sine_coefficients(9)

# (7/4 - y)·39/64 is within 9 % of 1/(2√y) on [1/4, 1]: no straight line is nearer.
_SLOPE = 39 * ONE // 64
_INTERCEPT = 7 * _SLOPE // 4


def _half_sine_squared(xp: Operations, x: Any, *_: Any) -> Any:
    """(1 - cos πx)/2 = sin²(πx/2) for x in [0, 1/2]."""
    multiply = xp.multiply
    square = multiply(x, x)
    # Alternating signs keep every inner value positive.
    series = _SINE[-1]
    for coefficient in reversed(_SINE[:-1]):
        series = coefficient - multiply(series, square)
    sine = multiply(x, series) << 1
    return multiply(sine, sine)


def _root(xp: Operations, _: Any, elapsed: Any, numbers: DecodedSegments) -> Any:
    """√(j/L) for 0 <= j < L."""
    # With y = j·4ᵏ/L in [1/4, 1) it is √y/2ᵏ. Newton's method for h = 1/(2√y) needs no division. Heron's
    # step, s + (y - s²)·h, then removes most of the rounding error of s = 2yh.
    multiply = xp.multiply
    elapsed, length, k = xp.int64(elapsed), xp.int64(numbers.length), 0
    for bits in (16, 8, 4, 2):
        shifted = elapsed << bits
        fits = shifted < length
        elapsed, k = xp.where(fits, shifted, elapsed), k + xp.where(fits, bits // 2, 0)
    y = ratio(elapsed, numbers)
    h = _INTERCEPT - multiply(y, _SLOPE)
    for _ in range(4):
        h = multiply(h, 3 * ONE // 4 - multiply(y, multiply(h, h))) << 1
    root = multiply(y, h) << 1
    rest = y - multiply(root, root)
    return (root + ((rest * (h >> LIMB_BITS)) >> LIMB_BITS)) >> k


def _exact_cosine(x: Fraction) -> int:
    return exact.ONE - exact.half_cosine(x.numerator, x.denominator)


# The only rational ones between the ends, by Niven's theorem.
_RATIONAL_COSINES = {
    Fraction(1, 3): Fraction(1, 4),
    Fraction(1, 2): Fraction(1, 2),
    Fraction(2, 3): Fraction(3, 4),
}


def _rational_root(x: Fraction) -> Fraction | None:
    return exact.rational_root(x, 2)


def _as_it_is(x: Fraction) -> Fraction:
    return x


def _irrational(_: Fraction) -> None:
    return None


class Share(NamedTuple):
    """A shape as the share S(x) of its way at x in [0, 1], which never falls from S(0) = 0 to S(1) = 1."""

    exact: Callable[[Fraction], int]
    """S in 224 bits."""
    rational: Callable[[Fraction], Fraction | None] = _irrational
    """S(x) for 0 < x < 1 if it is known to be rational: levels are then compared exactly."""
    fixed: Callable[[Operations, Any, Any, DecodedSegments], Any] | None = None
    """S in 62 bits, as `fixed(xp, x, elapsed, numbers)` after `elapsed` of the L steps of a row. `x` is the
    share of the steps from the nearer end, at most 1/2. None for S(x) = x."""
    units: int = 0
    """By how many units of 2⁻⁶² `fixed` may be off."""
    is_symmetric: bool = False
    """S(1 - x) = 1 - S(x): then `fixed` gives S(x) on [0, 1/2], and is counted from the nearer end."""


SHARES = {
    "linear": Share(exact.from_fraction, _as_it_is, is_symmetric=True),
    "cosine": Share(_exact_cosine, _RATIONAL_COSINES.get, _half_sine_squared, units=8, is_symmetric=True),
    "1-sqrt": Share(exact.square_root, _rational_root, _root, units=6),
}
"""The shapes without a parameter that go between any two levels."""

WORDS = (*SHARES, "exponential")
"""The shapes without a parameter."""

POWER_FROM_START: Final = "1-x^P"
POWER_FROM_END: Final = "(1-x)^P"
INVERSE_POWER: Final = "t^-P"

_FORMULAS = {
    POWER_FROM_START: (r"1-x\^", "0.05", "20"),
    POWER_FROM_END: (r"\(1-x\)\^", "0.05", "20"),
    INVERSE_POWER: (r"t\^-", "0.25", "4"),
}
"""How each formula begins, and between which decimals its P may lie."""

FORMULAS = tuple(_FORMULAS)
POWERS = POWER_FROM_START, POWER_FROM_END

_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_LONGEST = 24
"""Characters of a P: as many as any float prints, and few enough for exact arithmetic."""


class Formula(NamedTuple):
    """A shape that is written as a formula."""

    name: str
    """One of the names with a P, such as `"1-x^P"`."""
    power: Fraction
    """P, as the decimal that was written."""


@cache
def parse_formula(shape: str | None) -> Formula | None:
    """The formula that a checked shape is; None for a shape that is a word."""
    for name, (begin, *_) in _FORMULAS.items():
        if shape is not None and (found := re.match(begin, shape)):
            return Formula(name, Fraction(shape[found.end() :]))
    return None


def canonical_shape(label: str, value: Any, words: tuple[str, ...], formulas: tuple[str, ...]) -> str:
    """The shape, one of `words` or `formulas`, with one spelling for each value of P.

    "1-x^0.50" becomes "1-x^0.5", which is "1-sqrt"; "1-x^1" and "(1-x)^1" are "linear". Equal shapes are one
    object, so that a curve and its copy have pickles of one length.
    """
    if isinstance(value, str):
        if value in words:
            return intern(words[words.index(value)])
        for name in formulas:
            if found := re.match(_FORMULAS[name][0], value):
                return intern(
                    _spelt(name, _power(f"{label} = {short_repr(value)}", name, value[found.end() :]))
                )
    known = ", ".join(map(repr, (*words, *formulas)))
    raise ValueError(
        f"{label} = {short_repr(value)} must be one of {known}, with a decimal for P, such as '1-x^2'"
    )


def _power(label: str, name: str, text: str) -> Decimal:
    _, least, most = _FORMULAS[name]
    example = name.replace("P", "0.5")
    if len(text) > _LONGEST or not _DECIMAL.fullmatch(text):
        raise ValueError(
            f"{label}: write P as a decimal without sign, space or exponent, of at most {_LONGEST} "
            f"characters, as in {example!r}"
        )
    power = Decimal(text)
    if not Decimal(least) <= power <= Decimal(most):
        raise ValueError(f"{label}: P = {text} must lie in [{least}, {most}]")
    return power


def _spelt(name: str, power: Decimal) -> str:
    if power == 1 and name != INVERSE_POWER:
        return "linear"
    if power == Decimal("0.5") and name == POWER_FROM_START:
        return "1-sqrt"
    return name.replace("P", format(power.normalize(Context(prec=_LONGEST)), "f"))
