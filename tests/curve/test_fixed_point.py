"""The integer arithmetic, against rationals and high-precision sines."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.descriptions import build, descriptions_and_steps
from support.examples import examples
from support.oracle import decimal, exactly, mp, power_of
from support.strategies import MAX_STEP, Words, shape_of, words

from plateau_jax import StagedCurve, fixed_point, powers
from plateau_jax.segments import NEARLY_EQUAL

ONE = 2**62
up_to_one = st.one_of(st.integers(0, ONE), st.integers(0, 62).map(lambda bits: 2**bits))
signed = st.builds(int.__mul__, up_to_one, st.sampled_from((-1, 1)))


@examples(500)
@given(signed, up_to_one)
def test_a_product_is_at_most_two_units_low_in_numpy_as_in_python(a, b):
    product = fixed_point.multiply(np.int64(a), np.int64(b))
    assert product == fixed_point.multiply(a, b)
    assert 0 <= Fraction(a * b, ONE) - int(product) < 3


@examples(500)
@given(signed, up_to_one, st.integers(0, 2**40))
def test_a_product_never_decreases(a, b, more):
    product = fixed_point.multiply(a, b)
    assert fixed_point.multiply(min(a + more, ONE), b) >= product
    if a >= 0:
        assert fixed_point.multiply(a, min(b + more, ONE)) >= product


@examples(500)
@given(st.integers(0, ONE // 2))
def test_the_shape_to_seven_units(x):
    found = fixed_point._half_sine_squared(np.int64(x))
    with mpmath.workprec(300):
        value = (1 - mpmath.cospi(exactly(Fraction(x, ONE)))) / 2 * ONE
        assert abs(int(found) - value) <= 7


@given(st.integers(0, ONE // 2 - 4096), st.integers(1, 4096))
def test_the_shape_never_decreases_over_the_steps_of_a_curve(x, gap):
    # Steps of a curve lie at least 2³¹ units apart.
    steps = np.minimum(x + gap * 2**31 * np.arange(64), ONE // 2)
    assert (np.diff(fixed_point._half_sine_squared(steps)) >= 0).all()


@examples(500)
@given(words(2))
def test_the_root_to_six_units(drawn):
    read = Words(drawn)
    length = read.magnitude(2, MAX_STEP)
    gone = read.magnitude(1, length - 1)
    numbers = StagedCurve([(length, 0, "1-sqrt")], start=1)._numbers[1][0]
    (found,) = fixed_point._root(np, np.array([gone]), numbers)
    assert found == fixed_point._root(fixed_point._PYTHON, gone, numbers)
    assert abs(int(found) - mp.sqrt(exactly(Fraction(gone, length))) * ONE) <= 6


@examples(500)
@given(words(4))
def test_the_power_to_eight_units(drawn):
    read = Words(drawn)
    high, low = max(read.ratio(), 0.1), min(read.ratio(), 0.1) or 1e-6
    length = read.magnitude(1, MAX_STEP)
    gone = read.magnitude(0, length)
    numbers = StagedCurve([(length, low, "exponential")], start=high)._numbers[1][0]
    if numbers.rate_whole is not None:
        (found,) = _multiplied(np, np.array([gone]), length, numbers)
        assert found == _multiplied(fixed_point._PYTHON, gone, length, numbers)
        ratio = decimal(low) / decimal(high)
        assert abs(int(found) - ratio ** exactly(Fraction(gone, length)) * ONE) <= 8


def _multiplied(xp, gone, length, numbers):
    """What a shape with a rate multiplies by, counted from the higher level."""
    exponent = powers.exponent(xp, gone, length - gone, gone, numbers, fixed_point.multiply)
    return fixed_point._two_to_minus(xp, *exponent)


@pytest.mark.parametrize(("formula", "units"), [("1-x^P", 8), ("(1-x)^P", 8), ("t^-P", 14)])
@examples(500)
@given(drawn=words(8))
def test_each_formula_to_so_many_units(formula, units, drawn):
    read = Words(drawn)
    shape = shape_of(read, (formula,))
    _, power = power_of(shape)
    length = read.magnitude(2, MAX_STEP)
    low = max(read.ratio(), 2.0 ** -int(62 * min(power, 1)))
    gone = read.one_of((read.magnitude(1, length - 1), length - read.magnitude(1, length - 1)))
    curve = StagedCurve([(length, low if formula == "t^-P" else 0, shape)], start=1)
    numbers = curve._numbers[1][0]
    if numbers.rate_whole is None or numbers.inverse_power == NEARLY_EQUAL:
        return  # a line, a root or a parabola
    (found,) = _multiplied(np, np.array([gone]), length, numbers)
    assert found == _multiplied(fixed_point._PYTHON, gone, length, numbers)
    x = exactly(Fraction(gone, length))
    if formula == "t^-P":
        wanted = (1 - x + decimal(low) ** (-1 / power) * x) ** -power
    else:
        wanted = (x if formula == "1-x^P" else 1 - x) ** power
    assert abs(int(found) - wanted * ONE) <= units


@examples(500)
@given(words(6))
def test_the_parabola_between_levels_that_are_nearly_equal(drawn):
    read = Words(drawn)
    shape, length = shape_of(read, ("t^-P",)), read.magnitude(2, MAX_STEP)
    power = power_of(shape)[1]
    gone, growth = read.magnitude(1, length - 1), exactly(Fraction(1 + read.below(2**20), 2**43))
    low = float((1 + growth) ** -power)
    numbers = StagedCurve([(length, low, shape)], start=1)._numbers[1][0]
    assert numbers.inverse_power == NEARLY_EQUAL
    (found,) = powers.parabola(np, np.array([gone]), numbers, fixed_point.multiply)
    assert found == powers.parabola(fixed_point._PYTHON, gone, numbers, fixed_point.multiply)
    growth = decimal(low) ** (-1 / power) - 1
    wanted = (1 - (1 + growth * gone / length) ** -power) / (1 - decimal(low))
    assert abs(exactly(Fraction(int(found), ONE)) - wanted) <= 4 * growth**2 + 8 * exactly(Fraction(1, ONE))


@given(descriptions_and_steps(size=16))
def test_a_step_is_evaluated_alike_alone_and_among_others(case):
    description, steps = case
    curve = build(description)
    steps = np.maximum(steps, 0).astype(np.int32)
    rows = np.searchsorted(curve.segments.begin, steps, side="right") - 1
    together = fixed_point.evaluate(np, curve.segments, rows, steps)
    alone = [
        fixed_point.evaluate(np, curve.segments, row, step)[0]
        for row, step in zip(rows[:, None], steps[:, None], strict=True)
    ]
    assert together.dtype == np.float32
    np.testing.assert_array_equal(together, np.array(alone))
    np.testing.assert_array_equal(together, curve(steps))
