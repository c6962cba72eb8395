"""The names of shapes, and the formulas that are names too."""

import re
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from sys import intern
from typing import Any, Final, NamedTuple

from plateau_jax.checks import shown

ROOT: Final = "1-sqrt"
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
def formula(shape: str | None) -> Formula | None:
    """The formula that a checked shape is; None for a shape that is a word."""
    for name, (begin, *_) in _FORMULAS.items():
        if shape is not None and (found := re.match(begin, shape)):
            return Formula(name, Fraction(shape[found.end() :]))
    return None


def checked(label: str, value: Any, words: tuple[str, ...], formulas: tuple[str, ...]) -> str:
    """The shape, one of `words` or `formulas`, with one spelling for each value of P.

    "1-x^0.50" becomes "1-x^0.5", which is "1-sqrt"; "1-x^1" and "(1-x)^1" are "linear". Equal shapes are one
    object, so that a curve and its copy have pickles of one length.
    """
    if isinstance(value, str):
        if value in words:
            return intern(words[words.index(value)])
        for name in formulas:
            if found := re.match(_FORMULAS[name][0], value):
                return intern(_spelt(name, _power(f"{label} = {shown(value)}", name, value[found.end() :])))
    known = ", ".join(map(repr, (*words, *formulas)))
    raise ValueError(
        f"{label} = {shown(value)} must be one of {known}, with a decimal for P, such as '1-x^2'"
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
        return ROOT
    return name.replace("P", format(power.normalize(Context(prec=_LONGEST)), "f"))
