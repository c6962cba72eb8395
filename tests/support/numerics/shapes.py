"""The formulas of all shapes, which share no code with the product.

A formula takes `mp`, a context of mpmath with the precision that a test needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any


@dataclass(frozen=True)
class ShapeFormula:
    """A shape without P, or a formula for every P in its range."""

    name: str
    """The name that a user writes, with P in place of a number."""
    level: Callable[[Any, Any, Any, Any, Any], Any]
    """From mp, the start level, the end level, x in [0, 1] and P to the exact level."""
    allows_zero: bool = True
    """False if both levels must be above 0."""
    powers: tuple[str, ...] = ()
    """Sample values of P, among them both ends of its range."""

    @property
    def samples(self) -> list[str]:
        """The shape as a user writes it; of a formula, one for each sample of P."""
        if not self.powers:
            return [self.name]
        return [self.name.replace("P", power) for power in self.powers]


def linear_level(mp: Any, a: Any, b: Any, x: Any, power: Any) -> Any:
    return a * (1 - x) + b * x


def cosine_level(mp: Any, a: Any, b: Any, x: Any, power: Any) -> Any:
    return a + (b - a) * mp.sin(mp.pi * x / 2) ** 2


def root_level(mp: Any, a: Any, b: Any, x: Any, power: Any) -> Any:
    return a + (b - a) * mp.sqrt(x)


def exponential_level(mp: Any, a: Any, b: Any, x: Any, power: Any) -> Any:
    return a * (b / a) ** x


def power_level(mp: Any, a: Any, b: Any, x: Any, power: Any) -> Any:
    return a + (b - a) * x**power


def reversed_power_level(mp: Any, a: Any, b: Any, x: Any, power: Any) -> Any:
    return b + (a - b) * (1 - x) ** power


def inverse_power_level(mp: Any, a: Any, b: Any, x: Any, power: Any) -> Any:
    first = a ** (-1 / power)
    last = b ** (-1 / power)
    return (first + (last - first) * x) ** -power


_POWERS = ("0.05", "0.3", "3", "20")

_FORMULAS = (
    ShapeFormula("linear", linear_level),
    ShapeFormula("cosine", cosine_level),
    ShapeFormula("1-sqrt", root_level),
    ShapeFormula("exponential", exponential_level, allows_zero=False),
    ShapeFormula("1-x^P", power_level, powers=_POWERS),
    ShapeFormula("(1-x)^P", reversed_power_level, powers=_POWERS),
    ShapeFormula(
        "t^-P",
        inverse_power_level,
        allows_zero=False,
        powers=("0.25", "0.7", "2", "4"),
    ),
)

FORMULAS = {formula.name: formula for formula in _FORMULAS}
"""Every shape by its name, in the order in which messages list the shapes."""

SHAPES_ALLOWING_ZERO = [name for name, formula in FORMULAS.items() if formula.allows_zero]

WITH_POWER = [name for name, formula in FORMULAS.items() if formula.powers]
"""The names that take a number in place of P."""

SAMPLES = [*chain.from_iterable(formula.samples for formula in _FORMULAS)]
"""Every shape, and formulas with each P at an end of its range."""

SAMPLES_ABOVE_ZERO = [
    *chain.from_iterable(formula.samples for formula in _FORMULAS if not formula.allows_zero)
]
"""Those that cannot join a level of 0."""


def formula_and_power(shape: str) -> tuple[ShapeFormula, Fraction]:
    """Return the formula of a shape that a user wrote, and its P; 1 for a shape without P."""
    if shape in FORMULAS:
        return FORMULAS[shape], Fraction(1)
    for name in WITH_POWER:
        before_power = name.removesuffix("P")
        if shape.startswith(before_power):
            return FORMULAS[name], Fraction(shape.removeprefix(before_power))
    raise KeyError(shape)
