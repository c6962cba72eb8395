"""The value of a curve: within 2⁻⁵⁸ of the exact curve, and then rounded to float32 once.

A spec says how far its integers are off. Here this error passes through the whole of
`evaluate_rows`, in a table that has every shape, with levels in 62 bits. 2⁻⁵⁸ is 16 units of 2⁻⁶².

Where x is 0, the multiplier is the start level from the table, the nearest float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st
from proofs.arithmetic.bounded import BOUNDED, Bounded, as_bounded, integer, near
from proofs.arithmetic.errors_of_powers import any_parabola, omitted_from_values_on_parabola
from proofs.arithmetic.formulas import unknown
from proofs.arithmetic.intervals import NOTHING, Interval, Polynomial, union, variable
from proofs.arithmetic.positions import position
from proofs.arithmetic.proven import (
    ERROR_OF_HIGHER_LEVEL,
    ERROR_OF_LOWER_LEVEL,
    LEAST_GROWTH,
    MOST_DOUBLINGS,
    POWERS_OF_T,
    PROMISED,
)
from proofs.shapes.spec import InterpolatedSpec, ReplacedFactor, ShapeSpec
from proofs.shapes.specs import GEOMETRIC_SPECS, INTERPOLATED_SPECS, SPECS
from proofs.shapes.test_inverse_power import InversePowerSpec
from support.examples import examples
from support.numerics.oracle import exactly, half_ulp

from plateau_jax.curves import scaled_curve
from plateau_jax.numerics.arithmetic import NUMPY, ONE
from plateau_jax.shapes.known_shapes import GEOMETRIC, INTERPOLATED, SHAPE_NUMBERS, SHAPES
from plateau_jax.table import fixed_point
from plateau_jax.table.encoding import DecodedSegments

WITHIN_PROMISE = Interval(-PROMISED, PROMISED)


def show(spec: ShapeSpec, error: Interval) -> None:
    """Compare with the bound of the spec."""
    print(f"{spec.name}: value - exact lies in {error} units")
    assert error.within(WITHIN_PROMISE), f"{spec.name} is off by {error}"
    assert error.outward(1000) == spec.value_error


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


LOW, LOW_IN_UNITS = unknown("low", Fraction(1, 4))
HIGH, HIGH_IN_UNITS = unknown("high", Fraction(3, 4))


def in_units(number: Polynomial) -> Bounded:
    """Return a number in units of 2⁻⁶², without an error."""
    return near(number.scaled(ONE), NOTHING)


ANY_LEVELS = levels(Fraction(1, 2), Fraction(1))


def start_and_end(low: Any, high: Any, rises: bool) -> tuple[Any, Any]:
    if rises:
        return low, high
    return high, low


def start_and_end_in_units(rises: bool) -> tuple[Bounded, Bounded]:
    return start_and_end(LOW_IN_UNITS, HIGH_IN_UNITS, rises)


BEGIN = 10
NEAR_START, MIDDLE, NEAR_END = BEGIN + 1, BEGIN + 2, BEGIN + 3
"""Steps of a segment of four steps. Only which end is nearer counts."""

IN_FOUR_STEPS = position(length=4, inverse=ONE // 4, inverse_rest=0)

POSITIONS = {
    NEAR_START: IN_FOUR_STEPS._replace(elapsed=1, remaining=3, x=ONE // 4),
    MIDDLE: IN_FOUR_STEPS._replace(elapsed=2, remaining=2, x=ONE // 2),
    NEAR_END: IN_FOUR_STEPS._replace(elapsed=3, remaining=1, x=ONE // 4),
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

PARAMETERS = (object(),)


class Table:
    """A table with every shape. Each shape but one returns None, so that any use of it fails."""

    def __init__(self, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shape = shape
        self.parameters: dict[str, tuple[Any, ...]] = {}
        self.functions: dict[str, Mock] = {}
        self.monkeypatch = monkeypatch
        for name in INTERPOLATED.keys() - {"linear", shape}:
            self.replace(name, "interpolant", None)
        for name in GEOMETRIC.keys() - {shape}:
            self.replace(name, "fixed_level", None)

    def replace(self, name: str, function: str, result: Any) -> None:
        """Replace the function of a shape by one that returns the result."""
        self.parameters[name] = PARAMETERS
        self.functions[name] = Mock(return_value=result)
        self.monkeypatch.setattr(SHAPES[name], function, self.functions[name])

    def value(self, start: Bounded, end: Bounded, step: int, shift: int | None = None) -> Bounded:
        """Return the multiplier between two levels before it is rounded, in units of 2⁻⁶².

        Each replaced function is called once, with the position of the step.
        """
        segment = self.segment(start, end, shift)
        for function in self.functions.values():
            function.reset_mock()
        multiplier = fixed_point.evaluate_rows(ROUNDING, segment, step, 0)
        assert multiplier.factor == 2.0**-62
        at = POSITIONS[step]._replace(start=start, end=end)
        for name, function in self.functions.items():
            parameters = self.parameters[name]
            function.assert_called_once_with(ROUNDING, at, parameters)
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


class StraightTable(Table):
    """A table without curved shapes, in which x is any number."""

    def __init__(self, x: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("linear", monkeypatch)
        self.parameters.clear()
        self.functions.clear()
        self.ratio = Mock(return_value=x)
        monkeypatch.setattr(fixed_point, "ratio", self.ratio)

    def value(self, start: Bounded, end: Bounded, step: int, shift: int | None = None) -> Bounded:
        self.ratio.reset_mock()
        value = super().value(start, end, step, shift)
        at = POSITIONS[step]
        nearer = min(at.elapsed, at.remaining)
        self.ratio.assert_called_once_with(nearer, ONE // 4, 0)
        return value


MakeTable = Callable[[str, Bounded], Table]


@pytest.fixture
def table_of(monkeypatch: pytest.MonkeyPatch) -> MakeTable:
    """Return a function that makes a table with a shape whose interpolant is this number."""

    def make(shape: str, interpolant: Bounded) -> Table:
        if shape == "linear":
            return StraightTable(interpolant, monkeypatch)
        table = Table(shape, monkeypatch)
        table.replace(shape, "interpolant", interpolant)
        return table

    return make


DIRECTIONS = {"falling": False, "rising": True}
falling_and_rising = pytest.mark.parametrize("rises", DIRECTIONS.values(), ids=DIRECTIONS)


@pytest.mark.parametrize("shape", SHAPE_NUMBERS)
def test_first_step_is_the_start_level_from_the_table(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Table(shape, monkeypatch).segment(ONE, 0)
    multiplier = fixed_point.evaluate_rows(ROUNDING, segment, BEGIN, 0)
    assert multiplier is START_IN_TABLE


@pytest.mark.parametrize("step", POSITIONS)
def test_curved_shapes_do_not_change_a_straight_line(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower, higher = ANY_LEVELS
    x = as_bounded(POSITIONS[step].x)
    curved = Table("linear", monkeypatch)
    on_curved = curved.value(higher, lower, step)
    straight = StraightTable(x, monkeypatch)
    on_straight = straight.value(higher, lower, step)
    assert on_curved.computed == on_straight.computed


# Shapes with an interpolant.

every_interpolated_shape = pytest.mark.parametrize(
    "spec", INTERPOLATED_SPECS.values(), ids=INTERPOLATED_SPECS
)


@falling_and_rising
@pytest.mark.parametrize("step", POSITIONS)
@every_interpolated_shape
def test_formula_of_interpolated_value(
    spec: InterpolatedSpec, step: int, rises: bool, table_of: MakeTable
) -> None:
    """a - (a - b)·S counted from the start level a; b + (a - b)·S from the end level b."""
    s = variable("S", Interval(Fraction(1, 4), Fraction(1, 2)))
    table = table_of(spec.name, in_units(s))
    start, end = start_and_end_in_units(rises)
    value = table.value(start, end, step)
    a, b = start_and_end(LOW, HIGH, rises)
    at = POSITIONS[step]
    if spec.counts_from_start(at.elapsed, at.remaining):
        level = a - (a - b) * s
    else:
        level = b + (a - b) * s
    assert value.exact == level.scaled(ONE)


@every_interpolated_shape
def test_interpolated_value(spec: InterpolatedSpec, table_of: MakeTable) -> None:
    """Between any two levels, counted from the start or from the end, falling or rising."""
    least = int(spec.name == "linear")  # an x of 0 is the first step
    interpolant = near(Interval(0, spec.largest * ONE), spec.error, at_least=least)
    table = table_of(spec.name, interpolant)
    show(spec, error_between_any_levels(table))


def error_between_any_levels(table: Table) -> Interval:
    """Return the error of a value near the start, in the middle or near the end."""
    errors: list[Interval] = []
    for rises, step in product(DIRECTIONS.values(), POSITIONS):
        start, end = start_and_end(*ANY_LEVELS, rises)
        value = table.value(start, end, step)
        errors.append(value.error)
    return union(errors)


POWER = SPECS["1-x^P"]


def test_doublings_contain_every_factor() -> None:
    assert scaled_curve._MAX_FACTOR <= 2**MOST_DOUBLINGS


@pytest.mark.parametrize("step", [NEAR_START, NEAR_END], ids=["start", "end"])
@pytest.mark.parametrize("shift", range(1, MOST_DOUBLINGS + 1))
def test_value_that_a_batch_plan_scales(shift: int, step: int, table_of: MakeTable) -> None:
    """Levels above 1 are stored divided by 2ⁿ, less than twice the factor: the error grows by 2ⁿ.

    The product is at most 1 at every step that is reached, so `value << n` is at most 2⁶² + 16·2ⁿ.
    Here both levels are at most 2⁻ⁿ, so that all products are.
    """
    interpolant = near(Interval(0, ONE), POWER.error, at_least=0)
    table = table_of("1-x^P", interpolant)
    most = Fraction(1, 2**shift)
    low, high = levels(most / 2, most)
    value = table.value(high, low, step, shift)
    assert value.error.within(WITHIN_PROMISE.scaled(2**shift))
    assert value.computed.high <= ONE


@pytest.mark.parametrize("shift", range(1, MOST_DOUBLINGS + 1))
def test_scaled_value_is_at_most_1(shift: int, table_of: MakeTable) -> None:
    """From 2ⁿ down to 0, at all steps with a product of at most 1, whatever the error of S."""
    largest = 1 - Fraction(1, 2**shift)
    interpolant = near(Interval(largest * ONE, ONE), POWER.error)
    table = table_of("1-x^P", interpolant)
    start = integer(ONE, ONE)
    end = integer(0, 0)
    value = table.value(start, end, NEAR_START, shift)
    assert value.error.within(WITHIN_PROMISE.scaled(2**shift))
    assert value.computed.high == ONE


# Shapes whose levels are the higher level times 2^(-E).


class GeometricTable(Table):
    """A table with a shape whose factor of the higher level is any number."""

    def __init__(
        self, shape: str, replaced: ReplacedFactor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(shape, monkeypatch)
        self.replaced = replaced
        self.parameters[shape] = replaced.parameters

    def value(self, start: Bounded, end: Bounded, step: int, shift: int | None = None) -> Bounded:
        value = super().value(start, end, step, shift)
        at = POSITIONS[step]._replace(start=start, end=end)
        self.replaced.check(ROUNDING, at)
        return value


MakeGeometricTable = Callable[[str, Bounded], GeometricTable]


@pytest.fixture
def geometric_table(monkeypatch: pytest.MonkeyPatch) -> MakeGeometricTable:
    """Return a function that makes a table with a shape and its factor."""

    def make(shape: str, factor: Bounded) -> GeometricTable:
        spec = GEOMETRIC_SPECS[shape]
        replaced = spec.replace_factor(factor, monkeypatch)
        return GeometricTable(shape, replaced, monkeypatch)

    return make


@pytest.fixture
def table_of_parabola(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bounded], GeometricTable]:
    """Return a function that makes a table with t^(-P) between nearly equal levels."""

    def make(parabola: Bounded) -> GeometricTable:
        replaced = InversePowerSpec().replace_parabola(parabola, monkeypatch)
        return GeometricTable(InversePowerSpec.name, replaced, monkeypatch)

    return make


every_geometric_shape = pytest.mark.parametrize("shape", GEOMETRIC_SPECS)


@falling_and_rising
@every_geometric_shape
def test_formula_of_geometric_level(
    shape: str, rises: bool, geometric_table: MakeGeometricTable
) -> None:
    """h·2^(-E), where that is above the lower level."""
    factor = variable("2^(-E)", Interval(Fraction(1, 2), Fraction(3, 4)))
    table = geometric_table(shape, in_units(factor))
    start, end = start_and_end_in_units(rises)
    value = table.value(start, end, NEAR_START)
    level = HIGH * factor
    assert value.exact == level.scaled(ONE)


@falling_and_rising
@every_geometric_shape
def test_geometric_level_is_not_below_the_lower_level(
    shape: str, rises: bool, geometric_table: MakeGeometricTable
) -> None:
    factor = variable("2^(-E)", Interval(Fraction(1, 8), Fraction(1, 4)))
    table = geometric_table(shape, in_units(factor))
    start, end = start_and_end_in_units(rises)
    value = table.value(start, end, NEAR_START)
    assert value.exact == LOW.scaled(ONE)


@every_geometric_shape
def test_geometric_level(shape: str, geometric_table: MakeGeometricTable) -> None:
    """The higher level times 2^(-E), and not below the lower level."""
    spec = SPECS[shape]
    factor = near(Interval(0, ONE), spec.error, at_least=0)
    table = geometric_table(shape, factor)
    show(spec, error_between_any_levels(table))


# t^(-P) between nearly equal levels, which is a parabola.


@falling_and_rising
def test_formula_between_nearly_equal_levels(
    rises: bool, table_of_parabola: Callable[[Bounded], GeometricTable]
) -> None:
    """h - (h - l)·S, with the parabola S."""
    s = variable("S", Interval(Fraction(1, 4), Fraction(1, 2)))
    table = table_of_parabola(in_units(s))
    start, end = start_and_end_in_units(rises)
    value = table.value(start, end, NEAR_START)
    level = HIGH - (HIGH - LOW) * s
    assert value.exact == level.scaled(ONE)


@falling_and_rising
def test_inverse_power_between_nearly_equal_levels(
    rises: bool, table_of_parabola: Callable[[Bounded], GeometricTable]
) -> None:
    """The levels are at most P·g apart, and the parabola omits a multiple of g²."""
    low, high = levels(Fraction(1, 2), POWERS_OF_T.high * LEAST_GROWTH)
    start, end = start_and_end(low, high, rises)
    table = table_of_parabola(any_parabola())
    value = table.value(start, end, NEAR_START)
    error = value.error + omitted_from_values_on_parabola()
    print(f"parabola: value - exact lies in {error} units")
    assert error.within(InversePowerSpec.value_error)


# The rounding to float32.


@given(st.floats(2**-140, 1, width=32))
def test_half_a_unit_in_the_last_place(number: float) -> None:
    ulp = np.spacing(np.float32(number))
    assert half_ulp(exactly(number)) == exactly(float(ulp)) / 2


@examples(300)
@given(st.integers(1, 62), st.integers(0, 2**62), st.integers(-PROMISED, PROMISED))
def test_rounding_adds_at_most_half_a_unit_in_the_last_place(
    bits: int, number: int, error: int
) -> None:
    """The float32 f nearest to v' = v + e differs from v by half a unit in the last place + |e|.

    |f - v| <= |f - v'| + |v' - v|, and f is off v' by half a unit in the last place of v'. Below a
    power of two that unit is smaller than from there on. It counts at f or at v, wherever it is
    larger: if v' has reached a power of two, f has reached it too. Nothing is subnormal: v' is 0 or
    at least 2⁻⁶².
    """
    computed = number % 2**bits
    exact = exactly(max(Fraction(computed - error, ONE), Fraction(0)))
    in_float32 = NUMPY.asarray(np.int64(computed), dtype=NUMPY.float32) * 2.0**-62
    rounded = exactly(float(in_float32))
    larger = max(exact, rounded)
    largest_error = half_ulp(larger) + exactly(Fraction(abs(error), ONE))
    assert abs(rounded - exact) <= largest_error
