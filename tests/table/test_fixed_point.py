"""The integer arithmetic and the table of a curve, against functions in 300 bits."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from proofs.arithmetic.bounded import ERROR_OF_PRODUCT
from proofs.arithmetic.intervals import Interval
from proofs.arithmetic.proven import LEAST_GROWTH
from proofs.shapes.spec import GeometricSpec, InterpolatedSpec
from proofs.shapes.specs import GEOMETRIC_SPECS, INTERPOLATED_SPECS, SPECS, spec_and_power
from proofs.shapes.test_inverse_power import InversePowerSpec
from support.curves.descriptions import build, descriptions
from support.curves.strategies import MAX_STEP, Words, words
from support.examples import examples
from support.numerics.oracle import (
    Description,
    Oracle,
    exactly,
    lowest_level,
    mp,
)

from plateau_jax import StagedCurve
from plateau_jax.numerics.arithmetic import NUMPY, PYTHON, multiply, ratio
from plateau_jax.numerics.exponents import power_limbs
from plateau_jax.shapes.known_shapes import GEOMETRIC, INTERPOLATED
from plateau_jax.shapes.shape import SegmentPosition
from plateau_jax.table.encoding import DecodedSegments, decode_table, python_rows

Ints = NDArray[np.int64]

ONE = 2**62
powers_of_two = st.integers(0, 62).map(lambda bits: 2**bits)
up_to_one = st.integers(0, ONE) | powers_of_two
signed = st.builds(int.__mul__, up_to_one, st.sampled_from((-1, 1)))


@examples(500)
@given(signed, up_to_one)
def test_product_is_at_most_two_units_low(a: int, b: int) -> None:
    product = multiply(np.int64(a), np.int64(b))
    assert product == multiply(a, b)
    assert 0 <= Fraction(a * b, ONE) - int(product) < 3


@examples(500)
@given(signed, up_to_one, st.integers(0, 2**40))
def test_product_never_decreases(a: int, b: int, more: int) -> None:
    product = multiply(a, b)
    assert multiply(min(a + more, ONE), b) >= product
    if a >= 0:
        assert multiply(a, min(b + more, ONE)) >= product


@given(st.decimals("0.05", "20"))
def test_power_is_rounded_to_the_nearest_unit(power: Decimal) -> None:
    exact = Fraction(power)
    high, middle, low = power_limbs(exact)
    units = (high << 62) + (middle << 31) + low
    assert abs(units - exact * ONE) <= Fraction(1, 2)


def first_segment(length: int, low: float, shape: str) -> DecodedSegments:
    """Return the segment from 1 to a level as a row in Python numbers."""
    table = StagedCurve([(length, low, shape)], start=1).table
    _, rows = python_rows(decode_table(NUMPY, table))
    return rows[0]


def evaluate(function: Callable[..., Any], segment: DecodedSegments, elapsed: Ints) -> Ints:
    """Return a shape's values in NumPy; check that Python computes the same at both ends."""
    (parameters,) = segment.parameters.values()
    values = function(NUMPY, position_in(segment, elapsed), parameters)
    for index in (0, -1):
        at = position_in(segment, int(elapsed[index]))
        assert function(PYTHON, at, parameters) == values[index]
    return values


def position_in(segment: DecodedSegments, elapsed: int | Ints) -> SegmentPosition:
    remaining = segment.length - elapsed
    if isinstance(elapsed, int):
        nearer = min(elapsed, remaining)
    else:
        nearer = np.minimum(elapsed, remaining)
    return SegmentPosition(
        elapsed=elapsed,
        remaining=remaining,
        x=ratio(nearer, segment.inverse, segment.inverse_rest),
        length=segment.length,
        inverse=segment.inverse,
        inverse_rest=segment.inverse_rest,
        start=segment.start,
        end=segment.end,
    )


def draw_elapsed(read: Words, length: int) -> int:
    """Return a number of steps near the beginning or near the end of a stage."""
    from_beginning = read.magnitude(1, length - 1)
    from_end = read.magnitude(1, length - 1)
    return read.one_of((from_beginning, length - from_end))


def assert_within(bounds: Interval, error: Any) -> None:
    """Compare with bounds in units of 2⁻⁶², which a spec proves."""
    assert exactly(bounds.low) <= error <= exactly(bounds.high)


CURVED = [spec for name, spec in INTERPOLATED_SPECS.items() if name != "linear"]
every_curved_shape = pytest.mark.parametrize("spec", CURVED, ids=[spec.name for spec in CURVED])


@every_curved_shape
@examples(500)
@given(read=words(8))
def test_interpolant_stays_within_its_units(spec: InterpolatedSpec, read: Words) -> None:
    shape = read.shape((spec.name,))
    length = read.magnitude(2, MAX_STEP)
    elapsed = draw_elapsed(read, length)
    segment = first_segment(length, 0, shape)
    if spec.name not in segment.parameters:
        return  # a line or a root
    interpolant = INTERPOLATED[spec.name].interpolant
    (value,) = evaluate(interpolant, segment, np.array([elapsed]))
    _, power = spec_and_power(shape)
    x = exactly(Fraction(elapsed, length))
    expected = spec.formula(mp, x, exactly(power))
    if spec.counted_from == "nearer end" and 2 * elapsed > length:
        expected = 1 - expected
    assert_within(spec.error, int(value) - expected * ONE)


@every_curved_shape
@given(first=st.integers(1, MAX_STEP // 2 - 64))
def test_interpolant_never_goes_the_wrong_way(spec: InterpolatedSpec, first: int) -> None:
    for shape in spec.samples:
        segment = first_segment(MAX_STEP, 0, shape)
        interpolant = INTERPOLATED[spec.name].interpolant
        values = evaluate(interpolant, segment, np.arange(first, first + 64))
        if spec.counted_from == "end":
            values = -values
        assert (np.diff(values) >= 0).all()


@pytest.mark.parametrize("spec", GEOMETRIC_SPECS.values(), ids=GEOMETRIC_SPECS)
@examples(500)
@given(read=words(8))
def test_geometric_level_stays_within_its_units(spec: GeometricSpec, read: Words) -> None:
    shape = read.shape((spec.name,))
    length = read.magnitude(2, MAX_STEP)
    low = max(read.ratio(), lowest_level(shape))
    elapsed = draw_elapsed(read, length)
    segment = first_segment(length, low, shape)
    if not segment.parameters:
        return  # between equal levels
    fixed_level = GEOMETRIC[spec.name].fixed_level
    (value,) = evaluate(fixed_level, segment, np.array([elapsed]))
    oracle = Oracle({"stages": [(length, low, shape)], "start": 1})
    error = int(value) - oracle(elapsed) * ONE
    assert_within(spec.error + ERROR_OF_PRODUCT, error)


@examples(500)
@given(words(6))
def test_parabola_between_nearly_equal_levels(read: Words) -> None:
    name = InversePowerSpec.name
    shape = read.shape((name,))
    length = read.magnitude(2, MAX_STEP)
    _, power = spec_and_power(shape)
    elapsed = read.magnitude(1, length - 1)
    less = read.magnitude(1, 2**20 - 1)  # often only a little less than the least growth
    growth = exactly(LEAST_GROWTH * (1 - Fraction(less, 2**20)))
    low = float((1 + growth) ** -exactly(power))
    segment = first_segment(length, low, shape)
    *_, is_nearly_equal = segment.parameters[name]
    assert is_nearly_equal
    fixed_level = GEOMETRIC[name].fixed_level
    (value,) = evaluate(fixed_level, segment, np.array([elapsed]))
    oracle = Oracle({"stages": [(length, low, shape)], "start": 1})
    assert abs(int(value) - oracle(elapsed) * ONE) <= 4


# The table of a curve: its rows and its columns.


@given(descriptions(depth=0, kind="plateaus"))
def test_table_has_a_row_for_each_segment(chosen: Description) -> None:
    table = build(chosen).table
    assert table.begin.tolist() == Oracle(chosen).borders
    for column in table.columns().values():
        assert column.shape == table.begin.shape
        assert column.dtype == np.int32
        assert not column.flags.writeable


def test_table_has_a_row_per_stage() -> None:
    linear = StagedCurve([(10, 1), (0, 0.5), (5,), (0, 0.2)])
    assert linear.table.begin.tolist() == [0, 10, 10, 15, 15]
    assert len(linear.table.columns()) == 12


CURVED_STAGES = [
    (9, 0.9**number, spec.samples[-1]) for number, spec in enumerate(SPECS.values(), 1)
]


def test_table_has_columns_of_its_shapes() -> None:
    linear = StagedCurve([(10, 1)]).table.columns()
    curved = StagedCurve(CURVED_STAGES, start=1.0).table.columns()
    assert linear.keys() < curved.keys()
    for column in curved.values():
        assert column.shape == (len(SPECS) + 1,)


def test_stage_that_holds_or_jumps_adds_no_column() -> None:
    curve = StagedCurve(
        [
            (5, None, "exponential"),
            (0, 0.5, "exponential"),
            (0, 0, "exponential"),
            (5,),
        ]
    )
    assert not curve.table.parameters
    assert curve(range(10)).tolist() == [0] * 10


def test_stage_between_equal_levels_keeps_the_columns_of_its_shape() -> None:
    curved = StagedCurve(CURVED_STAGES, start=1.0).table
    flat_stages = [(9, 1, shape) for _, _, shape in CURVED_STAGES]
    flat = StagedCurve(flat_stages, start=1).table
    assert flat.columns().keys() == curved.columns().keys()
