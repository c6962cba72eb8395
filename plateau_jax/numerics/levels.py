"""Levels of a curve in exact numbers, so that they can be compared.

A level that is known to be rational is a `Fraction`; any other is a `Between`, which describes how it came
about. Two levels are equal if their fractions or their descriptions are.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache

from plateau_jax.numerics import exact
from plateau_jax.numerics.shapes import INVERSE_POWER, POWER_FROM_END, SHAPES, Formula, parse_formula
from plateau_jax.validation.messages import Message, Wording


@dataclass(frozen=True)
class Between:
    """A level not known to be rational: that of a shape from `start` to `end` at x, 0 < x < 1."""

    shape: str
    start: "Level"
    end: "Level"
    x: Fraction

    @cached_property
    def decimal(self) -> Decimal:
        start, end = to_decimal(self.start), to_decimal(self.end)
        if formula := parse_formula(self.shape):
            return _decimal_of_formula(formula, start, end, self.x)
        if self.shape == "exponential":
            return exact.geometric_mean(start, end, self.x)
        return exact.interpolate(start, end, _decimal_share(self.shape, self.x))

    @cached_property
    def fixed224(self) -> int:
        return exact.from_decimal(self.decimal)


Level = Fraction | Between


@lru_cache(maxsize=1024)
def _decimal_share(shape: str, x: Fraction) -> Decimal:
    # Cached, because a curve that is continued by a copy of itself has the same x again.
    return exact.fixed224_to_decimal(SHAPES[shape].exact(x))


_TOO_NEAR = 1 << 24
"""Levels nearer than this count as equal, in units of 2⁻²²⁴: far more than the error of `fixed224`, far less
than the usual difference of two levels that were written as decimals."""


def fixed224(level: Level) -> int:
    """Return the level in 224 bits."""
    return level.fixed224 if isinstance(level, Between) else exact.from_fraction(level)


def to_decimal(level: Level) -> Decimal:
    """Return the level to 100 digits."""
    return level.decimal if isinstance(level, Between) else exact.to_decimal(level)


def are_equal(level: Level, other: Level) -> bool:
    """Return True if the levels are equal, or too near to distinguish."""
    # A `Between` may be rational by chance, and so be equal to a fraction.
    return level == other or (
        isinstance(level, Between) != isinstance(other, Between)
        and abs(fixed224(level) - fixed224(other)) < _TOO_NEAR
    )


def is_above(level: Level, other: Level) -> bool:
    """Return True if `level` is above `other`."""
    if isinstance(level, Between) or isinstance(other, Between):
        return fixed224(level) > fixed224(other)
    return level > other


def between(shape: str, start: Level, end: Level, x: Fraction) -> Level:
    """Return the level of a shape from `start` to `end` at x in [0, 1].

    - linear: start + (end - start)·x
    - cosine: start + (end - start)·(1 - cos πx)/2
    - 1-sqrt: start + (end - start)·√x
    - exponential: start^(1 - x)·end^x
    - 1-x^P: start + (end - start)·x^P
    - (1-x)^P: end + (start - end)·(1 - x)^P
    - t^-P: t^(-P) for a t that goes linearly from start^(-1/P) to end^(-1/P)
    """
    if x == 0 or start == end:
        return start
    if x == 1:
        return end
    if isinstance(start, Between) or isinstance(end, Between):
        return Between(shape, start, end, x)
    if shape == "exponential":
        factor = exact.rational_root(end / start, x.denominator)
        return Between(shape, start, end, x) if factor is None else start * factor**x.numerator
    formula = parse_formula(shape)
    if formula and formula.name == INVERSE_POWER:
        level = _rational_inverse_power(formula.power, start, end, x)
        return Between(shape, start, end, x) if level is None else level
    fraction = _rational_fraction(shape, x)
    return Between(shape, start, end, x) if fraction is None else start + (end - start) * fraction


def scaled(level: Level, factor: Fraction) -> Level:
    """Return the level times a factor."""
    if isinstance(level, Fraction):
        return level * factor
    # Multiplying both ends of a shape multiplies every level between them.
    return Between(level.shape, scaled(level.start, factor), scaled(level.end, factor), level.x)


def why_undefined(shape: str, kind: str, start: Level, end: Level, *, zero: str = "from or to 0") -> str:
    """Explain why a shape cannot go from one level to the other; "" if it can.

    Args:
        shape: The shape.
        kind: What has the shape: "stage" or "cooldown".
        start: The level at its start.
        end: The level at its end.
        zero: The words for the level that is 0.
    """
    formula = parse_formula(shape)
    if shape != "exponential" and (formula is None or formula.name != INVERSE_POWER):
        return ""
    subject = f"{'an' if shape == 'exponential' else 'a'} {shape} {kind}"
    if start == 0 or end == 0:
        return f"{subject} {zero} is not defined"
    if formula and ratio_of_bases(formula.power, start, end) > _MAX_RATIO:
        exponent = f"-{62 * float(formula.power):g}"
        return Message(
            f"{subject} between these levels is too steep: the lower one must be at least ",
            Wording(f"2**{exponent}", f"2^{exponent}"),
            " times the higher one. Take a larger P or closer levels",
        )
    return ""


_MAX_RATIO = Decimal(2) ** 62 * (1 + Decimal("1e-60"))
"""A little over 2⁶², because the last of the 100 digits may be wrong."""


def ratio_of_bases(power: Fraction, start: Level, end: Level) -> Decimal:
    """Return (high/low)^(1/P), the ratio by which t grows along "t^-P", to 100 digits, for levels above 0."""
    low, high = sorted((to_decimal(start), to_decimal(end)))
    return exact.power(exact.quotient(high, low), 1 / power)


def _decimal_of_formula(formula: Formula, start: Decimal, end: Decimal, x: Fraction) -> Decimal:
    name, power = formula
    if name == INVERSE_POWER:
        first, last = (exact.power(level, -1 / power) for level in (start, end))
        return exact.power(exact.interpolate(first, last, exact.to_decimal(x)), -power)
    if name == POWER_FROM_END:
        return exact.interpolate(end, start, exact.power(exact.to_decimal(1 - x), power))
    return exact.interpolate(start, end, exact.power(exact.to_decimal(x), power))


def _rational_inverse_power(power: Fraction, start: Fraction, end: Fraction, x: Fraction) -> Fraction | None:
    ratio = exact.rational_power(end / start, -1 / power)
    if ratio is None:
        return None
    factor = exact.rational_power(1 + (ratio - 1) * x, -power)
    return None if factor is None else start * factor


def _rational_fraction(shape: str, x: Fraction) -> Fraction | None:
    if formula := parse_formula(shape):
        if formula.name == POWER_FROM_END:
            remaining = exact.rational_power(1 - x, formula.power)
            return None if remaining is None else 1 - remaining
        return exact.rational_power(x, formula.power)
    return SHAPES[shape].rational(x)
