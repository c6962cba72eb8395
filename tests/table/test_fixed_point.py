"""The integer arithmetic, its table and its 224-bit numbers, against rationals and functions in 300 bits."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build
from support.curves.strategies import MAX_STEP, Words, arguments, magnitudes, shape_of, words
from support.examples import examples
from support.numerics.bounded import OF_A_PRODUCT
from support.numerics.oracle import Oracle, as_written, exactly, is_nearest_float32, power_of, share
from support.numerics.proven import ERRORS

from plateau_jax import StagedCurve
from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import NUMPY, PYTHON, multiply, ratio
from plateau_jax.shapes.known_shapes import GEOMETRIC, INTERPOLATED
from plateau_jax.shapes.shape import SegmentPosition

ONE = 2**62
up_to_one = st.one_of(st.integers(0, ONE), st.integers(0, 62).map(lambda bits: 2**bits))
signed = st.builds(int.__mul__, up_to_one, st.sampled_from((-1, 1)))


@examples(500)
@given(signed, up_to_one)
def test_product_is_at_most_two_units_low(a, b):
    product = multiply(np.int64(a), np.int64(b))
    assert product == multiply(a, b)
    assert 0 <= Fraction(a * b, ONE) - int(product) < 3


@examples(500)
@given(signed, up_to_one, st.integers(0, 2**40))
def test_product_never_decreases(a, b, more):
    product = multiply(a, b)
    assert multiply(min(a + more, ONE), b) >= product
    if a >= 0:
        assert multiply(a, min(b + more, ONE)) >= product


def _first_segment(length, low, shape):
    """Return the segment from 1 to a level as a row in Python numbers."""
    return StagedCurve([(length, low, shape)], start=1)._decoded_rows[1][0]


def _evaluate(function, segment, elapsed):
    """Return a shape's value in NumPy; check that Python computes the same at the first and last step."""
    (parameters,) = segment.parameters.values()
    remaining = segment.length - elapsed
    at = SegmentPosition(elapsed, remaining, ratio(np.minimum(elapsed, remaining), segment))
    values = function(NUMPY, segment, at, parameters)
    for index in (0, -1):
        at_one_step = SegmentPosition(*(int(number[index]) for number in at))
        assert function(PYTHON, segment, at_one_step, parameters) == values[index]
    return values


def _assert_within(bounds, error):
    """Compare with bounds in units of 2⁻⁶², which `test_proof_shapes` proves."""
    assert exactly(bounds.low) <= error <= exactly(bounds.high)


@pytest.mark.parametrize("name", sorted(INTERPOLATED.keys() - {"linear"}))
@examples(500)
@given(drawn=words(8))
def test_interpolant_stays_within_its_units(name, drawn):
    read = Words(drawn)
    shape = shape_of(read, (name,))
    length = read.magnitude(2, MAX_STEP)
    elapsed = read.one_of((read.magnitude(1, length - 1), length - read.magnitude(1, length - 1)))
    segment = _first_segment(length, 0, shape)
    if name not in segment.parameters:
        return  # a line or a root
    (value,) = _evaluate(INTERPOLATED[name].interpolant, segment, np.array([elapsed]))
    counted_from = INTERPOLATED[name].counted_from
    is_from_end = counted_from == "end" or (counted_from == "nearer end" and 2 * elapsed > length)
    interpolant = share(shape, exactly(Fraction(elapsed, length)))
    expected = 1 - interpolant if is_from_end else interpolant
    _assert_within(ERRORS[name], int(value) - expected * ONE)


@pytest.mark.parametrize("name", ["cosine", "1-sqrt"])
@given(first=st.integers(1, MAX_STEP // 2 - 64))
def test_interpolant_never_decreases(name, first):
    segment = _first_segment(MAX_STEP, 0, name)
    values = _evaluate(INTERPOLATED[name].interpolant, segment, np.arange(first, first + 64))
    assert (np.diff(values) >= 0).all()


@pytest.mark.parametrize("name", GEOMETRIC)
@examples(500)
@given(drawn=words(8))
def test_geometric_level_stays_within_its_units(name, drawn):
    read = Words(drawn)
    shape = shape_of(read, (name,))
    _, power = power_of(shape)
    length = read.magnitude(2, MAX_STEP)
    low = max(read.ratio(), 2.0 ** -int(62 * min(power or 1, 1)))
    elapsed = read.one_of((read.magnitude(1, length - 1), length - read.magnitude(1, length - 1)))
    segment = _first_segment(length, low, shape)
    if not segment.parameters:
        return  # between equal levels
    (value,) = _evaluate(GEOMETRIC[name].fixed_level, segment, np.array([elapsed]))
    x = exactly(Fraction(elapsed, length))
    if name == "exponential":
        expected = as_written(low) ** x
    else:
        expected = (1 - x + as_written(low) ** (-1 / power) * x) ** -power
    _assert_within(ERRORS[name] + OF_A_PRODUCT, int(value) - expected * ONE)


@examples(500)
@given(words(6))
def test_parabola_between_nearly_equal_levels(drawn):
    read = Words(drawn)
    shape, length = shape_of(read, ("t^-P",)), read.magnitude(2, MAX_STEP)
    power = power_of(shape)[1]
    elapsed, growth = read.magnitude(1, length - 1), exactly(Fraction(1 + read.below(2**20), 2**43))
    low = float((1 + growth) ** -power)
    segment = _first_segment(length, low, shape)
    *_, is_nearly_equal = segment.parameters["t^-P"]
    assert is_nearly_equal
    (value,) = _evaluate(GEOMETRIC["t^-P"].fixed_level, segment, np.array([elapsed]))
    growth = as_written(low) ** (-1 / power) - 1
    assert abs(int(value) - (1 + growth * elapsed / length) ** -power * ONE) <= 4


# The table of a curve: its rows and its columns.


@given(arguments())
def test_table_has_a_row_for_each_segment(chosen):
    table = build(chosen).table
    assert table.begin.tolist() == Oracle(chosen).borders
    for column in table.columns().values():
        assert (column.shape, column.dtype) == (table.begin.shape, np.int32)
        assert not column.flags.writeable


def test_table_has_row_per_stage_and_columns_of_its_shapes():
    linear = StagedCurve([(10, 1), (0, 0.5), (5,), (0, 0.2)])
    assert linear.table.begin.tolist() == [0, 10, 10, 15, 15]
    assert len(linear.table.columns()) == 12
    every = StagedCurve(
        [(9, 1, "cosine"), (9, 0.5, "1-sqrt"), (9, 0.1, "exponential"), (9, 0.2, "t^-2"), (9, 0, "1-x^2")]
    )
    assert linear.table.columns().keys() < every.table.columns().keys()
    assert {column.shape for column in every.table.columns().values()} == {(6,)}
    # A stage that holds or jumps adds no column; one between equal levels keeps those of its shape.
    curve = StagedCurve([(5, None, "exponential"), (0, 0.5, "exponential"), (0, 0, "exponential"), (5,)])
    assert not curve.table.parameters
    assert curve(range(10)).tolist() == [0] * 10
    flat = StagedCurve([(9, 1, shape) for _, _, shape in every.stages], start=1)
    assert flat.table.columns().keys() == every.table.columns().keys()


# The 224-bit numbers, compared with rationals and with functions in 300 bits.

positive = st.floats(5e-324, 1).map(exact.as_written)


@given(positive, positive, st.fractions(0, 1, max_denominator=MAX_STEP))
@example(Fraction(1), Fraction(1, 2), Fraction(0))
@example(Fraction(1), Fraction(1, 2), Fraction(1))
def test_decimal_functions_match_mpmath(one, other, x):
    digits = exact.to_decimal(one), exact.to_decimal(other)
    with mpmath.workprec(400):
        weight, share = exactly(x), exact.to_decimal(x)
        ends = exactly(one), exactly(other)
        mean = ends[0] ** (1 - weight) * ends[1] ** weight
        assert abs(exactly(Fraction(exact.geometric_mean(*digits, x))) / mean - 1) < mpmath.ldexp(1, -290)
        level = ends[0] * (1 - weight) + ends[1] * weight
        interpolated = exact.interpolate(*digits, share)
        assert abs(exactly(Fraction(interpolated)) / level - 1) < mpmath.ldexp(1, -250)
        root = exactly(Fraction(exact.square_root(x)))
        assert abs(root - mpmath.sqrt(weight)) < mpmath.ldexp(1, -290)
        cosine = exact.half_cosine(x)
        assert abs(exactly(Fraction(cosine)) - (1 - mpmath.cospi(weight)) / 2) < mpmath.ldexp(1, -290)
        assert x not in (0, 1) or cosine == x
        logarithm = mpmath.log(ends[0] / ends[1], 2)
        assert abs(exactly(exact.log2_ratio(*digits)) - logarithm) < mpmath.ldexp(1, -230)
        raised = exact.power(digits[0], x - 1 / Fraction(3))
        assert abs(
            exactly(Fraction(raised)) / ends[0] ** (weight - exactly(Fraction(1, 3))) - 1
        ) < mpmath.ldexp(1, -290)
        assert abs(exact.from_decimal(digits[0]) - mpmath.ldexp(ends[0], 224)) < 0.51


@given(st.integers(24, 224).flatmap(lambda bits: st.tuples(magnitudes(0, 2**bits), st.just(bits))))
def test_rounded_is_nearest_for_any_number_of_bits(case):
    value, bits = case
    rounded = exact.round_to_float32(value, bits)
    assert type(rounded) is float
    assert rounded == float(np.float32(rounded))
    assert is_nearest_float32(np.float32(rounded), exactly(Fraction(value, 2**bits)))


@given(st.floats(0, 1, width=32, exclude_max=True))
def test_ties_round_to_even(below):
    below, above = np.float32(below), np.nextafter(np.float32(below), np.float32(2))
    middle = (Fraction(float(below)) + Fraction(float(above))) / 2
    even = below if below.view(np.int32) % 2 == 0 else above
    assert exact.nearest_float32(int(middle * 2**224)) == even
