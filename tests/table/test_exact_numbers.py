"""Exact numbers, compared with rationals and with functions in 400 bits."""

from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.strategies import MAX_STEP
from support.numerics.oracle import exactly, is_nearest_float32
from support.numerics.shapes import SAMPLES, formula_and_power

from plateau_jax import numerics
from plateau_jax.shapes.known_shapes import level_between

positive = st.floats(5e-324, 1)


@pytest.mark.parametrize("shape", SAMPLES)
@given(positive, positive, st.data())
def test_exact_level_has_60_digits(shape, start, end, data):
    length = data.draw(st.integers(2, MAX_STEP))
    elapsed = data.draw(st.integers(1, length - 1))
    first, last = numerics.as_level(start), numerics.as_level(end)
    level = level_between(shape, first, last, elapsed, length)
    formula, power = formula_and_power(shape)
    with mpmath.workprec(700):
        numbers = (Fraction(first), Fraction(last), Fraction(elapsed, length), power)
        expected = formula.level(mpmath, *map(exactly, numbers))
        assert abs(exactly(Fraction(level)) - expected) <= expected * mpmath.mpf(10) ** -60


@given(st.decimals(0, 1, allow_nan=False), st.integers(1, 300))
def test_levels_become_numbers_and_back(digits, places):
    level = numerics.scaled(digits, Decimal(10) ** -places)
    assert abs(numerics.to_level(numerics.to_mpf(level)) - level) <= level * Decimal(10) ** -99


@given(st.integers(1, 2**224), st.integers(24, 200))
def test_rounded_is_nearest_for_any_number_of_bits(value, bits):
    rounded = numerics.round_to_float32(value, bits)
    assert type(rounded) is float
    if value < 2 ** (bits + 1) and rounded:
        assert is_nearest_float32(np.float32(rounded), exactly(Fraction(value, 2**bits)))
    elif not rounded:
        assert Fraction(value, 2**bits) < Fraction(1, 2**126)


@given(st.floats(2.0**-126, 1, width=32, exclude_max=True))
def test_ties_round_to_even(level):
    below = np.float32(level)
    above = np.nextafter(below, np.float32(2))
    middle = (Fraction(float(below)) + Fraction(float(above))) / 2
    nearest = numerics.round_to_float32(int(middle * 2**224), 224)
    if below.view(np.int32) % 2 == 0:
        assert nearest == below
    else:
        assert nearest == above


@pytest.mark.parametrize("level", ["1e-38", "1e-40", "1e-46", "0"])
def test_levels_below_the_normal_numbers_are_zero(level):
    assert numerics.nearest_float32(Decimal(level)) == 0
    assert numerics.nearest_float32(Decimal(2) ** -126) == 2.0**-126


@given(st.integers(2**52, 2**53 - 1))
def test_power_halfway_between_two_float64_is_rounded_to_even(number):
    """Python divides two integers to the nearest float64."""
    halfway = Fraction(2 * number + 1, 2**54)
    expected = float(halfway)
    assert numerics.nearest_power(halfway, Fraction(1)) == expected
    assert numerics.nearest_power(halfway**2, Fraction(1, 2)) == expected


def test_integers_of_gmpy2_become_plain():
    """With gmpy2 installed, mpmath's numbers consist of its integers, which Decimal rejects."""

    class Gmpy2Integer:
        def __init__(self, number):
            self.number = number

        def __int__(self):
            return self.number

    class Number:
        man_exp = (Gmpy2Integer(3), Gmpy2Integer(-1))

        def to_fixed(self, bits):
            return Gmpy2Integer(3 << (bits - 1))

    assert numerics.to_level(Number()) == Decimal("1.5")
    assert type(numerics.fixed(Number())) is int
