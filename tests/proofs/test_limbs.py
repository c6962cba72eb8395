"""What the functions of limbs compute, proved as identities between polynomials, for every operand.

The last tests are about the functions of the shapes, which pass the result of each such function on
to the next one.

A function runs once, on numbers that are polynomials in unknown integers. The difference between
what it returns and its formula is then a polynomial in remainders, whose interval is its error. The
same run shows that no intermediate value overflows int64.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from proofs.arithmetic.integers import INTEGERS, Integer, integer
from proofs.arithmetic.intervals import (
    Interval,
    Polynomial,
    Variable,
    assert_covered,
    constant,
    point,
    power_of,
)
from proofs.arithmetic.proven import (
    ERROR_OF_EXPONENT,
    HALF_SLOPE,
    LEAST_GROWTH,
    MAX_LENGTH,
    MAX_RATE,
    MAX_T,
    MOST_K_OF_ROOT,
    MOST_K_OF_T,
    MOST_K_OF_X,
    NORMALIZED,
    OCTAVES_OF_LENGTH,
    OPERANDS,
    POWERS_OF_T,
    POWERS_OF_X,
)

from plateau_jax.numerics.arithmetic import LIMB, LIMB_BITS, ONE, multiply, ratio
from plateau_jax.numerics.exponents import exponent_of_power, power_times, steps_times_rate
from plateau_jax.shapes import exponential, inverse_power, power as power_shapes, root
from plateau_jax.shapes.exponential import Exponential
from plateau_jax.shapes.inverse_power import InversePower
from plateau_jax.shapes.power import PowerFromEnd, PowerFromStart
from plateau_jax.shapes.root import SquareRoot
from plateau_jax.shapes.shape import SegmentPosition

HALF = 2**31
A_LIMB = Interval(0, LIMB)


def limb(name: str) -> Integer:
    return integer(name, A_LIMB)


def any_rate() -> list[Integer]:
    return [limb(name) for name in ("whole", "high", "middle", "low")]


def lengths_from(doublings: int) -> list[Interval]:
    """Return intervals of all lengths from 2ⁿ to 2ⁿ⁺¹.

    They are so short that a product of steps with 1/L or with a rate is seen to fit into int64.
    """
    return list(Interval(2**doublings, 2 ** (doublings + 1)).boxes(8))


every_octave_of_length = pytest.mark.parametrize("doublings", OCTAVES_OF_LENGTH)


def test_octaves_contain_every_length():
    lengths: list[Interval] = []
    for doublings in OCTAVES_OF_LENGTH:
        lengths += lengths_from(doublings)
    assert_covered(Interval(1, MAX_LENGTH), lengths)


def joined(*limbs: Integer) -> Polynomial:
    """Return limbs as one number, the highest first."""
    number = constant(0)
    for digit in limbs:
        number = number.scaled(HALF) + digit.value
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


@every_octave_of_length
def test_ratio_is_rounded_down_once(doublings):
    """With I = floor(2⁹³/L), `ratio` is floor(steps·I/2³¹), for steps up to 10/7 of the length.

    steps·2⁶²/L is larger by less than 1 + steps/2³¹: I is rounded down, and the quotient is.
    """
    for lengths in lengths_from(doublings):
        steps = integer("steps", Interval(0, lengths.high * NORMALIZED.high))
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
    rate = any_rate()
    whole, fraction = steps_times_rate(steps, rate)
    product = whole.value.scaled(ONE) + fraction.value
    missing = steps.value * joined(*rate) - product.scaled(HALF)
    assert missing.range.within(A_LIMB)
    assert fraction.range.within(Interval(0, ONE - 1))


@dataclass(frozen=True)
class Limbs:
    """The limbs of every P in a range."""

    whole: Interval
    high: Interval
    low: Interval

    def unknown(self) -> tuple[Integer, Integer, Integer]:
        whole = integer("P, whole", self.whole)
        high = integer("P, high", self.high)
        return whole, high, integer("P, low", self.low)


def every_power(powers: Interval) -> list[Limbs]:
    """Return the limbs of every P below the greatest one, which is an integer, and its own."""
    most = powers.high
    below = Limbs(Interval(0, most - 1), A_LIMB, A_LIMB)
    return [below, Limbs(point(most), point(0), point(0))]


def test_limbs_contain_every_power():
    for powers in (POWERS_OF_X, POWERS_OF_T):
        below, greatest = every_power(powers)
        assert below.whole == Interval(0, powers.high - 1)
        assert greatest.whole == point(powers.high)


def every_power_or_more(powers: Interval) -> tuple[Integer, Integer, Integer]:
    """Return limbs of every P, where a P above the greatest one does no harm."""
    return Limbs(Interval(0, powers.high), A_LIMB, A_LIMB).unknown()


Y_MINUS_1 = Interval(-2 * ONE // 7, 3 * ONE // 7)
"""All y - 1 in units, rounded down."""
every_power_of_t = pytest.mark.parametrize("limbs", every_power(POWERS_OF_T), ids=repr)


@every_power_of_t
def test_power_times_is_at_most_two_units_low(limbs):
    """power_times(y - 1, P) is P·(y - 1), less than two units low."""
    number = integer("y - 1", Y_MINUS_1)
    power = limbs.unknown()
    product = power_times(INTEGERS, number, power)
    missing = number.value * joined(*power) - product.value.scaled(ONE)
    assert missing.range.within(Interval(0, 2 * ONE - 1))


@pytest.mark.parametrize(
    ("powers", "most_k"), [(POWERS_OF_X, MOST_K_OF_X), (POWERS_OF_T, MOST_K_OF_T)], ids=["x", "t"]
)
def test_exponent_of_power_is_less_than_four_units_low(powers, most_k):
    """E = P·k + 2·half_slope·product, less than four units low, as a whole part and a fraction."""
    k = integer("k", Interval(0, most_k))
    most_whole = ceil(powers.high * 3 / 7)
    whole = integer("whole", Interval(-most_whole, most_whole))
    fraction = integer("fraction", Interval(0, ONE - 1))
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
def test_exponent_is_not_negative(powers):
    """If k is 0, the product is not negative, and no digit is. If k is not 0, E is far above 0.

    `test_exponent_is_far_above_0_unless_k_is_0` is about the other k.
    """
    whole = integer("whole", Interval(0, ceil(powers.high * 3 / 7)))
    fraction = integer("fraction", Interval(0, ONE - 1))
    half_slope = integer("half slope", HALF_SLOPE)
    power = every_power_or_more(powers)
    digits = exponent_of_power(INTEGERS, 0, whole, fraction, half_slope, power)
    assert all(digit.range.is_not_negative for digit in digits)


def joined_with_fraction(whole: Integer, fraction: Integer) -> Polynomial:
    return whole.value.scaled(ONE) + fraction.value


FRACTIONS = Interval(0, ONE - 1)
LEAST_PAST = 3 * ONE // 7
"""The least y - 1 that is past 10/7."""


@dataclass(frozen=True)
class Fractions:
    """Fractions of t/2ᵏ on one side of 10/7."""

    fractions: Interval
    is_past: bool
    y_minus_1: Interval


SIDES_OF_THE_END = [
    Fractions(Interval(0, LEAST_PAST - 1), False, Interval(0, 3 * ONE // 7)),
    Fractions(Interval(LEAST_PAST, ONE - 1), True, Interval(-2 * ONE // 7, 0)),
]
both_sides = pytest.mark.parametrize("side", SIDES_OF_THE_END, ids=["up to 10/7", "past 10/7"])


@both_sides
@pytest.mark.parametrize("doublings", range(MOST_K_OF_T))
def test_normalized_number_is_rounded_down_once(doublings, side, monkeypatch):
    """t/2ᵏ - 1 is rounded down, for t from 1 up to 2⁶².

    The t between two powers of two are one case. Only the range of the fraction is known, so both
    answers to whether t/2ᵏ is past 10/7 are followed.
    """
    monkeypatch.setattr(Integer, "answer", side.is_past)
    whole = integer("whole", Interval(2**doublings, 2 ** (doublings + 1) - 1))
    fraction = integer("fraction", FRACTIONS)
    k, y_minus_1 = inverse_power._normalize(INTEGERS, whole, fraction)
    assert k == doublings + side.is_past
    y = y_minus_1.value + constant(ONE)
    missing = joined_with_fraction(whole, fraction) - y.scaled(2**k)
    assert missing.range.within(Interval(0, 2**k - 1))


def test_greatest_t_is_normalized_exactly():
    nothing = integer("0", point(0))
    k, y_minus_1 = inverse_power._normalize(INTEGERS, integer("t", point(MAX_T)), nothing)
    assert k == MOST_K_OF_T
    assert 2**k == MAX_T
    assert y_minus_1 == 0


@both_sides
def test_normalized_number_is_near_1(side):
    """t/2ᵏ - 1 lies in [-2/7, 3/7]. After the shifts, every t is treated like one from 1 to 2."""
    fraction = integer("fraction", side.fractions)
    k, y_minus_1 = inverse_power._normalize(INTEGERS, integer("1", point(1)), fraction)
    assert k == side.is_past
    assert y_minus_1.range.within(side.y_minus_1)
    assert side.y_minus_1.within(Y_MINUS_1)


def test_both_sides_contain_every_fraction():
    assert (NORMALIZED - point(1)).scaled(ONE).within(Y_MINUS_1 + Interval(0, 1))
    low, high = SIDES_OF_THE_END
    assert low.fractions.low == FRACTIONS.low
    assert low.fractions.high + 1 == high.fractions.low
    assert high.fractions.high == FRACTIONS.high


def test_parabola_is_at_most_1():
    """1 - S is a product of two positive numbers, (1 - x)·(1 - bend), and what is rounded down.

    So (1 - S)/(1 - x) is positive. At x = 1, where 1 - x is 0, S is x.
    """
    one_minus_x = Variable("1 - x", Interval(1, ONE))
    x = ONE - Integer(power_of(one_minus_x, 1), one_minus_x.range)
    growth = integer("growth", Interval(0, LEAST_GROWTH * ONE))
    power = every_power_or_more(POWERS_OF_T)
    parabola = inverse_power._parabola(INTEGERS, x, growth, power)
    quotient = (constant(ONE) - parabola.value) * power_of(one_minus_x, -1)
    assert quotient.range.is_not_negative
    at_the_end = inverse_power._parabola(INTEGERS, integer("1", point(ONE)), growth, power)
    assert at_the_end == ONE


# How the shapes join these parts. Each function that has its own proof is replaced: it returns an
# unknown integer, and the test checks its arguments.

ELAPSED = integer("elapsed", Interval(1, MAX_LENGTH))
REMAINING = integer("remaining", Interval(1, MAX_LENGTH))
POSITION = SegmentPosition(ELAPSED, REMAINING, None)
UP_TO_ONE = Interval(0, ONE)


def unknown(name: str, within: Interval, module: object, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replace a function by one that returns an unknown integer."""
    function = Mock(return_value=integer(name, within))
    monkeypatch.setattr(module, name, function)
    return function


@pytest.mark.parametrize("k", [0, 3, MOST_K_OF_ROOT])
def test_root_joins_its_parts(k, monkeypatch):
    """√(j/L) is √y/2ᵏ with y = j·4ᵏ/L, for the steps j from the start."""
    length = integer("length", Interval(2, MAX_LENGTH))
    segment = SimpleNamespace(length=length)
    scaled = integer("scaled", Interval(1, MAX_LENGTH))
    scale = Mock(return_value=(k, scaled))
    monkeypatch.setattr(root, "_scale_by_fours", scale)
    ratio_of_steps = unknown("ratio", UP_TO_ONE, root, monkeypatch)
    square_root = unknown("_root", UP_TO_ONE, root, monkeypatch)
    value = SquareRoot.interpolant(INTEGERS, segment, POSITION, ())
    scale.assert_called_once_with(INTEGERS, ELAPSED, length)
    ratio_of_steps.assert_called_once_with(scaled, segment)
    square_root.assert_called_once_with(INTEGERS, ratio_of_steps.return_value)
    assert value == square_root.return_value >> k


def rates_below(most: Fraction) -> tuple[Integer, Integer, Integer, Integer]:
    """Return any rate from 0 up to a number."""
    most_in_limbs = int(most * HALF)
    whole = integer("rate, whole", Interval(0, most_in_limbs // HALF))
    high = integer("rate, high", Interval(0, min(most_in_limbs, LIMB)))
    return whole, high, limb("rate, middle"), limb("rate, low")


@pytest.mark.parametrize(("shape", "steps"), [(PowerFromStart, ELAPSED), (PowerFromEnd, REMAINING)])
@every_octave_of_length
def test_power_joins_its_parts(doublings, shape, steps, monkeypatch):
    """(j/L)^P is 2^(-E) with E = P·k + B(y)·(L - j·2ᵏ)·r, where y = j·2ᵏ/L and r = P/L.

    E is at most six units low: four for `exponent_of_power`, and B < 2 for the product with r.
    The rate is at most P/L, so the whole part of a product with it is small.
    """
    lengths = Interval(2**doublings, 2 ** (doublings + 1))
    length = integer("length", lengths)
    segment = SimpleNamespace(length=length)
    rate = rates_below(POWERS_OF_X.high / lengths.low)
    power = every_power_or_more(POWERS_OF_X)
    k = integer("k", Interval(0, MOST_K_OF_X))
    scaled = integer("scaled", Interval(0, int(lengths.high * NORMALIZED.high)))
    scale = Mock(return_value=(k, scaled))
    monkeypatch.setattr(power_shapes, "_scale_near_length", scale)
    y = unknown("ratio", UP_TO_ONE, power_shapes, monkeypatch)
    half_slope = unknown("half_log_slope", HALF_SLOPE, power_shapes, monkeypatch)
    power_of_two = unknown("two_to_minus", UP_TO_ONE, power_shapes, monkeypatch)

    value = shape.interpolant(INTEGERS, segment, POSITION, (*rate, *power))

    assert value is power_of_two.return_value
    scale.assert_called_once_with(INTEGERS, steps, length)
    y.assert_called_once_with(scaled, segment)
    half_slope.assert_called_once_with(INTEGERS, y.return_value)
    product = ((length - scaled).value * joined(*rate)).halved(31)
    twice_slope = half_slope.return_value.value.scaled(2)
    exact = k.value * joined(*power) + (twice_slope * product).halved(62)
    assert (exact - exponent_given_to(power_of_two)).range.within(Interval(0, 6))


def exponent_given_to(power_of_two: Mock) -> Polynomial:
    """Return the only E, in units of 2⁻⁶², of which 2^(-E) was computed."""
    power_of_two.assert_called_once()
    xp, whole, fraction = power_of_two.call_args.args
    assert xp is INTEGERS
    return joined_with_fraction(whole, fraction)


@every_power_of_t
def test_inverse_power_joins_its_parts(limbs, monkeypatch):
    """t^(-P) is 2^(-E) with E = P·k + B(y)·(P·(y - 1) + c), where t = 2ᵏ·y and c centers the error.

    E is at most eight units low: four for `exponent_of_power`, and B < 2 for two units of
    P·(y - 1).
    """
    power = limbs.unknown()
    t = integer("t", Interval(1, MAX_T))
    fraction = integer("fraction", FRACTIONS)
    k = integer("k", Interval(0, MOST_K_OF_T))
    y_minus_1 = integer("y - 1", Y_MINUS_1)
    normalize = Mock(return_value=(k, y_minus_1))
    monkeypatch.setattr(inverse_power, "_normalize", normalize)
    half_slope = unknown("half_log_slope", HALF_SLOPE, inverse_power, monkeypatch)
    power_of_two = unknown("two_to_minus", UP_TO_ONE, inverse_power, monkeypatch)

    value = inverse_power._inverse_power(INTEGERS, t, fraction, power)

    assert value is power_of_two.return_value
    normalize.assert_called_once_with(INTEGERS, t, fraction)
    half_slope.assert_called_once_with(INTEGERS, y_minus_1 + ONE)
    centering = constant(inverse_power._CENTERING)
    product = (y_minus_1.value * joined(*power)).halved(62) + centering
    twice_slope = half_slope.return_value.value.scaled(2)
    exact = k.value * joined(*power) + (twice_slope * product).halved(62)
    assert (exact - exponent_given_to(power_of_two)).range.within(Interval(0, 8))


# A level of an exponential or of t^(-P) counts from the higher end. The levels are plain numbers
# here, so that it is known which one is higher.
from_higher_level = pytest.mark.parametrize(
    ("segment", "steps"),
    [
        (SimpleNamespace(start=ONE, end=0), ELAPSED),
        (SimpleNamespace(start=0, end=ONE), REMAINING),
    ],
    ids=["falling", "rising"],
)


@from_higher_level
def test_exponential_joins_its_parts(segment, steps, monkeypatch):
    """The level is the higher one times 2^(-E), with E = steps·r rounded down."""
    rate = any_rate()
    power_of_two = unknown("two_to_minus", UP_TO_ONE, exponential, monkeypatch)
    level = unknown("level_below", UP_TO_ONE, exponential, monkeypatch)
    value = Exponential.fixed_level(INTEGERS, segment, POSITION, rate)
    assert value is level.return_value
    level.assert_called_once_with(INTEGERS, segment, power_of_two.return_value)
    exact = (steps.value * joined(*rate)).halved(31)
    assert (exact - exponent_given_to(power_of_two)).range.within(Interval(0, 1))


@every_octave_of_length
def test_t_of_inverse_power(doublings, monkeypatch):
    """t is 1 + steps·r, rounded down."""
    segment = SimpleNamespace(start=ONE, end=0)
    rate = any_rate()
    factor = unknown("_inverse_power", UP_TO_ONE, inverse_power, monkeypatch)
    for module_function in ("ratio", "level_below", "_parabola"):
        unknown(module_function, UP_TO_ONE, inverse_power, monkeypatch)
    power = every_power_or_more(POWERS_OF_T)
    for lengths in lengths_from(doublings):
        steps = integer("steps", Interval(1, min(lengths.high, MAX_LENGTH)))
        top = integer("top", Interval(0, (MAX_RATE >> 4 * LIMB_BITS) // lengths.low))
        at = SegmentPosition(steps, REMAINING, None)
        factor.reset_mock()
        InversePower.fixed_level(INTEGERS, segment, at, (top, *rate, *power, 0))
        factor.assert_called_once()
        _, whole, fraction, _ = factor.call_args.args
        t = (steps.value * joined(top, *rate)).halved(31) + constant(ONE)
        assert (t - joined_with_fraction(whole, fraction)).range.within(Interval(0, 1))


@from_higher_level
def test_level_of_inverse_power_joins_its_parts(segment, steps, monkeypatch):
    """The level is the higher one times t^(-P). The parabola needs only the fraction of t."""
    top = integer("top", Interval(0, 1))
    rate = any_rate()
    power = every_power_or_more(POWERS_OF_T)
    x = unknown("ratio", UP_TO_ONE, inverse_power, monkeypatch)
    factor = unknown("_inverse_power", UP_TO_ONE, inverse_power, monkeypatch)
    level = unknown("level_below", UP_TO_ONE, inverse_power, monkeypatch)
    parabola = unknown("_parabola", UP_TO_ONE, inverse_power, monkeypatch)

    value = InversePower.fixed_level(INTEGERS, segment, POSITION, (top, *rate, *power, 0))

    assert value is level.return_value
    level.assert_called_once_with(INTEGERS, segment, factor.return_value)
    x.assert_called_once_with(steps, segment)
    factor.assert_called_once()
    xp, _, fraction, power_of_factor = factor.call_args.args
    assert xp is INTEGERS
    assert tuple(power_of_factor) == power
    parabola.assert_called_once_with(INTEGERS, x.return_value, fraction, power_of_factor)
