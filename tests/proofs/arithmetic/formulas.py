"""Formulas as polynomials: a run on them returns what the code follows, without its roundings."""

from collections.abc import Sequence
from fractions import Fraction

from proofs.arithmetic.bounded import Bounded, near
from proofs.arithmetic.intervals import NOTHING, Interval, Polynomial, constant, variable

from plateau_jax.numerics.arithmetic import ONE


def unknown(name: str, least: Fraction) -> tuple[Polynomial, Bounded]:
    """Return a variable that is a little above a number, and the same in units of 2⁻⁶²."""
    number = variable(name, Interval(least, least + Fraction(1, 2**20)))
    return number, near(number.scaled(ONE), NOTHING)


def power_series(coefficients: Sequence[int], x: Polynomial) -> Polynomial:
    """Return c₀ + c₁·x + c₂·x² + … in units of 2⁻⁶²."""
    total = constant(0)
    power_of_x = constant(1)
    for coefficient in coefficients:
        total += power_of_x.scaled(coefficient)
        power_of_x *= x
    return total
