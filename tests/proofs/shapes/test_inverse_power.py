"""The inverse power t^(-P): the higher level times 2^(-E), with E = P·log₂ t.

Between nearly equal levels a parabola replaces it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from proofs.arithmetic import bounded
from proofs.arithmetic.bounded import BOUNDED, Bounded
from proofs.arithmetic.errors_of_exponentials import LN_2, least_change_of_exponent
from proofs.arithmetic.errors_of_powers import INVERSE_POWERS, any_parabola
from proofs.arithmetic.formulas import unknown
from proofs.arithmetic.integers import INTEGERS, Integer, integer
from proofs.arithmetic.intervals import (
    Interval,
    Variable,
    assert_covered,
    constant,
    octaves,
    point,
    power_of,
)
from proofs.arithmetic.limbs import (
    EVERY_POWER_OF_T,
    FRACTIONS,
    Limbs,
    any_rate,
    every_power_or_more,
    joined,
    joined_with_fraction,
    lengths_from,
)
from proofs.arithmetic.parts import (
    FALLING,
    INVERSE,
    INVERSE_REST,
    UP_TO_ONE,
    exponent_given_to,
    from_higher_level,
    replace_function,
)
from proofs.arithmetic.proven import (
    ERROR_OF_PARABOLA,
    HALF_SLOPE,
    LEAST_GROWTH,
    LEAST_STEP,
    MAX_LENGTH,
    MAX_RATE,
    MAX_T,
    MOST_K_OF_T,
    NORMALIZED,
    OCTAVES_OF_LENGTH,
    POWERS_OF_T,
    Y_MINUS_1,
)
from proofs.shapes.spec import GeometricSpec, ReplacedFactor, units

from plateau_jax.numerics.arithmetic import LIMB, LIMB_BITS, ONE, Operations
from plateau_jax.shapes import inverse_power
from plateau_jax.shapes.inverse_power import InversePower
from plateau_jax.shapes.shape import SegmentPosition


class InversePowerSpec(GeometricSpec):
    name = "t^-P"
    title = "inverse power t^−P"
    error = units("-12.151", "15.822")
    value_error = units("-15.151", "15.822")
    samples = "t^-0.25", "t^-0.7", "t^-2", "t^-4"
    file_name = "long_inverse_power"
    stages: ClassVar[Mapping[str, str]] = {
        "staged_least_inverse_power": "t^-0.25",
        "staged_greatest_inverse_power": "t^-4",
    }

    def level(self, mp: Any, start: Any, end: Any, x: Any, power: Any) -> Any:
        first = start ** (-1 / power)
        last = end ** (-1 / power)
        return (first + (last - first) * x) ** -power

    def place(self, mp: Any, start: Any, end: Any, level: Any, power: Any) -> Any:
        first = start ** (-1 / power)
        last = end ** (-1 / power)
        return (level ** (-1 / power) - first) / (last - first)

    def most_octaves(self, power: Any) -> Any:
        return 62 * power

    def prove_error(self) -> Interval:
        return INVERSE_POWERS.error()

    def prove_monotone(self) -> None:
        """The inverse power is, and so is the parabola x + a·g·x·(1 - x) with a = (P + 1)/2.

        The parabola grows by at least (1 - a·g)/L, far above its error.
        """
        for powers in OCTAVES_OF_P:
            prove_inverse_power_is_monotone(powers)
        bend = (POWERS_OF_T.high + 1) / 2 * LEAST_GROWTH
        assert ERROR_OF_PARABOLA.width < (1 - bend) * LEAST_STEP

    def replace_factor(self, factor: Bounded, monkeypatch: pytest.MonkeyPatch) -> ReplacedFactor:
        return replace_both(factor, ANY_FACTOR, monkeypatch, is_nearly_equal=0)

    def replace_parabola(
        self, parabola: Bounded, monkeypatch: pytest.MonkeyPatch
    ) -> ReplacedFactor:
        """Return what replaces a factor between nearly equal levels."""
        return replace_both(ANY_FACTOR, parabola, monkeypatch, is_nearly_equal=1)


ANY_FACTOR = bounded.integer(0, ONE)


def replace_both(
    factor: Bounded, parabola: Bounded, monkeypatch: pytest.MonkeyPatch, *, is_nearly_equal: int
) -> ReplacedFactor:
    """Replace the power and the parabola: both are computed, and one of them is selected."""
    any_limb = bounded.integer(0, LIMB)
    power = bounded.integer(0, int(POWERS_OF_T.high)), any_limb, any_limb
    no_rate = 0, 0, 0, 0, 0
    factors = Mock(return_value=factor)
    parabolas = Mock(return_value=parabola)
    monkeypatch.setattr(inverse_power, "inverse_power_of", factors)
    monkeypatch.setattr(inverse_power, "parabola_at", parabolas)

    def check(xp: Operations, at: SegmentPosition) -> None:
        steps = at.elapsed
        if at.start < at.end:
            steps = at.remaining
        factors.assert_called_once_with(xp, 1, 0, list(power))
        parabolas.assert_called_once_with(xp, steps * at.inverse, 0, list(power))
        factors.reset_mock()
        parabolas.reset_mock()

    return ReplacedFactor((*no_rate, *power, is_nearly_equal), check)


# Monotonicity.

OCTAVES_OF_P = tuple(octaves(POWERS_OF_T))
GROWTHS = Interval(LEAST_GROWTH, MAX_T)
OCTAVES_OF_GROWTH = tuple(octaves(GROWTHS))


def test_octaves_contain_every_power_and_growth() -> None:
    assert_covered(POWERS_OF_T, OCTAVES_OF_P)
    assert_covered(GROWTHS, OCTAVES_OF_GROWTH)


def prove_inverse_power_is_monotone(powers: Interval) -> None:
    """E = P·log₂ t with t = 1 + g·j/L, for P and the growth g between two powers of two.

    From one step to the next E grows by more than P/ln 2·g/L/(1 + g). It is at most P·log₂(1 + g).
    """
    for growth in OCTAVES_OF_GROWTH:
        # log₂(1 + g) is below g/ln 2, and at most n if 1 + g is at most 2ⁿ.
        doublings = min(growth.high / LN_2.low, ceil(growth.high).bit_length())
        total = Interval(0, powers.high * doublings)
        error = INVERSE_POWERS.error_of_exponents(total, powers)
        slope = powers.low / LN_2.high
        least_change = slope * LEAST_STEP * growth.low / (1 + growth.low)
        assert least_change - error.width > least_change_of_exponent()


# The parabola.


@pytest.mark.parametrize("p", [1, int(POWERS_OF_T.high)])
def test_formula_of_parabola(p: int) -> None:
    """S = x + (P + 1)/2·(t - 1)·(1 - x)."""
    x, x_in_units = unknown("x", Fraction(1, 4))
    growth, growth_in_units = unknown("t - 1", Fraction(1, 2**23))
    value = inverse_power.parabola_at(BOUNDED, x_in_units, growth_in_units, (p, 0, 0))
    bend = growth.scaled(Fraction(p + 1, 2))
    parabola = x + bend * (constant(1) - x)
    assert value.exact == parabola.scaled(ONE)


def test_error_of_parabola() -> None:
    assert any_parabola().error.outward(1000) == ERROR_OF_PARABOLA


def test_parabola_is_at_most_1() -> None:
    """1 - S is a product of two positive numbers, (1 - x)·(1 - bend), and what is rounded down.

    So (1 - S)/(1 - x) is positive. At x = 1, where 1 - x is 0, S is x.
    """
    one_minus_x = Variable("1 - x", Interval(1, ONE))
    x = ONE - Integer(power_of(one_minus_x, 1), one_minus_x.range)
    growth = integer("growth", Interval(0, LEAST_GROWTH * ONE))
    power = every_power_or_more(POWERS_OF_T)
    parabola = inverse_power.parabola_at(INTEGERS, x, growth, power)
    quotient = (constant(ONE) - parabola.value) * power_of(one_minus_x, -1)
    assert quotient.range.is_not_negative
    one = integer("1", point(ONE))
    at_the_end = inverse_power.parabola_at(INTEGERS, one, growth, power)
    assert at_the_end == ONE


# t/2ᵏ near 1.

LEAST_PAST = 3 * ONE // 7
"""The least y - 1 that is past 10/7."""


@dataclass(frozen=True)
class Fractions:
    """Fractions of t/2ᵏ on one side of 10/7."""

    fractions: Interval
    is_past: bool
    y_minus_1: Interval


SIDES_OF_THE_END = [
    Fractions(Interval(0, LEAST_PAST - 1), False, Interval(0, 3 * ONE // 7)),
    Fractions(Interval(LEAST_PAST, ONE - 1), True, Interval(-2 * ONE // 7, 0)),
]
both_sides = pytest.mark.parametrize("side", SIDES_OF_THE_END, ids=["up to 10/7", "past 10/7"])


@both_sides
@pytest.mark.parametrize("doublings", range(MOST_K_OF_T))
def test_normalized_number_is_rounded_down_once(
    doublings: int, side: Fractions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """t/2ᵏ - 1 is rounded down, for t from 1 up to 2⁶².

    The t between two powers of two are one case. Only the range of the fraction is known, so both
    answers to whether t/2ᵏ is past 10/7 are followed.
    """
    monkeypatch.setattr(Integer, "answer", side.is_past)
    whole = integer("whole", Interval(2**doublings, 2 ** (doublings + 1) - 1))
    fraction = integer("fraction", FRACTIONS)
    k, y_minus_1 = inverse_power.normalize(INTEGERS, whole, fraction)
    assert k == doublings + side.is_past
    y = y_minus_1.value + constant(ONE)
    missing = joined_with_fraction(whole, fraction) - y.scaled(2**k)
    assert missing.range.within(Interval(0, 2**k - 1))


def test_greatest_t_is_normalized_exactly() -> None:
    t = integer("t", point(MAX_T))
    nothing = integer("0", point(0))
    k, y_minus_1 = inverse_power.normalize(INTEGERS, t, nothing)
    assert k == MOST_K_OF_T
    assert 2**k == MAX_T
    assert y_minus_1 == 0


@both_sides
def test_normalized_number_is_near_1(side: Fractions) -> None:
    """t/2ᵏ - 1 lies in [-2/7, 3/7]. After the shifts, every t is treated like one from 1 to 2."""
    one = integer("1", point(1))
    fraction = integer("fraction", side.fractions)
    k, y_minus_1 = inverse_power.normalize(INTEGERS, one, fraction)
    assert k == side.is_past
    assert y_minus_1.range.within(side.y_minus_1)
    assert side.y_minus_1.within(Y_MINUS_1)


def test_both_sides_contain_every_fraction() -> None:
    normalized = (NORMALIZED - point(1)).scaled(ONE)
    assert normalized.within(Y_MINUS_1 + Interval(0, 1))
    up_to_the_end, past_the_end = SIDES_OF_THE_END
    low = up_to_the_end.fractions
    high = past_the_end.fractions
    assert low.low == FRACTIONS.low
    assert low.high + 1 == high.low
    assert high.high == FRACTIONS.high


# How the inverse power joins its parts.


@pytest.mark.parametrize("limbs", EVERY_POWER_OF_T, ids=repr)
def test_inverse_power_joins_its_parts(limbs: Limbs, monkeypatch: pytest.MonkeyPatch) -> None:
    """t^(-P) is 2^(-E) with E = P·k + B(y)·(P·(y - 1) + c), where t = 2ᵏ·y and c centers the error.

    E is at most eight units low: four for `exponent_of_power`, and B < 2 for two units of
    P·(y - 1).
    """
    power = limbs.unknown()
    t = integer("t", Interval(1, MAX_T))
    fraction = integer("fraction", FRACTIONS)
    k = integer("k", Interval(0, MOST_K_OF_T))
    y_minus_1 = integer("y - 1", Y_MINUS_1)
    normalize = Mock(return_value=(k, y_minus_1))
    monkeypatch.setattr(inverse_power, "normalize", normalize)
    half_slope = replace_function("half_log_slope", HALF_SLOPE, inverse_power, monkeypatch)
    power_of_two = replace_function("two_to_minus", UP_TO_ONE, inverse_power, monkeypatch)

    value = inverse_power.inverse_power_of(INTEGERS, t, fraction, power)

    assert value is power_of_two.return_value
    normalize.assert_called_once_with(INTEGERS, t, fraction)
    half_slope.assert_called_once_with(INTEGERS, y_minus_1 + ONE)
    centering = constant(inverse_power.CENTERING)
    product = (y_minus_1.value * joined(*power)).halved(62) + centering
    twice_slope = half_slope.return_value.value.scaled(2)
    exact = k.value * joined(*power) + (twice_slope * product).halved(62)
    missing = exact - exponent_given_to(power_of_two)
    assert missing.range.within(Interval(0, 8))


@pytest.mark.parametrize("doublings", OCTAVES_OF_LENGTH)
def test_t_of_inverse_power(doublings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """t is 1 + steps·r, rounded down."""
    rate = any_rate()
    factor = replace_function("inverse_power_of", UP_TO_ONE, inverse_power, monkeypatch)
    for name in ("ratio", "level_below", "parabola_at"):
        replace_function(name, UP_TO_ONE, inverse_power, monkeypatch)
    power = every_power_or_more(POWERS_OF_T)
    for lengths in lengths_from(doublings):
        most_steps = min(lengths.high, MAX_LENGTH)
        largest_top = (MAX_RATE >> 4 * LIMB_BITS) // lengths.low
        steps = integer("steps", Interval(1, most_steps))
        top = integer("top", Interval(0, largest_top))
        at = FALLING._replace(elapsed=steps)
        factor.reset_mock()
        InversePower.fixed_level(INTEGERS, at, (top, *rate, *power, 0))
        factor.assert_called_once()
        _, whole, fraction, _ = factor.call_args.args
        t = (steps.value * joined(top, *rate)).halved(31) + constant(ONE)
        missing = t - joined_with_fraction(whole, fraction)
        assert missing.range.within(Interval(0, 1))


@from_higher_level
def test_level_of_inverse_power_joins_its_parts(
    at: SegmentPosition, steps: Integer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level is the higher one times t^(-P). The parabola needs only the fraction of t."""
    top = integer("top", Interval(0, 1))
    rate = any_rate()
    power = every_power_or_more(POWERS_OF_T)
    x = replace_function("ratio", UP_TO_ONE, inverse_power, monkeypatch)
    factor = replace_function("inverse_power_of", UP_TO_ONE, inverse_power, monkeypatch)
    level = replace_function("level_below", UP_TO_ONE, inverse_power, monkeypatch)
    parabola = replace_function("parabola_at", UP_TO_ONE, inverse_power, monkeypatch)

    value = InversePower.fixed_level(INTEGERS, at, (top, *rate, *power, 0))

    assert value is level.return_value
    level.assert_called_once_with(INTEGERS, at, factor.return_value)
    x.assert_called_once_with(steps, INVERSE, INVERSE_REST)
    factor.assert_called_once()
    xp, _, fraction, power_of_factor = factor.call_args.args
    assert xp is INTEGERS
    assert tuple(power_of_factor) == power
    parabola.assert_called_once_with(INTEGERS, x.return_value, fraction, power_of_factor)
