"""What the functions of limbs compute, proved as identities between polynomials, for every operand.

A function runs once, on numbers that are polynomials in unknown integers. The difference between
what it returns and its formula is then a polynomial in remainders, whose interval is its error. The
same run shows that no intermediate value overflows int64.
"""

from types import SimpleNamespace

import pytest
from support.numerics.integers import INTEGERS, Integer, integer
from support.numerics.intervals import Interval, Polynomial, constant
from support.numerics.proven import HALF_SLOPE, MAX_LENGTH, OPERANDS

from plateau_jax.numerics.arithmetic import LIMB, ONE, multiply, ratio
from plateau_jax.numerics.exponents import exponent_of_power, power_times, steps_times_rate
from plateau_jax.shapes.inverse_power import _normalize

HALF = 2**31
A_LIMB = Interval(0, LIMB)


def limb(name: str) -> Integer:
    return integer(name, A_LIMB)


def joined(*limbs: Integer) -> Polynomial:
    """Return limbs as one number, the highest first."""
    number = constant(0)
    for each_limb in limbs:
        number = number.scaled(HALF) + each_limb.value
    return number


def test_joined_limbs_are_one_number():
    number = integer("number", Interval(0, ONE - 1))
    assert joined(number >> 31, number & LIMB) == number.value


@pytest.mark.parametrize("ranges", OPERANDS)
def test_product_is_at_most_two_units_low(ranges):
    """a·b - 2⁶²·multiply(a, b) is a_low·b_low + 2³¹·remainder, which lies in [0, 2·2⁶²)."""
    range_of_a, range_of_b = ranges
    a = integer("a", range_of_a)
    b = integer("b", range_of_b)
    missing = a.value * b.value - multiply(a, b).value.scaled(ONE)
    assert missing.range.within(Interval(0, 2 * ONE - 1))


@pytest.mark.parametrize("ranges", OPERANDS)
def test_product_never_decreases(ranges):
    """The product is floor((a_high·b + a_low·b_high)/2³¹) = floor((a·b_high + a_high·b_low)/2³¹).

    If a is not negative, the first numerator never decreases as b grows, because b_high doesn't.
    Since b is not negative, the second never decreases as a grows.
    """
    range_of_a, range_of_b = ranges
    a = integer("a", range_of_a)
    b = integer("b", range_of_b)
    scaled = multiply(a, b).value.scaled(HALF)
    a_high = (a >> 31).value
    b_high = (b >> 31).value
    one_way = a_high * b.value + (a & LIMB).value * b_high
    other_way = a.value * b_high + a_high * (b & LIMB).value
    assert one_way == other_way
    assert (one_way - scaled).range.within(A_LIMB)


@pytest.mark.parametrize("doublings", range(31))
def test_ratio_is_rounded_down_once(doublings):
    """With I = floor(2⁹³/L), `ratio` is floor(steps·I/2³¹), for steps up to 10/7 of the length.

    steps·2⁶²/L is larger by less than 1 + steps/2³¹: I is rounded down, and the quotient is. The
    lengths from 2ⁿ to 2ⁿ⁺¹ are cut into eight intervals, to show that steps/L·2⁶² fits into int64.
    """
    for lengths in Interval(2**doublings, 2 ** (doublings + 1)).boxes(8):
        steps = integer("steps", Interval(0, lengths.high * 10 / 7))
        inverse = integer("inverse", Interval(0, ONE / lengths.low))
        rest = limb("rest")
        segment = SimpleNamespace(inverse=inverse, inverse_rest=rest)
        quotient = ratio(steps, segment)
        missing = steps.value * joined(inverse, rest) - quotient.value.scaled(HALF)
        assert missing.range.within(A_LIMB)


def test_steps_times_rate_is_rounded_down_once():
    """With R = r·2⁹³, the whole part and the fraction are the digits of floor(steps·R/2³¹).

    `steps` may be negative: a power calls it with up to -3/7 of the length.
    """
    steps = integer("steps", Interval(-MAX_LENGTH, MAX_LENGTH))
    rate = [limb(name) for name in ("whole", "high", "middle", "low")]
    whole, fraction = steps_times_rate(steps, rate)
    product = whole.value.scaled(ONE) + fraction.value
    missing = steps.value * joined(*rate) - product.scaled(HALF)
    assert missing.range.within(A_LIMB)
    assert fraction.range.within(Interval(0, ONE - 1))


def power_below(limit: int) -> tuple[Integer, Integer, Integer]:
    return integer("whole", Interval(0, limit - 1)), limb("high"), limb("low")


def exactly_four() -> tuple[Integer, Integer, Integer]:
    nothing = Interval(0, 0)
    return integer("4", Interval(4, 4)), integer("high", nothing), integer("low", nothing)


@pytest.mark.parametrize("power", [power_below(4), exactly_four()], ids=["below 4", "4"])
def test_power_times_is_at_most_two_units_low(power):
    """power_times(y, P) is P·y, less than two units low, for P up to 4 and a y in [-2/7, 3/7]."""
    number = integer("number", Interval(-2 * ONE // 7, 3 * ONE // 7))
    product = power_times(INTEGERS, number, power)
    missing = number.value * joined(*power) - product.value.scaled(ONE)
    assert missing.range.within(Interval(0, 2 * ONE - 1))


def test_exponent_of_power_is_less_than_four_units_low():
    """E = P·k + 2·half_slope·product, less than four units low, as a whole part and a fraction."""
    k = integer("k", Interval(0, 62))
    whole = integer("whole", Interval(-20, 20))
    fraction = integer("fraction", Interval(0, ONE - 1))
    half_slope = integer("half slope", HALF_SLOPE)
    power = power_below(21)
    digits = exponent_of_power(INTEGERS, k, whole, fraction, half_slope, power)
    exponent = joined_with_fraction(*digits)
    product = joined_with_fraction(whole, fraction)
    twice_slope = half_slope.value.scaled(2)
    exact = k.value * joined(*power).scaled(ONE) + twice_slope * product
    missing = exact - exponent.scaled(ONE)
    assert missing.range.within(Interval(0, 4 * ONE - 1))


def joined_with_fraction(whole: Integer, fraction: Integer) -> Polynomial:
    return whole.value.scaled(ONE) + fraction.value


@pytest.mark.parametrize("is_past", [False, True])
def test_normalized_number_is_rounded_down_once(is_past, monkeypatch):
    """t/2ᵏ - 1 is rounded down, for t from 1 to 2⁶².

    The t between two powers of two are one case. `is_past` is True if t/2ᵏ has passed 10/7; only
    the range of the fraction is known, so both answers are followed.
    """
    monkeypatch.setattr(Integer, "answer", is_past)
    for doublings in range(62):
        whole = integer("whole", Interval(2**doublings, 2 ** (doublings + 1) - 1))
        fraction = integer("fraction", Interval(0, ONE - 1))
        k, y_minus_1 = _normalize(INTEGERS, whole, fraction)
        assert k == doublings + is_past
        y = y_minus_1.value + constant(ONE)
        missing = joined_with_fraction(whole, fraction) - y.scaled(2**k)
        assert missing.range.within(Interval(0, 2**k - 1))
