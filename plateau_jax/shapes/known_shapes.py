"""All shapes, and how users write them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Message, Path
from plateau_jax.numerics import Level, mpmath_context, to_level, to_mpf
from plateau_jax.shapes import series
from plateau_jax.shapes.series import Expander


@dataclass(frozen=True)
class Shape:
    """How a segment of L steps goes from its start level to its end level."""

    name: str
    """The name that a user writes, with P in place of a number."""
    equation: str
    """The level at the fraction x of the steps from a to b."""
    function: Callable[[Any, Any, Any, int, Fraction], Expander]
    """The equation as a function of `series`."""
    power: Fraction = Fraction(1)
    """P, exactly the decimal that was written."""
    powers: tuple[str, str] | None = None
    """The least and the greatest P, as decimals; None for a shape without P."""
    equal_shapes: Mapping[str, str] = field(default_factory=dict[str, str])
    """For some values of P, the simpler name of the same shape."""
    allows_zero: bool = True
    """False if both levels must be above 0."""

    def expander(self, start: Level, end: Level, length: int) -> Expander:
        """Return the level of a segment as a function of a piece, as in `series`."""
        mp = mpmath_context()
        return self.function(mp, to_mpf(start), to_mpf(end), length, self.power)


_SHAPES = (
    Shape("linear", "a + (b - a)*x", series.power_from_start),
    Shape("cosine", "(a + b)/2 + (a - b)/2*cos(pi*x)", series.cosine),
    Shape("1-sqrt", "a + (b - a)*sqrt(x)", series.power_from_start, power=Fraction(1, 2)),
    Shape("exponential", "a**(1-x) * b**x", series.exponential, allows_zero=False),
    Shape(
        "1-x^P",
        "a + (b - a)*x**P",
        series.power_from_start,
        powers=("0.05", "20"),
        equal_shapes={"1": "linear", "0.5": "1-sqrt"},
    ),
    Shape(
        "(1-x)^P",
        "b + (a - b)*(1-x)**P",
        series.power_from_end,
        powers=("0.05", "20"),
        equal_shapes={"1": "linear"},
    ),
    Shape(
        "t^-P",
        "t**-P, t = a**(-1/P)*(1-x) + b**(-1/P)*x",
        series.inverse_power,
        powers=("0.25", "4"),
        allows_zero=False,
    ),
)

SHAPES = {shape.name: shape for shape in _SHAPES}
"""Every shape by its name."""

SHAPES_ALLOWING_ZERO = {name: shape for name, shape in SHAPES.items() if shape.allows_zero}
"""The shapes that can join any two levels."""

_DIGITS = Context(prec=100)
"""The digits of P."""


def parse_shape(shape: str) -> Shape:
    """Return the shape with a name from `canonical_shape`."""
    if shape in SHAPES:
        return SHAPES[shape]
    formula, power = _split_formula(shape, SHAPES)
    return replace(SHAPES[formula], power=Fraction(power))


def _split_formula(text: str, names: Collection[str]) -> tuple[str, str]:
    """Split "1-x^2" into "1-x^P" and "2"; ("", "") if it is none of these formulas."""
    for name in names:
        before = name.removesuffix("P")
        if before != name and text.startswith(before):
            return name, text.removeprefix(before)
    return "", ""


def canonical_shape(path: Path | str, value: Any, names: Collection[str]) -> str:
    """Check a shape, and return one spelling for all equal shapes.

    "1-x^0.50" becomes "1-x^0.5", which is "1-sqrt"; "1-x^1" and "(1-x)^1" are "linear".

    Args:
        path: The argument, for errors.
        value: The shape that the user wrote.
        names: The names of the shapes that the argument accepts.
    """
    if isinstance(value, str):
        if value in names and SHAPES[value].powers is None:
            return SHAPES[value].name
        formula, text = _split_formula(value, names)
        if formula:
            power = _parse_power(path, value, SHAPES[formula], text)
            return _spell_formula(formula, power)
    known = ", ".join(map(repr, names))
    must_be = f"be one of {known}, with a decimal for P, such as '1-x^2'"
    raise ValueError(checks.must(path, value, must_be))


def _parse_power(path: Path | str, value: str, shape: Shape, text: str) -> Decimal:
    assert shape.powers  # a formula has a P
    least, most = shape.powers
    try:
        power = Decimal(text)
        if Decimal(least) <= power <= Decimal(most):
            return power
    except ArithmeticError:  # not a number
        pass
    example = shape.name.replace("P", "0.5")
    must_have = f"have a decimal for P in [{least}, {most}], as in {example!r}"
    raise ValueError(checks.must(path, value, must_have))


def _spell_formula(formula: str, power: Decimal) -> str:
    digits = format(power.normalize(_DIGITS), "f")
    simpler = SHAPES[formula].equal_shapes.get(digits)
    return simpler or formula.replace("P", digits)


def equation_of(shape: str) -> str:
    """Return the equation of the shape with a name from `canonical_shape`, as Python would."""
    name, power = _split_formula(shape, SHAPES)
    return SHAPES[name or shape].equation.replace("P", power)


def level_between(shape: str, start: Level, end: Level, elapsed: int, length: int) -> Level:
    """Return the exact level of a shape after some of the steps from `start` to `end`."""
    if elapsed == 0 or start == end:
        return start
    if elapsed == length:
        return end
    return to_level(parse_shape(shape).expander(start, end, length)(2 * elapsed, 0).middle)


def check_defined(path: Path | str, shape: str, role: str, start: Level, end: Level) -> None:
    """Check that a "stage", "decay" or "cooldown" of this shape can join two levels."""
    if not parse_shape(shape).allows_zero and 0 in (start, end):
        article = "an" if shape[0] in "aeiou" else "a"
        reason = f": {article} {shape} {role} from or to 0 is not defined"
        raise ValueError(Message(path, f" = {shape!r}{reason}"))
