"""The shapes: those with a name, in exact numbers and in fixed point, and the formulas with a parameter P."""

import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from sys import intern
from typing import Any, Final, NamedTuple

from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import (
    FIXED_BITS,
    LIMB_BITS,
    ONE,
    DecodedSegments,
    Operations,
    ratio,
)
from plateau_jax.validation.checks import Path, must


def _sine_coefficients(count: int) -> tuple[int, ...]:
    """Return (π/2)²ᵏ⁺¹/(2k + 1)!/2: the Taylor series of sin(πx/2), halved because π/2 is above 1."""
    half_pi, dropped = exact.PI // 2, exact.BITS - FIXED_BITS
    power = half_pi
    coefficients: list[int] = []
    for k in range(count):
        coefficients.append((power // 2 + (1 << (dropped - 1))) >> dropped)
        power = (((power * half_pi) >> exact.BITS) * half_pi) >> exact.BITS
        power //= (2 * k + 2) * (2 * k + 3)
    return tuple(coefficients)


# On [0, 1/2] the first omitted term is (π/4)¹⁹/19! < 2⁻⁶³.
_SINE = _sine_coefficients(9)

# The guess for 1/(2√y) on [1/4, 1]: (7/4 - y)·39/64 is within 9 %, and no straight line is nearer.
_SLOPE = 39 * ONE // 64
_INTERCEPT = 7 * _SLOPE // 4


def _half_sine_squared(xp: Operations, x: Any, *_: Any) -> Any:
    """Return (1 - cos πx)/2 = sin²(πx/2) for x in [0, 1/2]."""
    multiply = xp.multiply
    square = multiply(x, x)
    # Horner's rule. The alternating signs of the series keep every intermediate value positive.
    series = _SINE[-1]
    for coefficient in reversed(_SINE[:-1]):
        series = coefficient - multiply(series, square)
    sine = multiply(x, series) << 1
    return multiply(sine, sine)


def _root(xp: Operations, _: Any, elapsed: Any, segment: DecodedSegments) -> Any:
    """Return √(j/L) for 0 <= j < L."""
    # With y = j·4ᵏ/L in [1/4, 1) this is √y/2ᵏ: for j = 3 and L = 100, k = 2 and y = 48/100.
    # Newton's method for h = 1/(2√y) needs no division. Heron's step, s + (y - s²)·h, then removes
    # most of the rounding error of s = 2yh.
    multiply = xp.multiply
    elapsed, length, k = xp.int64(elapsed), xp.int64(segment.length), 0
    for bits in (16, 8, 4, 2):
        shifted = elapsed << bits
        fits = shifted < length
        elapsed, k = xp.where(fits, shifted, elapsed), k + xp.where(fits, bits // 2, 0)
    y = ratio(elapsed, segment)
    h = _INTERCEPT - multiply(y, _SLOPE)
    for _ in range(4):
        h = multiply(h, 3 * ONE // 4 - multiply(y, multiply(h, h))) << 1
    root = multiply(y, h) << 1
    rest = y - multiply(root, root)
    return (root + ((rest * (h >> LIMB_BITS)) >> LIMB_BITS)) >> k


class Shape(NamedTuple):
    """A shape as the fraction S(x) of the way from its start level to its end level, at x in [0, 1].

    S never decreases from S(0) = 0 to S(1) = 1.
    """

    exact: Callable[[Fraction], Decimal]
    """S to 100 digits."""
    fixed: Callable[[Operations, Any, Any, DecodedSegments], Any] | None = None
    """S in 62 bits, as `fixed(xp, x, elapsed, segment)` after `elapsed` of the L steps of a
    segment. `x` is the fraction of the steps from the nearer end, at most 1/2. None for S(x) =
    x."""
    units: int = 0
    """The error bound of `fixed`, in units of 2⁻⁶²."""
    is_symmetric: bool = False
    """True if S(1 - x) = 1 - S(x). Then `fixed` returns S(x) on [0, 1/2], counted from the nearer
    end."""


SHAPES = {
    "linear": Shape(exact.to_decimal, is_symmetric=True),
    "cosine": Shape(exact.cosine_share, _half_sine_squared, units=8, is_symmetric=True),
    "1-sqrt": Shape(exact.square_root, _root, units=6),
}
"""The shapes without a parameter that can join any two levels."""

NAMED_SHAPES = (*SHAPES, "exponential")
"""The shapes without a parameter."""

POWER_FROM_START: Final = "1-x^P"
POWER_FROM_END: Final = "(1-x)^P"
INVERSE_POWER: Final = "t^-P"

_FORMULAS = {
    POWER_FROM_START: (r"1-x\^", "0.05", "20"),
    POWER_FROM_END: (r"\(1-x\)\^", "0.05", "20"),
    INVERSE_POWER: (r"t\^-", "0.25", "4"),
}
"""The pattern that each formula begins with, and the least and the greatest P, as decimals."""

FORMULAS = tuple(_FORMULAS)
POWER_SHAPES = POWER_FROM_START, POWER_FROM_END

_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_MAX_CHARACTERS = 24
"""The longest P: as long as any float prints, and short enough for exact arithmetic."""


class Formula(NamedTuple):
    """A shape written as a formula."""

    name: str
    """One of the names with a P, such as `"1-x^P"`."""
    power: Fraction
    """P, exactly the decimal that was written."""


@cache
def parse_formula(shape: str | None) -> Formula | None:
    """Parse a shape that `canonical_shape` returned; None for a word and for None."""
    for name, (begin, *_) in _FORMULAS.items():
        if shape is not None and (match := re.match(begin, shape)):
            return Formula(name, Fraction(shape[match.end() :]))
    return None


def canonical_shape(
    path: Path | str, value: Any, words: tuple[str, ...], formulas: tuple[str, ...]
) -> str:
    """Check a shape, and spell equal shapes alike.

    "1-x^0.50" becomes "1-x^0.5", which is "1-sqrt"; "1-x^1" and "(1-x)^1" are "linear". Equal
    shapes are one object, so that a curve and its copy have pickles of equal length.

    Args:
        path: The argument, for errors.
        value: The shape that the user wrote.
        words: The words that the argument may be.
        formulas: The names of the formulas that it may be, such as "1-x^P".
    """
    if isinstance(value, str):
        if value in words:
            return intern(words[words.index(value)])
        for name in formulas:
            if match := re.match(_FORMULAS[name][0], value):
                power = _parse_power(path, value, name, value[match.end() :])
                return intern(_spell_formula(name, power))
    known = ", ".join(map(repr, (*words, *formulas)))
    raise ValueError(must(path, value, f"be one of {known}, with a decimal for P, such as '1-x^2'"))


def _parse_power(path: Path | str, value: str, name: str, text: str) -> Decimal:
    _, least, most = _FORMULAS[name]
    if len(text) > _MAX_CHARACTERS or not _DECIMAL.fullmatch(text):
        form = f"a decimal for P without sign, space or exponent, of at most {_MAX_CHARACTERS} characters"
        raise ValueError(must(path, value, f"have {form}, as in {name.replace('P', '0.5')!r}"))
    power = Decimal(text)
    if not Decimal(least) <= power <= Decimal(most):
        raise ValueError(must(path, value, f"have a P in [{least}, {most}]"))
    return power


def _spell_formula(name: str, power: Decimal) -> str:
    if power == 1 and name != INVERSE_POWER:
        return "linear"
    if power == Decimal("0.5") and name == POWER_FROM_START:
        return "1-sqrt"
    return name.replace("P", format(power.normalize(Context(prec=_MAX_CHARACTERS)), "f"))
