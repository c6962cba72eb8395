"""The half cosine, which is computed as the square of a sine."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

import pytest
from proofs.arithmetic.bounded import BOUNDED, Bounded
from proofs.arithmetic.errors_of_sine import PI, at_x, cosine_at, phases, sine_coefficient
from proofs.arithmetic.formulas import power_series, unknown
from proofs.arithmetic.intervals import HALF_A_UNIT, Interval, point, union
from proofs.arithmetic.proven import LEAST_STEP
from proofs.shapes.spec import InterpolatedSpec, units

from plateau_jax.shapes import cosine
from plateau_jax.shapes.cosine import Cosine


class CosineSpec(InterpolatedSpec):
    name = "cosine"
    title = "cosine"
    counted_from = "nearer end"
    error = units("-11.875", "4.714")
    value_error = units("-14.875", "14.875")
    samples = ("cosine",)
    file_name = "long_cosine"
    stages: ClassVar[Mapping[str, str]] = {"staged_cosine": "cosine"}

    def formula(self, mp: Any, x: Any, power: Any) -> Any:
        return (1 - mp.cospi(x)) / 2

    def prove_error(self) -> Interval:
        return union(cosine_at(x).error for x in phases(256))

    def prove_monotone(self) -> None:
        """S is the square of a sine, and near 0 S grows by less than its error. The sine does not.

        The derivative of sin(πx/2) is π/2·cos(πx/2), at least π/2·√(1/2) > π/2·0.7071 up to 1/2. So
        the computed sine grows from step to step, and `multiply` never decreases with either
        operand.
        """
        errors = union(error_of_sine(x) for x in phases(256))
        derivative = PI.scaled(Fraction(7071, 20_000))
        assert errors.width < derivative.low * LEAST_STEP


def error_of_sine(x: Bounded) -> Interval:
    """Run the cosine, and return the error of the sine, which its last product squares."""
    operands: list[tuple[Bounded, Bounded]] = []

    def multiply(a: Bounded, b: Bounded) -> Bounded:
        operands.append((a, b))
        return BOUNDED.multiply(a, b)

    square = cosine_at(x, BOUNDED._replace(multiply=multiply))
    sine, again = operands[-1]
    assert sine is again
    assert BOUNDED.multiply(sine, sine).error == square.error
    return sine.error


def test_formula_of_cosine() -> None:
    """S = (2·x·(c₀ - c₁·x² + c₂·x⁴ - …))²."""
    x, in_units = unknown("x", Fraction(1, 4))
    value = Cosine.interpolant(BOUNDED, at_x(in_units), ())
    half_sine = x * power_series(cosine.SINE, -(x * x))
    sine = half_sine.scaled(2)
    assert value.exact == (sine * sine).halved(62)


@pytest.mark.parametrize("k", range(len(cosine.SINE)))
def test_coefficient_of_sine_is_the_nearest(k: int) -> None:
    error = point(cosine.SINE[k]) - sine_coefficient(k)
    assert error.within(HALF_A_UNIT.scaled(Fraction(1001, 1000)))
