"""All shapes, and how users write them."""

import re
from collections.abc import Collection
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from sys import intern
from typing import Any

from plateau_jax.arguments.checks import Message, Path, must
from plateau_jax.numerics.exact import Level
from plateau_jax.shapes.cosine import Cosine
from plateau_jax.shapes.exponential import Exponential
from plateau_jax.shapes.inverse_power import InversePower
from plateau_jax.shapes.line import Linear
from plateau_jax.shapes.power import PowerFromEnd, PowerFromStart
from plateau_jax.shapes.root import SquareRoot
from plateau_jax.shapes.shape import Geometric, Interpolated, Shape

_CLASSES: tuple[type[Shape], ...] = (
    Linear,
    Cosine,
    SquareRoot,
    Exponential,
    PowerFromStart,
    PowerFromEnd,
    InversePower,
)

SHAPES = {shape.name: shape for shape in _CLASSES}
"""Every shape by its name."""

INTERPOLATED = {name: shape for name, shape in SHAPES.items() if issubclass(shape, Interpolated)}
"""The shapes with an interpolant, which can join any two levels."""

GEOMETRIC = {name: shape for name, shape in SHAPES.items() if issubclass(shape, Geometric)}
"""The shapes that multiply the higher level by a power of 2, and need levels above 0."""

SHAPE_NUMBERS = {name: number for number, name in enumerate(SHAPES)}
"""The number of each shape in the table."""

_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_MAX_CHARACTERS = 24
"""The longest P: as long as any float prints, and short enough for exact arithmetic."""


@cache
def parse_shape(shape: str) -> Shape:
    """Return the shape with a name from `canonical_shape`."""
    if shape in SHAPES:
        return SHAPES[shape]()
    formula, power = _split_formula(shape, SHAPES)
    return SHAPES[formula](Fraction(power))


def _split_formula(text: str, names: Collection[str]) -> tuple[str, str]:
    """Split "1-x^2" into "1-x^P" and "2"; ("", "") if it is none of these formulas."""
    for name in names:
        before = name.removesuffix("P")
        if before != name and text.startswith(before):
            return name, text.removeprefix(before)
    return "", ""


def canonical_shape(path: Path | str, value: Any, names: Collection[str]) -> str:
    """Check a shape, and return one spelling for all equal shapes.

    "1-x^0.50" becomes "1-x^0.5", which is "1-sqrt"; "1-x^1" and "(1-x)^1" are "linear". Equal
    strings are one object, so that the pickles of a curve and its copy have the same length.

    Args:
        path: The argument, for errors.
        value: The shape that the user wrote.
        names: The names of the shapes that the argument accepts.
    """
    if isinstance(value, str):
        if value in names and SHAPES[value].powers is None:
            return intern(SHAPES[value].name)
        formula, text = _split_formula(value, names)
        if formula:
            return intern(_spell_formula(formula, _parse_power(path, value, formula, text)))
    known = ", ".join(map(repr, names))
    must_be = f"be one of {known}, with a decimal for P, such as '1-x^2'"
    raise ValueError(must(path, value, must_be))


def _parse_power(path: Path | str, value: str, formula: str, text: str) -> Decimal:
    if len(text) > _MAX_CHARACTERS or not _DECIMAL.fullmatch(text):
        example = formula.replace("P", "0.5")
        must_have = (
            f"have a decimal for P without sign, space or exponent, of at most {_MAX_CHARACTERS} "
            f"characters, as in {example!r}"
        )
        raise ValueError(must(path, value, must_have))
    power = Decimal(text)
    least, most = SHAPES[formula].powers or ("", "")
    if not Decimal(least) <= power <= Decimal(most):
        raise ValueError(must(path, value, f"have a P in [{least}, {most}]"))
    return power


def _spell_formula(formula: str, power: Decimal) -> str:
    digits = format(power.normalize(Context(prec=_MAX_CHARACTERS)), "f")
    simpler = SHAPES[formula].equal_shapes.get(digits)
    return simpler or formula.replace("P", digits)


def level_between(shape: str, start: Level, end: Level, x: Fraction) -> Level:
    """Return the exact level of a shape from `start` to `end` at x in [0, 1]."""
    if x == 0 or start == end:
        return start
    if x == 1:
        return end
    return parse_shape(shape).level(start, end, x)


def check_defined(path: Path | str, shape: str, role: str, start: Level, end: Level) -> None:
    """Check that a "stage", "decay" or "cooldown" of this shape can join two levels."""
    reason = parse_shape(shape).why_undefined(start, end)
    if reason:
        article = "an" if shape[0] in "aeiou" else "a"
        raise ValueError(Message(path, f" = {shape!r}: {article} {shape} {role} {reason}"))
