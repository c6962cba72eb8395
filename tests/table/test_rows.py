"""The integers that a row of the table stores, against exact rationals and numbers of 600 bits.

The proofs begin with these numbers, and with what each is off: `proofs.arithmetic.proven` has both.
"""

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import Any

import mpmath
from hypothesis import assume, given, strategies as st
from proofs.arithmetic.proven import (
    ERROR_OF_HIGHER_LEVEL,
    ERROR_OF_INVERSE,
    ERROR_OF_LOWER_LEVEL,
    ERROR_OF_RATE,
    LEAST_GROWTH,
    MAX_RATE,
    MAX_T,
    MOST_DOUBLINGS,
)
from proofs.shapes.specs import SPECS
from support.curves.strategies import MAX_STEP, magnitudes
from support.examples import examples

from plateau_jax.numerics import exact
from plateau_jax.shapes.inverse_power import InversePower
from plateau_jax.shapes.known_shapes import SHAPES, parse_shape
from plateau_jax.table.encoding import Table, _encode_row
from plateau_jax.table.exact_segments import ExactSegment

ONE = 2**62
INVERSE_ONE = 2**93

precise = mpmath.MPContext()
precise.prec = 600


def encode(start: Decimal, end: Decimal, length: int, shape: str) -> Table:
    segment = ExactSegment("decay", 0, length, start, end, shape)
    return _encode_row(segment)


def joined_words(high: int, low: int) -> int:
    """Return two words of 32 bits as one number."""
    return high * 2**32 + low % 2**32


def joined_limbs(limbs: Iterable[int]) -> int:
    """Return limbs of 31 bits as one number."""
    number = 0
    for limb in limbs:
        assert 0 <= limb < 2**31
        number = number * 2**31 + limb
    return number


def levels_of(encoded: Table) -> tuple[int, int]:
    start = joined_words(encoded.start_high, encoded.start_low)
    end = joined_words(encoded.end_high, encoded.end_low)
    return start, end


def wide(number: Decimal | Fraction) -> Any:
    """Return a rational as a number of 600 bits."""
    fraction = Fraction(number)
    return precise.mpf(fraction.numerator) / fraction.denominator


def as_fraction(number: Any) -> Fraction:
    """Return a number of 600 bits as a fraction."""
    return Fraction(int(precise.ldexp(number, 500)), 2**500)


decimals = st.decimals(0, 1, places=50)
floats = st.floats(0, 1).map(exact.as_level)


@st.composite
def levels_near_units(draw: st.DrawFn) -> Decimal:
    """Draw a level that is a unit of 2⁻⁶², or hardly above or below one."""
    units = draw(magnitudes(1, ONE - 1))
    distance = draw(st.sampled_from((0, 1, -1)))
    return exact.to_decimal(Fraction(units, ONE) + Fraction(distance, 10**40))


levels = st.one_of(decimals, floats, levels_near_units())
lengths = magnitudes(1, MAX_STEP)


def in_units(level: Decimal) -> Fraction:
    """Return a level in units of 2⁻⁶², rounded to 224 bits."""
    rounded = round(Fraction(level) * 2**224)
    return Fraction(rounded, 2 ** (224 - 62))


@examples(200)
@given(levels, levels, lengths)
def test_levels_are_rounded_towards_each_other(start: Decimal, end: Decimal, length: int) -> None:
    high = max(start, end)
    low = min(start, end)
    higher = floor(in_units(high))
    lower = ceil(in_units(low))
    encoded = encode(start, end, length, "linear")
    stored = levels_of(encoded)
    if start >= end:
        assert stored == (higher, lower)
    else:
        assert stored == (lower, higher)
    assert higher - Fraction(high) * ONE in ERROR_OF_HIGHER_LEVEL
    assert lower - Fraction(low) * ONE in ERROR_OF_LOWER_LEVEL


@given(levels, levels, st.integers(1, MOST_DOUBLINGS), lengths)
def test_levels_above_1_are_divided_by_the_least_power_of_two(
    low: Decimal, more: Decimal, doublings: int, length: int
) -> None:
    for integer in (2 ** (doublings - 1), 2**doublings - 1):
        high = exact.to_decimal(integer + Fraction(more))
        high_units = in_units(high)
        encoded = encode(high, low, length, "linear")
        if high_units <= ONE:
            assert encoded.shift is None
        else:
            divisor = 2**encoded.shift
            assert divisor // 2 * ONE < high_units <= divisor * ONE
            higher = floor(high_units / divisor)
            lower = ceil(in_units(low) / divisor)
            assert levels_of(encoded) == (higher, lower)


@given(st.integers(0, ONE - 1), st.integers(1, 10**20), lengths)
def test_row_is_flat_if_no_unit_is_between_its_levels(
    units: int, distance: int, length: int
) -> None:
    """Its levels are off a unit by 10⁻⁴⁰ and by up to five units."""
    for side in (1, -1):
        low = exact.to_decimal(Fraction(units, ONE) + Fraction(side, 10**40))
        high = exact.to_decimal(Fraction(low) + Fraction(distance, 10**38))
        encoded = encode(high, low, length, "linear")
        higher = floor(in_units(high))
        lower = ceil(in_units(low))
        assert (encoded.length == 0) == (higher < lower)


@given(lengths)
def test_inverse_of_length_is_rounded_down(length: int) -> None:
    encoded = encode(Decimal(1), Decimal(0), length, "linear")
    high = joined_words(encoded.inverse_high, encoded.inverse_middle)
    inverse = high * 2**31 + encoded.inverse_low
    assert inverse == INVERSE_ONE // length
    assert inverse - Fraction(INVERSE_ONE, length) in ERROR_OF_INVERSE


@given(st.sampled_from(("1-x^P", "(1-x)^P")), st.decimals("0.05", "20"), lengths)
def test_rate_and_exponent_of_power(name: str, power: Decimal, length: int) -> None:
    """P/L is rounded down, and P to the nearest unit."""
    assume(power not in (1, Decimal("0.5")))
    power = Fraction(power)
    shape = SHAPES[name](power)
    limbs = shape.parameters(Decimal(1), Decimal(0), length)
    rate = joined_limbs(limbs[:4])
    assert rate == floor(power * INVERSE_ONE / length)
    exponent = joined_limbs(limbs[4:])
    assert abs(exponent - power * ONE) <= Fraction(1, 2)


@examples(200)
@given(levels, levels, lengths)
def test_rate_of_exponential_is_rounded_down(start: Decimal, end: Decimal, length: int) -> None:
    """The rate is log₂(h/l)/L."""
    assume(start != end and start and end)
    limbs = parse_shape("exponential").parameters(start, end, length)
    ratio = wide(max(start, end)) / wide(min(start, end))
    octaves = precise.log(ratio, 2)
    rate = as_fraction(octaves * INVERSE_ONE) / length
    assert joined_limbs(limbs) - rate in ERROR_OF_RATE


powers_of_t = st.decimals("0.25", "4", places=5)


@examples(200)
@given(levels, levels, lengths, powers_of_t)
def test_rate_of_inverse_power_is_rounded_down(
    start: Decimal, end: Decimal, length: int, power: Decimal
) -> None:
    """The rate is ((h/l)^(1/P) - 1)/L. Nearly equal levels are marked by the last number."""
    assume(start != end and start and end)
    ratio = (wide(max(start, end)) / wide(min(start, end))) ** (1 / wide(power))
    assume(ratio <= MAX_T)
    shape = InversePower(Fraction(power))
    limbs = shape.parameters(start, end, length)
    growth = as_fraction(ratio - 1)
    rate = joined_limbs(limbs[:5])
    assert rate - growth * INVERSE_ONE / length in ERROR_OF_RATE
    assert rate * length <= MAX_RATE
    exponent = joined_limbs(limbs[5:8])
    assert abs(exponent - Fraction(power) * ONE) <= Fraction(1, 2)
    assert limbs[8] == (growth < LEAST_GROWTH)


@given(st.integers(-(2**40), 2**40).filter(bool), lengths, powers_of_t)
def test_levels_are_nearly_equal_up_to_the_least_growth(
    distance: int, length: int, power: Decimal
) -> None:
    """t grows by the least growth and a little more or less."""
    growth = LEAST_GROWTH + Fraction(distance, 2**80)
    ratio = (1 + wide(growth)) ** wide(power)
    start = exact.to_decimal(as_fraction(ratio))
    shape = InversePower(Fraction(power))
    limbs = shape.parameters(start, Decimal(1), length)
    assert limbs[8] == (distance < 0)


def test_levels_that_grow_by_exactly_the_least_growth() -> None:
    start = Decimal("0.4194305")
    end = Decimal("0.4194304")
    assert Fraction(start) / Fraction(end) - 1 == LEAST_GROWTH
    shape = InversePower(Fraction(1))
    limbs = shape.parameters(start, end, 1000)
    assert limbs[8] == 0


def test_greatest_rate_is_that_of_the_greatest_ratio() -> None:
    least = exact.to_decimal(Fraction(1, MAX_T))
    shape = InversePower(Fraction(1))
    limbs = shape.parameters(Decimal(1), least, 1)
    rate = joined_limbs(limbs[:5])
    assert MAX_RATE / 2 < rate <= MAX_RATE


# Exact levels.


def test_pi_has_all_its_bits() -> None:
    assert abs(exact._PI - precise.pi * 2**352) < 1


levels = st.decimals("1e-9", 1, places=12)
powers = st.fractions(Fraction(1, 4), 4, max_denominator=100)


@examples(20)
@given(levels, levels, st.fractions(Fraction(1, 10**9), 1 - Fraction(1, 10**9)), powers)
def test_levels_have_80_correct_digits(
    start: Decimal, end: Decimal, x: Fraction, power: Fraction
) -> None:
    """They are computed with 100 digits, of which each operation may lose some."""
    numbers = [wide(number) for number in (start, end, x, power)]
    for name, shape in SHAPES.items():
        level = shape(power).level(start, end, x)
        expected = SPECS[name].level(precise, *numbers)
        error = abs(wide(level) - expected)
        assert error < expected * precise.mpf(10) ** -80, name
