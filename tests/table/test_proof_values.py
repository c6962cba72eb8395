"""The value of a curve: within 2⁻⁵⁸ of the exact curve, and then rounded to float32 once.

`ERRORS` has what an interpolant or a power of two is off. Here it passes through `_interpolate` and
`level_below`, with levels in 62 bits. 2⁻⁵⁸ is 16 units of 2⁻⁶².
"""

from fractions import Fraction
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.examples import examples
from support.numerics.bounded import BOUNDED, Bounded, integer, near
from support.numerics.intervals import NOTHING, Interval, Polynomial, variable
from support.numerics.oracle import exactly, half_ulp
from support.numerics.proven import (
    ERRORS,
    LARGEST,
    OF_HIGHER_LEVEL,
    OF_LOWER_LEVEL,
    OF_PARABOLA,
    PROMISED,
)

from plateau_jax.numerics.arithmetic import NUMPY, ONE
from plateau_jax.shapes import exponential, inverse_power
from plateau_jax.shapes.exponential import Exponential
from plateau_jax.shapes.inverse_power import InversePower
from plateau_jax.shapes.known_shapes import INTERPOLATED
from plateau_jax.shapes.shape import SegmentPosition, level_below
from plateau_jax.table import fixed_point

WITHIN_PROMISE = Interval(-PROMISED, PROMISED)


def show(name: str, error: Interval) -> None:
    print(f"{name}: value - exact lies in {error} units")
    assert error.within(WITHIN_PROMISE), f"{name} is off by {error}"


def levels(middle: Fraction, largest_distance: Fraction) -> tuple[Bounded, Bounded]:
    """Return a lower level, from just below the middle down, and a higher one from the middle up.

    A proof follows one direction, so it must know which level is higher. Only their distance
    counts.
    """
    least_distance = Fraction(1, 2**40)
    low = Interval(middle - largest_distance / 2, middle - least_distance)
    high = Interval(middle, middle + largest_distance / 2)
    return near(low.scaled(ONE), OF_LOWER_LEVEL), near(high.scaled(ONE), OF_HIGHER_LEVEL)


def segment_between(start: Bounded, end: Bounded, shift: int | None = None) -> SimpleNamespace:
    """Return a segment of four steps, not curved; the interpolant replaces its `ratio`."""
    return SimpleNamespace(
        phase_begin=0, length=4, start=start, end=end, parameters={}, shift=shift
    )


def between(low: Bounded, high: Bounded, rises: bool) -> SimpleNamespace:
    if rises:
        return segment_between(low, high)
    return segment_between(high, low)


def interpolate(interpolant: Bounded, segment: SimpleNamespace, step: int) -> Bounded:
    """Run `_interpolate` with any interpolant in place of x, as in a straight line."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fixed_point, "ratio", Mock(return_value=interpolant))
        _, value = fixed_point._interpolate(BOUNDED, segment, step)
    return value


def unknown_levels() -> tuple[Polynomial, Bounded, Polynomial, Bounded]:
    """Return levels near 1/4 and near 3/4 as variables, each also in units of 2⁻⁶²."""
    width = Fraction(1, 2**20)
    low = variable("low", Interval(Fraction(1, 4), Fraction(1, 4) + width))
    high = variable("high", Interval(Fraction(3, 4), Fraction(3, 4) + width))
    return low, near(low.scaled(ONE), NOTHING), high, near(high.scaled(ONE), NOTHING)


NEAR_START, NEAR_END = 1, 3


@pytest.mark.parametrize("rises", [False, True])
def test_formula_of_interpolated_value(rises):
    """a - (a - b)·S counted from the start level a; b + (a - b)·S from the end level b."""
    low, low_in_units, high, high_in_units = unknown_levels()
    s = variable("S", Interval(Fraction(1, 4), Fraction(1, 2)))
    interpolant = near(s.scaled(ONE), NOTHING)
    a, b = high, low
    if rises:
        a, b = low, high
    segment = between(low_in_units, high_in_units, rises)
    from_start = interpolate(interpolant, segment, NEAR_START)
    assert from_start.exact == (a - (a - b) * s).scaled(ONE)
    from_end = interpolate(interpolant, segment, NEAR_END)
    assert from_end.exact == (b + (a - b) * s).scaled(ONE)


@pytest.mark.parametrize("step", [NEAR_START, NEAR_END])
@pytest.mark.parametrize("rises", [False, True])
@pytest.mark.parametrize("name", INTERPOLATED)
def test_interpolated_value(name, rises, step):
    """Between any two levels, counted from the start or from the end, falling or rising."""
    interpolant = near(Interval(0, LARGEST[name] * ONE), ERRORS[name], at_least=0)
    segment = between(*levels(Fraction(1, 2), Fraction(1)), rises)
    show(name, interpolate(interpolant, segment, step).error)


POSITION = SegmentPosition(1, 3, None)


@pytest.mark.parametrize("rises", [False, True])
def test_formula_of_geometric_level(rises):
    """h·2^(-E), where that is above the lower level."""
    _, low_in_units, high, high_in_units = unknown_levels()
    factor = variable("2^(-E)", Interval(Fraction(1, 2), Fraction(3, 4)))
    segment = between(low_in_units, high_in_units, rises)
    level = level_below(BOUNDED, segment, near(factor.scaled(ONE), NOTHING))
    assert level.exact == (high * factor).scaled(ONE)


@pytest.mark.parametrize("rises", [False, True])
def test_formula_between_nearly_equal_levels(rises, monkeypatch):
    """h - (h - l)·S, with the parabola S."""
    low, low_in_units, high, high_in_units = unknown_levels()
    s = variable("S", Interval(Fraction(1, 4), Fraction(1, 2)))
    segment = between(low_in_units, high_in_units, rises)
    parabola = Mock(return_value=near(s.scaled(ONE), NOTHING))
    monkeypatch.setattr(inverse_power, "_parabola", parabola)
    level = fixed_level_of_inverse_power(segment, 1, monkeypatch)
    assert level.exact == (high - (high - low) * s).scaled(ONE)


@pytest.mark.parametrize("rises", [False, True])
def test_exponential_level(rises, monkeypatch):
    """The higher level times 2^(-E), and not below the lower level."""
    factor = near(Interval(0, ONE), ERRORS["exponential"], at_least=0)
    monkeypatch.setattr(exponential, "two_to_minus", Mock(return_value=factor))
    segment = between(*levels(Fraction(1, 2), Fraction(1)), rises)
    level = Exponential.fixed_level(BOUNDED, segment, POSITION, (0, 0, 0, 0))
    show("exponential", level.error)


LEAST_GROWTH = inverse_power._LEAST_GROWTH
NO_LIMBS = 0, 0, 0, 0, 0
A_LIMB = integer(0, 2**31 - 1)
ANY_POWER = integer(0, 4), A_LIMB, A_LIMB
ANY_GROWTH = near(Interval(0, LEAST_GROWTH * ONE), Interval(-2, 0), at_least=0)
ANY_X = near(Interval(0, ONE), Interval(-2, 0), at_least=0)


def fixed_level_of_inverse_power(
    segment: SimpleNamespace, is_nearly_equal: int, monkeypatch: pytest.MonkeyPatch
) -> Bounded:
    """Run `fixed_level` with any t, any P, any x and any t^(-P)."""
    factor = near(Interval(0, ONE), ERRORS["t^-P"], at_least=0)
    monkeypatch.setattr(inverse_power, "_inverse_power", Mock(return_value=factor))
    monkeypatch.setattr(inverse_power, "steps_times_rate", Mock(return_value=(0, ANY_GROWTH)))
    monkeypatch.setattr(inverse_power, "ratio", Mock(return_value=ANY_X))
    parameters = *NO_LIMBS, *ANY_POWER, is_nearly_equal
    return InversePower.fixed_level(BOUNDED, segment, POSITION, parameters)


@pytest.mark.parametrize("rises", [False, True])
def test_inverse_power_level(rises, monkeypatch):
    """The higher level times t^(-P), and not below the lower level.

    The parabola is computed too, but discarded: it may have any value.
    """
    monkeypatch.setattr(inverse_power, "_parabola", Mock(return_value=0))
    segment = between(*levels(Fraction(1, 2), Fraction(1)), rises)
    level = fixed_level_of_inverse_power(segment, 0, monkeypatch)
    show("t^-P", level.error)


@pytest.mark.parametrize("rises", [False, True])
def test_inverse_power_between_nearly_equal_levels(rises, monkeypatch):
    """The parabola is x + (P + 1)/2·g·x·(1 - x), with t = 1 + g·x and g < 2⁻²².

    With a = (P + 1)/2 and c = (P + 1)(P + 2)/6, the exact S is N/D, where

        N = x·(1 - a·g·x + c·g²·x² - …)    D = 1 - a·g + c·g² - …

    So S = x·(1 + a·g·(1 - x) + R), and |R| is hardly above (1 - x)·|a² - c·(1 + x)|·g², which is
    below 2·g² for P up to 4. The levels are at most 4·g apart. What the parabola omits is therefore
    below 8·g³ < 2⁻⁶³, half a unit.
    """
    parabola = inverse_power._parabola(BOUNDED, ANY_X, ANY_GROWTH, ANY_POWER)
    assert parabola.error.within(OF_PARABOLA)
    omitted = Interval(Fraction(-1, 2), Fraction(1, 2))
    segment = between(*levels(Fraction(1, 2), 4 * LEAST_GROWTH), rises)
    level = fixed_level_of_inverse_power(segment, 1, monkeypatch)
    show("t^-P", level.error + omitted)


MOST_DOUBLINGS = 31
"""A factor of a batch plan is at most 2³¹."""


@pytest.mark.parametrize("step", [NEAR_START, NEAR_END])
def test_value_that_a_batch_plan_scales(step):
    """Levels above 1 are stored divided by 2ⁿ, less than twice the factor: the error grows by 2ⁿ.

    The product is at most 1 at every step that is reached, so `value << n` is at most 2⁶² + 16·2ⁿ.
    Here both levels are at most 2⁻ⁿ, so that all products are.
    """
    interpolant = near(Interval(0, ONE), ERRORS["1-x^P"], at_least=0)
    for shift in range(1, MOST_DOUBLINGS + 1):
        low, high = levels(Fraction(1, 2 ** (shift + 1)), Fraction(1, 2**shift))
        segment = segment_between(high, low, shift)
        value = interpolate(interpolant, segment, step)
        assert value.error.within(WITHIN_PROMISE.scaled(2**shift))
        assert value.computed.high <= ONE


@examples(300)
@given(st.integers(1, 62), st.integers(0, 2**62), st.integers(-PROMISED, PROMISED))
def test_rounding_adds_at_most_half_a_unit_in_the_last_place(bits, number, error):
    """The float32 f nearest to v' = v + e differs from v by half a unit in the last place + |e|.

    |f - v| <= |f - v'| + |v' - v|, and f is off v' by half a unit in the last place of v'. Below a
    power of two that unit is smaller than from there on. It counts at f or at v, wherever it is
    larger: if v' has reached a power of two, f has reached it too. Nothing is subnormal: v' is 0 or
    at least 2⁻⁶².
    """
    computed = number % 2**bits
    exact = max(Fraction(computed - error, ONE), Fraction(0))
    rounded = NUMPY.asarray(np.int64(computed), dtype=NUMPY.float32) * 2.0**-62
    larger = max(exactly(exact), exactly(float(rounded)))
    largest_error = half_ulp(larger) + exactly(Fraction(abs(error), ONE))
    assert abs(exactly(float(rounded)) - exactly(exact)) <= largest_error
