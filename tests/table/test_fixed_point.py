"""The integer arithmetic, compared with rationals and with functions in 300 bits."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.strategies import MAX_STEP, Words, shape_of, words
from support.examples import examples
from support.numerics.oracle import as_written, exactly, power_of, share

from plateau_jax import StagedCurve
from plateau_jax.numerics.arithmetic import NUMPY, PYTHON, multiply, ratio
from plateau_jax.shapes.known_shapes import GEOMETRIC, INTERPOLATED, SHAPES
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


# The error bound of each shape, in units of 2⁻⁶².
UNITS = {"cosine": 8, "1-sqrt": 6, "exponential": 8, "1-x^P": 8, "(1-x)^P": 8, "t^-P": 14}


def test_every_curved_shape_has_an_error_bound():
    assert UNITS.keys() == SHAPES.keys() - {"linear"}


@pytest.mark.parametrize("name", [name for name in UNITS if name in INTERPOLATED])
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
    assert abs(int(value) - expected * ONE) <= UNITS[name]


@pytest.mark.parametrize("name", ["cosine", "1-sqrt"])
@given(first=st.integers(1, MAX_STEP // 2 - 64))
def test_interpolant_never_decreases(name, first):
    segment = _first_segment(MAX_STEP, 0, name)
    values = _evaluate(INTERPOLATED[name].interpolant, segment, np.arange(first, first + 64))
    assert (np.diff(values) >= 0).all()


@pytest.mark.parametrize("name", [name for name in UNITS if name in GEOMETRIC])
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
    assert abs(int(value) - expected * ONE) <= UNITS[name]


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
