"""Levels of a curve as decimals of 100 digits, so that they can be compared.

Two levels are equal if they agree to 60 digits, however each was computed: halfway from 1 to 0, a
cosine is at the level of a stage that ends at 0.5.
"""

from decimal import Context, Decimal
from fractions import Fraction

from plateau_jax.numerics import exact
from plateau_jax.numerics.shapes import INVERSE_POWER, POWER_FROM_END, SHAPES, parse_formula

Level = Decimal

_COMPARED = Context(prec=60)


def as_level(number: float) -> Level:
    """Return the number as the decimal that it prints as."""
    return Decimal(repr(number))


def rounded(level: Level) -> Level:
    """Round a level to the digits that count, before it is compared with another one."""
    return _COMPARED.plus(level)


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
    if shape == "exponential":
        return exact.geometric_mean(start, end, x)
    formula = parse_formula(shape)
    if formula is None:
        return exact.interpolate(start, end, SHAPES[shape].exact(x))
    name, power = formula
    if name == INVERSE_POWER:
        first, last = (exact.power(level, -1 / power) for level in (start, end))
        return exact.power(exact.interpolate(first, last, exact.to_decimal(x)), -power)
    if name == POWER_FROM_END:
        return exact.interpolate(end, start, exact.power(exact.to_decimal(1 - x), power))
    return exact.interpolate(start, end, exact.power(exact.to_decimal(x), power))


def why_undefined(shape: str, kind: str, start: Level, end: Level) -> str:
    """Explain why a "stage" or "cooldown" of this shape cannot join the two levels; "" if it can."""
    formula = parse_formula(shape)
    if shape != "exponential" and (formula is None or formula.name != INVERSE_POWER):
        return ""
    subject = f"{'an' if shape == 'exponential' else 'a'} {shape} {kind}"
    if start == 0 or end == 0:
        return f"{subject} from or to 0 is not defined"
    if formula and rounded(ratio_of_bases(formula.power, start, end)) > _MAX_RATIO:
        least = f"2**-{62 * float(formula.power):g}"
        return (
            f"{subject} between these levels is too steep: the lower one must be at least {least} "
            "times the higher one. Take a larger P or closer levels"
        )
    return ""


_MAX_RATIO = Decimal(2**62)


def ratio_of_bases(power: Fraction, start: Level, end: Level) -> Decimal:
    """Return (high/low)^(1/P), the ratio by which t grows along "t^-P", for levels above 0."""
    low, high = sorted((start, end))
    return exact.power(exact.quotient(high, low), 1 / power)
