"""What the functions of limbs compute, proved as identities between polynomials, for every operand.

The last tests are about the functions of the shapes, which pass the result of each such function on
to the next one.

A function runs once, on numbers that are polynomials in unknown integers. The difference between
what it returns and its formula is then a polynomial in remainders, whose interval is its error. The
same run shows that no intermediate value overflows int64.
"""

from fractions import Fraction
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.numerics.integers import INTEGERS, Integer, integer
from support.numerics.intervals import Interval, Polynomial, constant
from support.numerics.proven import HALF_SLOPE, MAX_LENGTH, OPERANDS

from plateau_jax.numerics.arithmetic import LIMB, ONE, multiply, ratio
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
    rate = any_rate()
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
        k, y_minus_1 = inverse_power._normalize(INTEGERS, whole, fraction)
        assert k == doublings + is_past
        y = y_minus_1.value + constant(ONE)
        missing = joined_with_fraction(whole, fraction) - y.scaled(2**k)
        assert missing.range.within(Interval(0, 2**k - 1))


@pytest.mark.parametrize(
    ("fractions", "doublings", "numbers"),
    [
        (Interval(0, 3 * ONE // 7 - 1), 0, Interval(0, 3 * ONE // 7)),
        (Interval(3 * ONE // 7, ONE - 1), 1, Interval(-2 * ONE // 7, 0)),
    ],
    ids=["up to 10/7", "past 10/7"],
)
def test_normalized_number_is_near_1(fractions, doublings, numbers):
    """t/2ᵏ - 1 lies in [-2/7, 3/7]. After the shifts, every t is treated like one from 1 to 2."""
    fraction = integer("fraction", fractions)
    k, y_minus_1 = inverse_power._normalize(INTEGERS, integer("1", Interval(1, 1)), fraction)
    assert k == doublings
    assert y_minus_1.range.within(numbers)


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


def test_root_joins_its_parts(monkeypatch):
    """√(j/L) is √y/2ᵏ with y = j·4ᵏ/L, for the steps j from the start."""
    length = integer("length", Interval(2, MAX_LENGTH))
    segment = SimpleNamespace(length=length)
    scaled = integer("scaled", Interval(1, MAX_LENGTH))
    scale = Mock(return_value=(3, scaled))
    monkeypatch.setattr(root, "_scale_by_fours", scale)
    ratio_of_steps = unknown("ratio", UP_TO_ONE, root, monkeypatch)
    square_root = unknown("_root", UP_TO_ONE, root, monkeypatch)
    value = SquareRoot.interpolant(INTEGERS, segment, POSITION, ())
    scale.assert_called_once_with(INTEGERS, ELAPSED, length)
    ratio_of_steps.assert_called_once_with(scaled, segment)
    square_root.assert_called_once_with(INTEGERS, ratio_of_steps.return_value)
    assert value.value == (square_root.return_value >> 3).value


def rates_below(most: Fraction) -> tuple[Integer, Integer, Integer, Integer]:
    """Return any rate from 0 up to a number."""
    most_in_limbs = int(most * HALF)
    whole = integer("rate, whole", Interval(0, most_in_limbs // HALF))
    high = integer("rate, high", Interval(0, min(most_in_limbs, LIMB)))
    return whole, high, limb("rate, middle"), limb("rate, low")


@pytest.mark.parametrize(("shape", "steps"), [(PowerFromStart, ELAPSED), (PowerFromEnd, REMAINING)])
@pytest.mark.parametrize("doublings", range(31))
def test_power_joins_its_parts(doublings, shape, steps, monkeypatch):
    """(j/L)^P is 2^(-E) with E = P·k + B(y)·(L - j·2ᵏ)·r, where y = j·2ᵏ/L and r = P/L.

    E is at most six units low: four for `exponent_of_power`, and B < 2 for the product with r.
    The rate is at most 20/L, so the whole part of a product with it is small.
    """
    lengths = Interval(2**doublings, 2 ** (doublings + 1))
    length = integer("length", lengths)
    segment = SimpleNamespace(length=length)
    rate = rates_below(20 / lengths.low)
    power = power_below(21)
    k = integer("k", Interval(0, 31))
    scaled = integer("scaled", Interval(0, int(10 * lengths.high / 7)))
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


@pytest.mark.parametrize("power", [power_below(4), exactly_four()], ids=["below 4", "4"])
def test_inverse_power_joins_its_parts(power, monkeypatch):
    """t^(-P) is 2^(-E) with E = P·k + B(y)·(P·(y - 1) + c), where t = 2ᵏ·y and c is 6 units.

    E is at most eight units low: four for `exponent_of_power`, and B < 2 for two units of
    P·(y - 1).
    """
    t = integer("t", Interval(1, ONE))
    fraction = integer("fraction", Interval(0, ONE - 1))
    k = integer("k", Interval(0, 62))
    y_minus_1 = integer("y - 1", Interval(-2 * ONE // 7, 3 * ONE // 7))
    normalize = Mock(return_value=(k, y_minus_1))
    monkeypatch.setattr(inverse_power, "_normalize", normalize)
    half_slope = unknown("half_log_slope", HALF_SLOPE, inverse_power, monkeypatch)
    power_of_two = unknown("two_to_minus", UP_TO_ONE, inverse_power, monkeypatch)

    value = inverse_power._inverse_power(INTEGERS, t, fraction, power)

    assert value is power_of_two.return_value
    normalize.assert_called_once_with(INTEGERS, t, fraction)
    half_slope.assert_called_once()
    _, y = half_slope.call_args.args
    assert y.value == y_minus_1.value + constant(ONE)
    product = (y_minus_1.value * joined(*power)).halved(62) + constant(6)
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


@pytest.mark.parametrize("doublings", range(31))
def test_t_of_inverse_power(doublings, monkeypatch):
    """t is 1 + steps·r, rounded down.

    As for `ratio`, the lengths are cut into intervals, to show that a t up to 2⁶² fits into int64.
    """
    segment = SimpleNamespace(start=ONE, end=0)
    rate = any_rate()
    factor = unknown("_inverse_power", UP_TO_ONE, inverse_power, monkeypatch)
    for module_function in ("ratio", "level_below", "_parabola"):
        unknown(module_function, UP_TO_ONE, inverse_power, monkeypatch)
    for lengths in Interval(2**doublings, 2 ** (doublings + 1)).boxes(8):
        steps = integer("steps", Interval(1, min(lengths.high, MAX_LENGTH)))
        top = integer("top", Interval(0, HALF // lengths.low))
        at = SegmentPosition(steps, REMAINING, None)
        InversePower.fixed_level(INTEGERS, segment, at, (top, *rate, *power_below(4), 0))
        _, whole, fraction, _ = factor.call_args.args
        t = (steps.value * joined(top, *rate)).halved(31) + constant(ONE)
        assert (t - joined_with_fraction(whole, fraction)).range.within(Interval(0, 1))


@from_higher_level
def test_level_of_inverse_power_joins_its_parts(segment, steps, monkeypatch):
    """The level is the higher one times t^(-P). The parabola needs only the fraction of t."""
    top = integer("top", Interval(0, 1))
    rate = any_rate()
    power = power_below(4)
    x = unknown("ratio", UP_TO_ONE, inverse_power, monkeypatch)
    factor = unknown("_inverse_power", UP_TO_ONE, inverse_power, monkeypatch)
    level = unknown("level_below", UP_TO_ONE, inverse_power, monkeypatch)
    parabola = unknown("_parabola", UP_TO_ONE, inverse_power, monkeypatch)

    value = InversePower.fixed_level(INTEGERS, segment, POSITION, (top, *rate, *power, 0))

    assert value is level.return_value
    level.assert_called_once_with(INTEGERS, segment, factor.return_value)
    x.assert_called_once_with(steps, segment)
    _, _, fraction, power_of_factor = factor.call_args.args
    assert tuple(power_of_factor) == power
    parabola.assert_called_once_with(INTEGERS, x.return_value, fraction, power_of_factor)
