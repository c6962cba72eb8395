"""What the functions of limbs compute, proved as identities between polynomials, for every operand.

A function runs once, on numbers that are polynomials in unknown integers. The difference between
what it returns and its formula is then a polynomial in remainders, whose interval is its error. The
same run shows that no intermediate value overflows int64.
"""

from math import ceil

import pytest
from proofs.arithmetic.integers import INTEGERS, integer
from proofs.arithmetic.intervals import Interval, assert_covered, point
from proofs.arithmetic.limbs import (
    A_LIMB,
    EVERY_POWER_OF_T,
    FRACTIONS,
    HALF,
    Limbs,
    any_rate,
    every_power,
    every_power_or_more,
    joined,
    joined_with_fraction,
    lengths_from,
    limb,
)
from proofs.arithmetic.proven import (
    ERROR_OF_EXPONENT,
    HALF_SLOPE,
    MAX_LENGTH,
    MOST_K_OF_T,
    MOST_K_OF_X,
    NORMALIZED,
    OCTAVES_OF_LENGTH,
    OPERANDS,
    POWERS_OF_T,
    POWERS_OF_X,
    Y_MINUS_1,
)

from plateau_jax.numerics.arithmetic import LIMB, ONE, multiply, ratio
from plateau_jax.numerics.exponents import exponent_of_power, power_times, steps_times_rate


def test_octaves_contain_every_length() -> None:
    lengths: list[Interval] = []
    for doublings in OCTAVES_OF_LENGTH:
        lengths += lengths_from(doublings)
    assert_covered(Interval(1, MAX_LENGTH), lengths)


def test_joined_limbs_are_one_number() -> None:
    number = integer("number", Interval(0, ONE - 1))
    assert joined(number >> 31, number & LIMB) == number.value


@pytest.mark.parametrize("ranges", OPERANDS)
def test_product_is_at_most_two_units_low(ranges: tuple[Interval, Interval]) -> None:
    """a·b - 2⁶²·multiply(a, b) is a_low·b_low + 2³¹·remainder, which lies in [0, 2·2⁶²)."""
    range_of_a, range_of_b = ranges
    a = integer("a", range_of_a)
    b = integer("b", range_of_b)
    missing = a.value * b.value - multiply(a, b).value.scaled(ONE)
    assert missing.range.within(Interval(0, 2 * ONE - 1))


@pytest.mark.parametrize("ranges", OPERANDS)
def test_product_never_decreases(ranges: tuple[Interval, Interval]) -> None:
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


@pytest.mark.parametrize("doublings", OCTAVES_OF_LENGTH)
def test_ratio_is_rounded_down_once(doublings: int) -> None:
    """With I = floor(2⁹³/L), `ratio` is floor(steps·I/2³¹), for steps up to 10/7 of the length.

    steps·2⁶²/L is larger by less than 1 + steps/2³¹: I is rounded down, and the quotient is.
    """
    for lengths in lengths_from(doublings):
        steps = integer("steps", Interval(0, lengths.high * NORMALIZED.high))
        inverse = integer("inverse", Interval(0, ONE / lengths.low))
        rest = limb("rest")
        quotient = ratio(steps, inverse, rest)
        missing = steps.value * joined(inverse, rest) - quotient.value.scaled(HALF)
        assert missing.range.within(A_LIMB)


def test_steps_times_rate_is_rounded_down_once() -> None:
    """With R = r·2⁹³, the whole part and the fraction are the digits of floor(steps·R/2³¹).

    `steps` may be negative: a power calls it with up to -3/7 of the length.
    """
    steps = integer("steps", Interval(-MAX_LENGTH, MAX_LENGTH))
    rate = any_rate()
    whole, fraction = steps_times_rate(steps, rate)
    product = whole.value.scaled(ONE) + fraction.value
    missing = steps.value * joined(*rate) - product.scaled(HALF)
    assert missing.range.within(A_LIMB)
    assert fraction.range.within(FRACTIONS)


def test_limbs_contain_every_power() -> None:
    for powers in (POWERS_OF_X, POWERS_OF_T):
        below, greatest = every_power(powers)
        assert below.whole == Interval(0, powers.high - 1)
        assert greatest.whole == point(powers.high)


@pytest.mark.parametrize("limbs", EVERY_POWER_OF_T, ids=repr)
def test_power_times_is_at_most_two_units_low(limbs: Limbs) -> None:
    """power_times(y - 1, P) is P·(y - 1), less than two units low."""
    number = integer("y - 1", Y_MINUS_1)
    power = limbs.unknown()
    product = power_times(INTEGERS, number, power)
    missing = number.value * joined(*power) - product.value.scaled(ONE)
    assert missing.range.within(Interval(0, 2 * ONE - 1))


@pytest.mark.parametrize(
    ("powers", "most_k"), [(POWERS_OF_X, MOST_K_OF_X), (POWERS_OF_T, MOST_K_OF_T)], ids=["x", "t"]
)
def test_exponent_of_power_is_less_than_four_units_low(powers: Interval, most_k: int) -> None:
    """E = P·k + 2·half_slope·product, less than four units low, as a whole part and a fraction."""
    k = integer("k", Interval(0, most_k))
    most_whole = ceil(powers.high * 3 / 7)
    whole = integer("whole", Interval(-most_whole, most_whole))
    fraction = integer("fraction", FRACTIONS)
    half_slope = integer("half slope", HALF_SLOPE)
    power = every_power_or_more(powers)
    digits = exponent_of_power(INTEGERS, k, whole, fraction, half_slope, power)
    exponent = joined_with_fraction(*digits)
    product = joined_with_fraction(whole, fraction)
    twice_slope = half_slope.value.scaled(2)
    exact = k.value * joined(*power).scaled(ONE) + twice_slope * product
    error = (exponent.scaled(ONE) - exact).halved(62)
    assert error.range.within(ERROR_OF_EXPONENT)


@pytest.mark.parametrize("powers", [POWERS_OF_X, POWERS_OF_T], ids=["x", "t"])
def test_exponent_is_not_negative(powers: Interval) -> None:
    """If k is 0, the product is not negative, and no digit is. If k is not 0, E is far above 0.

    `test_exponent_is_far_above_0_unless_k_is_0` is about the other k.
    """
    whole = integer("whole", Interval(0, ceil(powers.high * 3 / 7)))
    fraction = integer("fraction", FRACTIONS)
    half_slope = integer("half slope", HALF_SLOPE)
    power = every_power_or_more(powers)
    digits = exponent_of_power(INTEGERS, 0, whole, fraction, half_slope, power)
    assert all(digit.range.is_not_negative for digit in digits)
