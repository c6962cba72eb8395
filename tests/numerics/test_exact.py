"""The 224-bit numbers, compared with rationals and with functions in 300 bits."""

from fractions import Fraction

import mpmath
import numpy as np
from hypothesis import example, given, strategies as st
from support.curves.strategies import MAX_STEP, magnitudes
from support.numerics.oracle import exactly, is_nearest_float32

from plateau_jax.numerics import exact

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
