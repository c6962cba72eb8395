"""How far the functions of exponents are off: 2^(-E), the slope B of a logarithm, and powers.

The product's own functions run on numbers that carry bounds (`proofs.arithmetic.bounded`), over
boxes that cover all exponents. The powers 2^(-E) have E = P·(k + log₂ y) or P·(k - log₂ y).
"""

from collections.abc import Iterable
from fractions import Fraction
from itertools import product
from math import factorial, log2
from typing import Any
from unittest.mock import Mock

import pytest
from proofs.arithmetic.bounded import BOUNDED, integer
from proofs.arithmetic.errors_of_exponentials import LN_2, MARGIN, powers, slopes
from proofs.arithmetic.errors_of_powers import (
    INVERSE_POWERS,
    POWERS_OF_FRACTIONS,
    Exponent,
    PowerFamily,
)
from proofs.arithmetic.formulas import power_series, unknown
from proofs.arithmetic.intervals import (
    NOTHING,
    ROUNDED_DOWN,
    Interval,
    assert_covered,
    constant,
    point,
    union,
)
from proofs.arithmetic.proven import HALF_SLOPE, NORMALIZED

from plateau_jax.numerics import exponents
from plateau_jax.numerics.arithmetic import FIXED_BITS, ONE


def test_formula_of_two_to_minus() -> None:
    """2^(-k - f) = (c₀ - c₁·u + c₂·u² - …)/2ᵏ with u = f·ln 2."""
    f, in_units = unknown("f", Fraction(1, 4))
    u = f.scaled(Fraction(exponents.LN_2, ONE))
    value = exponents.two_to_minus(BOUNDED, 3, in_units)
    series = power_series(exponents.EXPONENTIAL, -u)
    assert value.exact == series.halved(3)


@pytest.mark.parametrize("least", [Fraction(3, 4), Fraction(5, 4)])
def test_formula_of_half_log_slope(least: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """B/2 = 2·i·(c₀ + c₁·z² + c₂·z⁴ + …) with i = 1/(1 + y) and z = (y - 1)·i."""
    y, in_units = unknown("y", least)
    inverse, inverse_in_units = unknown("1/(1 + y)", 1 / (1 + least))
    one_plus = Mock(return_value=inverse_in_units)
    monkeypatch.setattr(exponents, "inverse_of_one_plus", one_plus)
    z = (y - constant(1)) * inverse
    value = exponents.half_log_slope(BOUNDED, in_units)
    one_plus.assert_called_once_with(BOUNDED, in_units)
    series = power_series(exponents.LOGARITHM, z * z)
    assert value.exact == (inverse * series).scaled(2)


# The constants, and how each is rounded. The bounds read by how much.


@pytest.mark.parametrize("k", range(len(exponents.EXPONENTIAL)))
def test_coefficient_of_exponential_is_rounded_down(k: int) -> None:
    assert exponents.EXPONENTIAL[k] == ONE // factorial(k)


@pytest.mark.parametrize("k", range(len(exponents.LOGARITHM)))
def test_coefficient_of_logarithm_is_rounded_down(k: int) -> None:
    exact = point(ONE) / LN_2.scaled(2 * (2 * k + 1))
    error = point(exponents.LOGARITHM[k]) - exact
    assert error.within(ROUNDED_DOWN)


def test_ln_2_is_rounded_down() -> None:
    error = point(exponents.LN_2) - LN_2.scaled(ONE)
    assert error.within(ROUNDED_DOWN)


# Boxes, and the ranges of the integers in them.


def test_boxes_contain_every_exponent() -> None:
    """From E = 64 on, 2^(-E) and what is computed, which is 0, are both below a unit."""
    boxes = [power.exponent for power in powers()]
    assert_covered(Interval(0, FIXED_BITS + 2), boxes)


@pytest.mark.parametrize("whole", [FIXED_BITS + 2, 2**62])
def test_powers_of_two_from_64_on_are_0(whole: int) -> None:
    """For all whole parts from 63 on, the shift is by 63."""
    value = exponents.two_to_minus(BOUNDED, whole, integer(0, ONE - 1))
    assert value.computed == NOTHING


def test_powers_of_two_of_exact_exponents() -> None:
    """`two_to_minus` is less than 5.6 units off if E is not."""
    errors = union(power.error for power in powers())
    assert errors.within(Interval(Fraction(-56, 10), Fraction(56, 10)))


def test_powers_of_two_are_at_most_1() -> None:
    for power in powers():
        assert power.integers.within(Interval(0, ONE))


def test_boxes_contain_every_normalized_number() -> None:
    """Also those that are rounded to a number outside."""
    boxes = [slope.y for slope in slopes()]
    assert_covered(NORMALIZED + MARGIN, boxes)


def test_half_slope_is_below_1() -> None:
    """So it is an operand that `multiply` accepts."""
    for slope in slopes():
        assert slope.integers.within(HALF_SLOPE)


# Families of powers.

FAMILIES = {"x^P": POWERS_OF_FRACTIONS, "t^-P": INVERSE_POWERS}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@every_family
def test_exponent_is_far_above_0_unless_k_is_0(family: PowerFamily) -> None:
    """So no error makes it negative. `test_exponent_is_not_negative` is about k = 0."""
    for slope in slopes():
        octaves = slope.logarithm.scaled(family.sign)
        least = family.powers * (octaves + point(1))
        assert least.low > MARGIN.high


@every_family
def test_boxes_contain_every_power(family: PowerFamily) -> None:
    """For any P, k and y, E is in one of its boxes together with them."""
    least = family.powers.low
    most = family.powers.high
    boxes: list[tuple[Interval, list[Exponent]]] = []
    for power in powers():
        candidates = family.exponents_near(power.exponent)
        boxes.append((power.exponent, list(candidates)))
    some_p = (least, 3 * least, most)
    some_k = (0, 1, 2, 3, 5, family.most_k)
    middles = [(slope.y.low + slope.y.high) / 2 for slope in slopes()]
    for p, k, y in product(some_p, some_k, middles):
        total = exponent_at(family, p, k, y)
        if 0 <= total < FIXED_BITS + 2:
            candidates = exponents_with(boxes, total)
            assert is_in_a_box(p, k, y, candidates)


@every_family
def test_boxes_contain_the_greatest_k(family: PowerFamily) -> None:
    """For an E alone: k is greatest for the least P and a y at one of its ends."""
    least = family.powers.low
    ends = (NORMALIZED.low, NORMALIZED.high)
    for k, y in product(range(family.most_k + 1), ends):
        total = exponent_at(family, least, k, y)
        if total >= 0:
            candidates = family.exponents_near(point(total))
            assert is_in_a_box(least, k, y, candidates)


def exponent_at(family: Any, p: Fraction, k: int, y: Fraction) -> Fraction:
    return p * (k + family.sign * Fraction(log2(y)))


def exponents_with(boxes: list[tuple[Interval, list[Exponent]]], total: Fraction) -> list[Exponent]:
    """Return the boxes of all P, k and y that can have this E."""
    matching: list[Exponent] = []
    for exponents_in_box, candidates in boxes:
        if total in exponents_in_box:
            matching += candidates
    return matching


def is_in_a_box(p: Fraction, k: int, y: Fraction, boxes: Iterable[Exponent]) -> bool:
    return any(p in box.power and k in box.k and y in box.slope.y for box in boxes)
