"""The value of a curve: within 2⁻⁵⁸ of the exact curve, and then rounded to float32 once.

`ERRORS` has what an interpolant or a power of two is off. Here it passes through the whole of
`_evaluate_rows`, in a table that has every shape, with levels in 62 bits. 2⁻⁵⁸ is 16 units of 2⁻⁶².

Where x is 0, the multiplier is the start level from the table, the nearest float32.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.examples import examples
from support.numerics.bounded import BOUNDED, Bounded, integer, near
from support.numerics.intervals import NOTHING, Interval, Polynomial, variable
from support.numerics.oracle import exactly, half_ulp
from support.numerics.proven import (
    ERROR_OF_HIGHER_LEVEL,
    ERROR_OF_LOWER_LEVEL,
    ERROR_OF_PARABOLA,
    ERRORS,
    LARGEST,
    PROMISED,
)

from plateau_jax.numerics.arithmetic import NUMPY, ONE, DecodedSegments
from plateau_jax.shapes import exponential, inverse_power
from plateau_jax.shapes.known_shapes import GEOMETRIC, INTERPOLATED, SHAPE_NUMBERS
from plateau_jax.shapes.shape import SegmentPosition
from plateau_jax.table import fixed_point

WITHIN_PROMISE = Interval(-PROMISED, PROMISED)


def show(name: str, error: Interval) -> None:
    print(f"{name}: value - exact lies in {error} units")
    assert error.within(WITHIN_PROMISE), f"{name} is off by {error}"


def levels(middle: Fraction, largest_distance: Fraction) -> tuple[Bounded, Bounded]:
    """Return a lower level, from just below the middle down, and a higher one from the middle up.

    A proof follows one direction, so it must know which level is higher. The error of a value
    depends on their distance, or on the higher level alone, and neither can be larger than here.
    """
    least_distance = Fraction(1, 2**40)
    low = Interval(middle - largest_distance / 2, middle - least_distance)
    high = Interval(middle, middle + largest_distance / 2)
    lower = near(low.scaled(ONE), ERROR_OF_LOWER_LEVEL)
    higher = near(high.scaled(ONE), ERROR_OF_HIGHER_LEVEL)
    return lower, higher


def unknown_levels() -> tuple[Polynomial, Bounded, Polynomial, Bounded]:
    """Return levels near 1/4 and near 3/4 as variables, each also in units of 2⁻⁶²."""
    width = Fraction(1, 2**20)
    low = variable("low", Interval(Fraction(1, 4), Fraction(1, 4) + width))
    high = variable("high", Interval(Fraction(3, 4), Fraction(3, 4) + width))
    return low, near(low.scaled(ONE), NOTHING), high, near(high.scaled(ONE), NOTHING)


ANY_LEVELS = levels(Fraction(1, 2), Fraction(1))


def start_and_end(low: Any, high: Any, rises: bool) -> tuple[Any, Any]:
    if rises:
        return low, high
    return high, low


BEGIN = 10
NEAR_START, NEAR_END = BEGIN + 1, BEGIN + 3
"""Steps of a segment of four steps. Only which end is nearer counts."""

POSITIONS = {
    NEAR_START: SegmentPosition(elapsed=1, remaining=3, x=ONE // 4),
    NEAR_END: SegmentPosition(elapsed=3, remaining=1, x=ONE // 4),
}


@dataclass(frozen=True)
class Float32:
    """The float32 nearest to a number, times a factor."""

    number: Bounded
    factor: float = 1.0

    def __mul__(self, factor: float) -> "Float32":
        return replace(self, factor=self.factor * factor)


def nearest_float32(number: Bounded, *, dtype: Any) -> Float32:
    assert dtype is Float32
    return Float32(number)


ROUNDING = BOUNDED._replace(float32=Float32, asarray=nearest_float32)


START_IN_TABLE = object()
"""The float32 of the start level."""


class Table:
    """A table with every shape. Each shape but one returns None, so that any use of it fails."""

    def __init__(self, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shape = shape
        self.parameters: dict[str, tuple[Any, ...]] = {}
        for name, other in INTERPOLATED.items():
            if name not in ("linear", shape):
                self.parameters[name] = ()
                monkeypatch.setattr(other, "interpolant", Mock(return_value=None))
        for name, other in GEOMETRIC.items():
            if name != shape:
                self.parameters[name] = ()
                monkeypatch.setattr(other, "fixed_level", Mock(return_value=None))

    def value(self, start: Bounded, end: Bounded, step: int, shift: int | None = None) -> Bounded:
        """Return the multiplier between two levels before it is rounded, in units of 2⁻⁶²."""
        segment = self.segment(start, end, shift)
        multiplier = fixed_point._evaluate_rows(ROUNDING, segment, step, 0)
        assert multiplier.factor == 2.0**-62
        return multiplier.number

    def segment(self, start: Any, end: Any, shift: int | None = None) -> DecodedSegments:
        return DecodedSegments(
            phase_begin=BEGIN,
            length=4,
            inverse=ONE // 4,
            inverse_rest=0,
            start=start,
            end=end,
            start_float32=START_IN_TABLE,
            shape_number=SHAPE_NUMBERS[self.shape],
            parameters=self.parameters,
            shift=shift,
        )


@pytest.fixture
def table_of(monkeypatch):
    """Return a function that makes a table with a shape whose interpolant is this number."""

    def make(shape: str, interpolant: Bounded) -> Table:
        table = Table(shape, monkeypatch)
        function = Mock(return_value=interpolant)
        if shape == "linear":
            monkeypatch.setattr(fixed_point, "ratio", function)
        else:
            table.parameters[shape] = ()
            monkeypatch.setattr(INTERPOLATED[shape], "interpolant", function)
        return table

    return make


falling_and_rising = pytest.mark.parametrize("rises", [False, True], ids=["falling", "rising"])
near_both_ends = pytest.mark.parametrize("step", [NEAR_START, NEAR_END], ids=["start", "end"])


@pytest.mark.parametrize("shape", SHAPE_NUMBERS)
def test_first_step_is_the_start_level_from_the_table(shape, monkeypatch):
    segment = Table(shape, monkeypatch).segment(ONE, 0)
    assert fixed_point._evaluate_rows(ROUNDING, segment, BEGIN, 0) is START_IN_TABLE


@pytest.mark.parametrize("step", POSITIONS)
def test_shape_is_given_the_position_of_the_step(step, monkeypatch):
    """Steps elapsed and remaining, and the smaller one as a fraction of the length."""
    table = Table("linear", monkeypatch)
    segment = table.segment(*reversed(ANY_LEVELS))
    fixed_point._evaluate_rows(ROUNDING, segment, step, 0)
    given = [shape.interpolant for name, shape in INTERPOLATED.items() if name != "linear"]
    given += [shape.fixed_level for shape in GEOMETRIC.values()]
    for function in given:
        function.assert_called_once_with(ROUNDING, segment, POSITIONS[step], ())


# Shapes with an interpolant.

IS_FROM_START = [
    ("linear", NEAR_START, True),
    ("linear", NEAR_END, False),
    ("cosine", NEAR_START, True),
    ("cosine", NEAR_END, False),
    ("1-sqrt", NEAR_START, True),
    ("1-sqrt", NEAR_END, True),
    ("1-x^P", NEAR_START, True),
    ("1-x^P", NEAR_END, True),
    ("(1-x)^P", NEAR_START, False),
    ("(1-x)^P", NEAR_END, False),
]
"""A shape, a step, and whether the value at the step is counted from the start."""


def test_every_shape_is_counted_from_an_end():
    assert {shape for shape, _, _ in IS_FROM_START} == INTERPOLATED.keys()


@falling_and_rising
@pytest.mark.parametrize(("shape", "step", "is_from_start"), IS_FROM_START)
def test_formula_of_interpolated_value(shape, step, is_from_start, rises, table_of):
    """a - (a - b)·S counted from the start level a; b + (a - b)·S from the end level b."""
    low, low_in_units, high, high_in_units = unknown_levels()
    s = variable("S", Interval(Fraction(1, 4), Fraction(1, 2)))
    table = table_of(shape, near(s.scaled(ONE), NOTHING))
    value = table.value(*start_and_end(low_in_units, high_in_units, rises), step)
    a, b = start_and_end(low, high, rises)
    if is_from_start:
        assert value.exact == (a - (a - b) * s).scaled(ONE)
    else:
        assert value.exact == (b + (a - b) * s).scaled(ONE)


@near_both_ends
@falling_and_rising
@pytest.mark.parametrize("shape", INTERPOLATED)
def test_interpolated_value(shape, rises, step, table_of):
    """Between any two levels, counted from the start or from the end, falling or rising."""
    least = int(shape == "linear")  # an x of 0 is the first step
    interpolant = near(Interval(0, LARGEST[shape] * ONE), ERRORS[shape], at_least=least)
    table = table_of(shape, interpolant)
    value = table.value(*start_and_end(*ANY_LEVELS, rises), step)
    show(shape, value.error)


MOST_DOUBLINGS = 31
"""A factor of a batch plan is at most 2³¹."""


@near_both_ends
@pytest.mark.parametrize("shift", range(1, MOST_DOUBLINGS + 1))
def test_value_that_a_batch_plan_scales(shift, step, table_of):
    """Levels above 1 are stored divided by 2ⁿ, less than twice the factor: the error grows by 2ⁿ.

    The product is at most 1 at every step that is reached, so `value << n` is at most 2⁶² + 16·2ⁿ.
    Here both levels are at most 2⁻ⁿ, so that all products are.
    """
    table = table_of("1-x^P", near(Interval(0, ONE), ERRORS["1-x^P"], at_least=0))
    low, high = levels(Fraction(1, 2 ** (shift + 1)), Fraction(1, 2**shift))
    value = table.value(high, low, step, shift)
    assert value.error.within(WITHIN_PROMISE.scaled(2**shift))
    assert value.computed.high <= ONE


@pytest.mark.parametrize("shift", range(1, MOST_DOUBLINGS + 1))
def test_scaled_value_is_at_most_1(shift, table_of):
    """From 2ⁿ down to 0, at all steps with a product of at most 1, whatever the error of S."""
    largest = 1 - Fraction(1, 2**shift)
    table = table_of("1-x^P", near(Interval(largest * ONE, ONE), ERRORS["1-x^P"]))
    value = table.value(integer(ONE, ONE), integer(0, 0), NEAR_START, shift)
    assert value.error.within(WITHIN_PROMISE.scaled(2**shift))
    assert value.computed.high == ONE


# Shapes whose levels are the higher level times 2^(-E).


LEAST_GROWTH = inverse_power._LEAST_GROWTH
A_LIMB = integer(0, 2**31 - 1)
ANY_POWER = integer(0, 4), A_LIMB, A_LIMB
ANY_GROWTH = near(Interval(0, LEAST_GROWTH * ONE), Interval(-2, 0), at_least=0)
ANY_X = near(Interval(0, ONE), Interval(-2, 0), at_least=0)
"""The steps from the higher level, as a fraction of all steps."""
ANY_NUMBER = integer(0, ONE)


@pytest.fixture
def geometric_table(monkeypatch):
    """Return a function that makes a table with a shape whose 2^(-E) is this number.

    The parabola of t^(-P) is computed too, and not selected.
    """

    def make(shape: str, factor: Bounded) -> Table:
        table = Table(shape, monkeypatch)
        table.parameters["exponential"] = 0, 0, 0, 0
        table.parameters["t^-P"] = 0, 0, 0, 0, 0, *ANY_POWER, 0
        monkeypatch.setattr(exponential, "two_to_minus", Mock(return_value=factor))
        monkeypatch.setattr(inverse_power, "_inverse_power", Mock(return_value=factor))
        monkeypatch.setattr(inverse_power, "_parabola", Mock(return_value=ANY_NUMBER))
        return table

    return make


every_geometric_shape = pytest.mark.parametrize("shape", GEOMETRIC)


@falling_and_rising
@every_geometric_shape
def test_formula_of_geometric_level(shape, rises, geometric_table):
    """h·2^(-E), where that is above the lower level."""
    _, low_in_units, high, high_in_units = unknown_levels()
    factor = variable("2^(-E)", Interval(Fraction(1, 2), Fraction(3, 4)))
    table = geometric_table(shape, near(factor.scaled(ONE), NOTHING))
    value = table.value(*start_and_end(low_in_units, high_in_units, rises), NEAR_START)
    assert value.exact == (high * factor).scaled(ONE)


@falling_and_rising
@every_geometric_shape
def test_geometric_level_is_not_below_the_lower_level(shape, rises, geometric_table):
    low, low_in_units, _, high_in_units = unknown_levels()
    factor = variable("2^(-E)", Interval(Fraction(1, 8), Fraction(1, 4)))
    table = geometric_table(shape, near(factor.scaled(ONE), NOTHING))
    value = table.value(*start_and_end(low_in_units, high_in_units, rises), NEAR_START)
    assert value.exact == low.scaled(ONE)


@falling_and_rising
@every_geometric_shape
def test_geometric_level(shape, rises, geometric_table):
    """The higher level times 2^(-E), and not below the lower level."""
    table = geometric_table(shape, near(Interval(0, ONE), ERRORS[shape], at_least=0))
    value = table.value(*start_and_end(*ANY_LEVELS, rises), NEAR_START)
    show(shape, value.error)


# t^(-P) between nearly equal levels, which is a parabola.


@pytest.fixture
def nearly_flat_table(monkeypatch):
    """Return a function that makes a table with a t^(-P) whose parabola is this number."""

    def make(parabola: Bounded) -> Table:
        table = Table("t^-P", monkeypatch)
        table.parameters["t^-P"] = 0, 0, 0, 0, 0, *ANY_POWER, 1
        monkeypatch.setattr(inverse_power, "_inverse_power", Mock(return_value=ANY_NUMBER))
        monkeypatch.setattr(inverse_power, "_parabola", Mock(return_value=parabola))
        return table

    return make


@falling_and_rising
def test_formula_between_nearly_equal_levels(rises, nearly_flat_table):
    """h - (h - l)·S, with the parabola S."""
    low, low_in_units, high, high_in_units = unknown_levels()
    s = variable("S", Interval(Fraction(1, 4), Fraction(1, 2)))
    table = nearly_flat_table(near(s.scaled(ONE), NOTHING))
    value = table.value(*start_and_end(low_in_units, high_in_units, rises), NEAR_START)
    assert value.exact == (high - (high - low) * s).scaled(ONE)


@falling_and_rising
def test_inverse_power_between_nearly_equal_levels(rises, nearly_flat_table):
    """The parabola is x + (P + 1)/2·g·x·(1 - x), with t = 1 + g·x and g < 2⁻²².

    With a = (P + 1)/2 and c = (P + 1)(P + 2)/6, the exact S is N/D, where

        N = x·(1 - a·g·x + c·g²·x² - …)    D = 1 - a·g + c·g² - …

    So S = x·(1 + a·g·(1 - x) + R), and |R| is hardly above (1 - x)·|a² - c·(1 + x)|·g², which is
    below 2·g² for P up to 4. The levels are at most 4·g apart. What the parabola omits is therefore
    below 8·g³ < 2⁻⁶³, half a unit.
    """
    parabola = inverse_power._parabola(BOUNDED, ANY_X, ANY_GROWTH, ANY_POWER)
    assert parabola.error.within(ERROR_OF_PARABOLA)
    omitted = Interval(Fraction(-1, 2), Fraction(1, 2))
    nearly_equal = levels(Fraction(1, 2), 4 * LEAST_GROWTH)
    table = nearly_flat_table(parabola)
    value = table.value(*start_and_end(*nearly_equal, rises), NEAR_START)
    show("t^-P", value.error + omitted)


# The rounding to float32.


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
