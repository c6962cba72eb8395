"""The powers x^P and 1 - (1 - x)^P, which is counted from its end."""

from collections.abc import Mapping
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from proofs.arithmetic.errors_of_exponentials import LN_2, least_change_of_exponent
from proofs.arithmetic.errors_of_powers import POWERS_OF_FRACTIONS
from proofs.arithmetic.integers import INTEGERS, Integer, integer
from proofs.arithmetic.intervals import Interval
from proofs.arithmetic.limbs import every_power_or_more, joined, rates_below
from proofs.arithmetic.multiples import steps_scaled_by_twos
from proofs.arithmetic.parts import (
    ELAPSED,
    INVERSE,
    INVERSE_REST,
    POSITION,
    REMAINING,
    UP_TO_ONE,
    exponent_given_to,
    replace_function,
)
from proofs.arithmetic.proven import (
    HALF_SLOPE,
    LEAST_STEP,
    MOST_K_OF_X,
    NORMALIZED,
    OCTAVES_OF_LENGTH,
    POWERS_OF_X,
)
from proofs.shapes.spec import InterpolatedSpec, units

from plateau_jax.numerics.arithmetic import FIXED_BITS
from plateau_jax.shapes import power as power_shapes
from plateau_jax.shapes.power import PowerFromEnd, PowerFromStart
from plateau_jax.shapes.shape import Interpolated


class _PowerSpec(InterpolatedSpec):
    title = "powers x^P and (1 − x)^P"
    error = units("-10.908", "13.936")
    value_error = units("-14.936", "14.936")

    def prove_error(self) -> Interval:
        return POWERS_OF_FRACTIONS.error()

    def prove_monotone(self) -> None:
        """E = P·log₂(L/j) falls by P·log₂((j + 1)/j) > P/(L·ln 2).

        From E = 64 on, all values are 0.
        """
        total = Interval(0, FIXED_BITS + 2)
        error = POWERS_OF_FRACTIONS.error_of_exponents(total, POWERS_OF_X)
        least_change = POWERS_OF_X.low * LEAST_STEP / LN_2.high
        assert least_change - error.width > least_change_of_exponent()


class PowerFromStartSpec(_PowerSpec):
    name = "1-x^P"
    counted_from = "start"
    samples = "1-x^0.05", "1-x^0.3", "1-x^3", "1-x^20"
    file_name = "long_power_from_start"
    stages: ClassVar[Mapping[str, str]] = {
        "staged_least_power_from_start": "1-x^0.05",
        "staged_power_from_start": "1-x^2.5",
    }

    def formula(self, mp: Any, x: Any, power: Any) -> Any:
        return x**power

    def place(self, mp: Any, start: Any, end: Any, level: Any, power: Any) -> Any:
        return ((level - start) / (end - start)) ** (1 / power)


class PowerFromEndSpec(_PowerSpec):
    name = "(1-x)^P"
    counted_from = "end"
    samples = "(1-x)^0.05", "(1-x)^0.3", "(1-x)^3", "(1-x)^20"
    file_name = "long_power_from_end"
    stages: ClassVar[Mapping[str, str]] = {
        "staged_power_from_end": "(1-x)^2",
        "staged_greatest_power_from_end": "(1-x)^20",
    }

    def formula(self, mp: Any, x: Any, power: Any) -> Any:
        return (1 - x) ** power

    def place(self, mp: Any, start: Any, end: Any, level: Any, power: Any) -> Any:
        return 1 - ((level - end) / (start - end)) ** (1 / power)


def test_scaled_steps_are_near_the_length() -> None:
    """j·2ᵏ/L lies in [5/7, 10/7], where logarithms are computed."""
    for k, steps in enumerate(steps_scaled_by_twos()):
        scaled = Interval(steps.least * 2**k, steps.most * 2**k)
        assert scaled.within(NORMALIZED)


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        (PowerFromStart, ELAPSED),
        (PowerFromEnd, REMAINING),
    ],
)
@pytest.mark.parametrize("doublings", OCTAVES_OF_LENGTH)
def test_power_joins_its_parts(
    doublings: int, shape: type[Interpolated], steps: Integer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(j/L)^P is 2^(-E) with E = P·k + B(y)·(L - j·2ᵏ)·r, where y = j·2ᵏ/L and r = P/L.

    E is at most six units low: four for `exponent_of_power`, and B < 2 for the product with r.
    The rate is at most P/L, so the whole part of a product with it is small.
    """
    lengths = Interval(2**doublings, 2 ** (doublings + 1))
    length = integer("length", lengths)
    rate = rates_below(POWERS_OF_X.high / lengths.low)
    power = every_power_or_more(POWERS_OF_X)
    k = integer("k", Interval(0, MOST_K_OF_X))
    most_steps = int(lengths.high * NORMALIZED.high)
    scaled = integer("scaled", Interval(0, most_steps))
    scale = Mock(return_value=(k, scaled))
    monkeypatch.setattr(power_shapes, "scale_near_length", scale)
    y = replace_function("ratio", UP_TO_ONE, power_shapes, monkeypatch)
    half_slope = replace_function("half_log_slope", HALF_SLOPE, power_shapes, monkeypatch)
    power_of_two = replace_function("two_to_minus", UP_TO_ONE, power_shapes, monkeypatch)

    at = POSITION._replace(length=length)
    value = shape.interpolant(INTEGERS, at, (*rate, *power))

    assert value is power_of_two.return_value
    scale.assert_called_once_with(INTEGERS, steps, length)
    y.assert_called_once_with(scaled, INVERSE, INVERSE_REST)
    half_slope.assert_called_once_with(INTEGERS, y.return_value)
    product = ((length - scaled).value * joined(*rate)).halved(31)
    twice_slope = half_slope.return_value.value.scaled(2)
    exact = k.value * joined(*power) + (twice_slope * product).halved(62)
    missing = exact - exponent_given_to(power_of_two)
    assert missing.range.within(Interval(0, 6))
