"""The integer arithmetic, compared with rationals and with functions in 300 bits."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from plateau_jax.numerics.shapes import SHAPES
from support.curves.strategies import MAX_STEP, Words, shape_of, words
from support.examples import examples
from support.numerics.oracle import as_written, exactly, power_of, share as share_at

from plateau_jax import StagedCurve
from plateau_jax.numerics import fixed_point, powers
from plateau_jax.numerics.arithmetic import NUMPY, PYTHON, multiply, ratio
from plateau_jax.numerics.segments import NEARLY_EQUAL

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


def first_segment(curve):
    return curve._decoded_rows[1][0]


_FIXED = [name for name, share in SHAPES.items() if share.fixed]


def _fixed(name, length, elapsed):
    """Return the share in NumPy; check that Python computes the same at the first and the last step."""
    share, segment = SHAPES[name], first_segment(StagedCurve([(length, 0, name)], start=1))
    elapsed = np.minimum(elapsed, length - elapsed) if share.is_symmetric else np.array(elapsed)
    x = ratio(np.minimum(elapsed, length - elapsed), segment)
    shares = share.fixed(NUMPY, x, elapsed, segment)
    for index in (0, -1):
        alone = share.fixed(PYTHON, int(x[index]), int(elapsed[index]), segment)
        assert alone == shares[index]
    return shares, elapsed


@examples(500)
@given(st.sampled_from(_FIXED), words(2))
def test_share_stays_within_its_units(name, drawn):
    read = Words(drawn)
    length = read.magnitude(2, MAX_STEP)
    shares, elapsed = _fixed(name, length, np.array([read.magnitude(1, length - 1)]))
    expected = share_at(name, exactly(Fraction(int(elapsed[0]), length)))
    assert abs(int(shares[0]) - expected * ONE) <= SHAPES[name].units


@given(st.sampled_from(_FIXED), st.integers(1, MAX_STEP // 2 - 64))
def test_share_never_decreases(name, first):
    shares, _ = _fixed(name, MAX_STEP, np.arange(first, first + 64))
    assert (np.diff(shares) >= 0).all()


def _two_to_minus_exponent(xp, elapsed, length, segment):
    """Return 2^(-E), with steps counted from the higher level."""
    exponent = powers.exponent(xp, elapsed, length - elapsed, elapsed, segment)
    return fixed_point._two_to_minus(xp, *exponent)


@pytest.mark.parametrize(
    ("formula", "units"), [("exponential", 8), ("1-x^P", 8), ("(1-x)^P", 8), ("t^-P", 14)]
)
@examples(500)
@given(drawn=words(8))
def test_formula_stays_within_units(formula, units, drawn):
    read = Words(drawn)
    shape = shape_of(read, (formula,))
    _, power = power_of(shape)
    length = read.magnitude(2, MAX_STEP)
    low = max(read.ratio(), 2.0 ** -int(62 * min(power or 1, 1)))
    elapsed = read.one_of((read.magnitude(1, length - 1), length - read.magnitude(1, length - 1)))
    low = low if formula in ("exponential", "t^-P") else 0
    segment = first_segment(StagedCurve([(length, low, shape)], start=1))
    if segment.rate_whole is None or segment.inverse_power == NEARLY_EQUAL:
        return  # a line, a root or a parabola
    (value,) = _two_to_minus_exponent(NUMPY, np.array([elapsed]), length, segment)
    assert value == _two_to_minus_exponent(PYTHON, elapsed, length, segment)
    x = exactly(Fraction(elapsed, length))
    if formula == "exponential":
        expected = as_written(low) ** x
    elif formula == "t^-P":
        expected = (1 - x + as_written(low) ** (-1 / power) * x) ** -power
    else:
        expected = (x if formula == "1-x^P" else 1 - x) ** power
    assert abs(int(value) - expected * ONE) <= units


@examples(500)
@given(words(6))
def test_parabola_between_nearly_equal_levels(drawn):
    read = Words(drawn)
    shape, length = shape_of(read, ("t^-P",)), read.magnitude(2, MAX_STEP)
    power = power_of(shape)[1]
    elapsed, growth = read.magnitude(1, length - 1), exactly(Fraction(1 + read.below(2**20), 2**43))
    low = float((1 + growth) ** -power)
    segment = first_segment(StagedCurve([(length, low, shape)], start=1))
    assert segment.inverse_power == NEARLY_EQUAL
    (value,) = powers.parabola(NUMPY, np.array([elapsed]), segment)
    assert value == powers.parabola(PYTHON, elapsed, segment)
    growth = as_written(low) ** (-1 / power) - 1
    expected = (1 - (1 + growth * elapsed / length) ** -power) / (1 - as_written(low))
    assert abs(exactly(Fraction(int(value), ONE)) - expected) <= 4 * growth**2 + 8 * exactly(Fraction(1, ONE))
