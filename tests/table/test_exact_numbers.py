"""The 224-bit numbers, compared with rationals and with functions in 300 bits."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from hypothesis import example, given, strategies as st
from support.curves.strategies import MAX_STEP, magnitudes
from support.numerics.oracle import exactly, is_nearest_float32

from plateau_jax.numerics import exact

positive = st.floats(5e-324, 1).map(exact.as_written)
fractions = st.fractions(0, 1, max_denominator=MAX_STEP)


def relative_error(number: Decimal | Fraction, expected: Any) -> Any:
    return abs(exactly(Fraction(number)) / expected - 1)


def absolute_error(number: Decimal | Fraction, expected: Any) -> Any:
    return abs(exactly(Fraction(number)) - expected)


@given(positive, positive, fractions)
@example(Fraction(1), Fraction(1, 2), Fraction(0))
@example(Fraction(1), Fraction(1, 2), Fraction(1))
def test_decimal_functions_of_two_levels_match_mpmath(
    start: Fraction, end: Fraction, x: Fraction
) -> None:
    start_decimal = exact.to_decimal(start)
    end_decimal = exact.to_decimal(end)
    with mpmath.workprec(400):
        start = exactly(start)
        end = exactly(end)
        weight = exactly(x)
        geometric_mean = exact.geometric_mean(start_decimal, end_decimal, x)
        expected = start ** (1 - weight) * end**weight
        assert relative_error(geometric_mean, expected) < mpmath.ldexp(1, -290)
        interpolated = exact.interpolate(start_decimal, end_decimal, exact.to_decimal(x))
        expected = start * (1 - weight) + end * weight
        assert relative_error(interpolated, expected) < mpmath.ldexp(1, -250)
        logarithm = exact.log2_ratio(start_decimal, end_decimal)
        expected = mpmath.log(start / end, 2)
        assert absolute_error(logarithm, expected) < mpmath.ldexp(1, -230)


@given(fractions)
@example(Fraction(0))
@example(Fraction(1))
def test_decimal_functions_of_a_fraction_match_mpmath(x: Fraction) -> None:
    with mpmath.workprec(400):
        root = exact.square_root(x)
        expected = mpmath.sqrt(exactly(x))
        assert absolute_error(root, expected) < mpmath.ldexp(1, -290)
        cosine = exact.half_cosine(x)
        expected = (1 - mpmath.cospi(exactly(x))) / 2
        assert absolute_error(cosine, expected) < mpmath.ldexp(1, -290)
    if x in (0, 1):
        assert cosine == x


@given(positive, fractions)
def test_powers_match_mpmath(level: Fraction, x: Fraction) -> None:
    decimal = exact.to_decimal(level)
    with mpmath.workprec(400):
        exponent = x - Fraction(1, 3)
        power = exact.power(decimal, exponent)
        expected = exactly(level) ** exactly(exponent)
        assert relative_error(power, expected) < mpmath.ldexp(1, -290)
        in_units = exact.from_decimal(decimal)
        assert abs(in_units - mpmath.ldexp(exactly(level), 224)) < 0.51


@given(st.integers(24, 224), st.data())
def test_rounded_is_nearest_for_any_number_of_bits(bits: int, data: st.DataObject) -> None:
    value = data.draw(magnitudes(0, 2**bits))
    rounded = exact.round_to_float32(value, bits)
    assert type(rounded) is float
    in_float32 = np.float32(rounded)
    assert rounded == float(in_float32)
    assert is_nearest_float32(in_float32, exactly(Fraction(value, 2**bits)))


@given(st.floats(0, 1, width=32, exclude_max=True))
def test_ties_round_to_even(level: float) -> None:
    below = np.float32(level)
    above = np.nextafter(below, np.float32(2))
    middle = (Fraction(float(below)) + Fraction(float(above))) / 2
    nearest = exact.nearest_float32(int(middle * 2**224))
    if below.view(np.int32) % 2 == 0:
        assert nearest == below
    else:
        assert nearest == above


@given(st.integers(2**52, 2**53 - 1))
def test_power_halfway_between_two_float64_is_rounded_to_even(number: int) -> None:
    """Python divides two integers to the nearest float64."""
    halfway = Fraction(2 * number + 1, 2**54)
    expected = float(halfway)
    assert exact.nearest_power(halfway, Fraction(1)) == expected
    assert exact.nearest_power(halfway**2, Fraction(1, 2)) == expected
