"""How far each shape is off, proved for every x, every length and every P.

The product's own functions run on numbers that carry bounds (`proofs.arithmetic.bounded`), over
boxes that cover all x. A bound has up to four parts, all in units of 2⁻⁶²:

    rounding        of each operation, followed through the formula
    coefficients    the distance of each rounded coefficient from π, ln 2 and fractions as intervals
    omitted terms   of a series, by the term that would follow
    phase           of x, of rates and of logarithms, which are rounded before the shape begins

`ERRORS` has the sum for each shape. A test prints what it has shown; `python -m pytest -s` shows
it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from math import factorial, log2
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from proofs.arithmetic.bounded import BOUNDED, Bounded, integer, near
from proofs.arithmetic.errors_of_exponentials import LN_2, MARGIN, powers, slopes
from proofs.arithmetic.errors_of_powers import (
    Exponent,
    around,
    error_of_inverse_power_exponent,
    error_of_power_exponent,
    exponents_in,
)
from proofs.arithmetic.errors_of_root import ROOTS, root_of_square
from proofs.arithmetic.errors_of_sine import PHASES, at_x, cosine_at, phases, sine_coefficient
from proofs.arithmetic.intervals import (
    HALF_A_UNIT,
    NOTHING,
    ROUNDED_DOWN,
    Interval,
    Polynomial,
    Variable,
    assert_covered,
    constant,
    point,
    power_of,
    union,
    variable,
)
from proofs.arithmetic.multiples import LENGTH, steps_scaled_by_fours, steps_scaled_by_twos
from proofs.arithmetic.proven import (
    ERROR_OF_GROWTH,
    ERRORS,
    HALF_SLOPE,
    LARGEST,
    MAX_LENGTH,
    MOST_K_OF_ROOT,
    MOST_K_OF_T,
    MOST_K_OF_X,
    NORMALIZED,
    POWERS_OF_T,
    powers_of,
)

from plateau_jax.numerics import exponents
from plateau_jax.numerics.arithmetic import FIXED_BITS, ONE, PYTHON
from plateau_jax.shapes import cosine, inverse_power, power as power_shapes, root
from plateau_jax.shapes.cosine import Cosine
from plateau_jax.shapes.known_shapes import SHAPES
from plateau_jax.shapes.line import Linear
from plateau_jax.shapes.root import SquareRoot
from plateau_jax.shapes.shape import SegmentPosition


def show(name: str, error: Interval) -> None:
    """Compare with the recorded bound."""
    print(f"{name}: computed - exact lies in {error} units")
    assert error.outward(1000) == ERRORS[name]


def test_every_shape_has_a_proven_bound():
    assert ERRORS.keys() == SHAPES.keys()


# The formulas. A run on polynomials returns the formula that the code follows, without its
# roundings. The formula of the root and that of 1/(1 + y) are compared with √y and 1/(1 + y) where
# their errors are.


def unknown(name: str, least: Fraction) -> tuple[Polynomial, Bounded]:
    """Return a variable that is a little above a number, and the same in units of 2⁻⁶²."""
    number = variable(name, Interval(least, least + Fraction(1, 2**20)))
    return number, near(number.scaled(ONE), NOTHING)


def power_series(coefficients: Sequence[int], x: Polynomial) -> Polynomial:
    """Return c₀ + c₁·x + c₂·x² + … in units of 2⁻⁶²."""
    total = constant(0)
    power_of_x = constant(1)
    for coefficient in coefficients:
        total += power_of_x.scaled(coefficient)
        power_of_x *= x
    return total


def test_formula_of_cosine():
    """S = (2·x·(c₀ - c₁·x² + c₂·x⁴ - …))²."""
    x, in_units = unknown("x", Fraction(1, 4))
    value = Cosine.interpolant(BOUNDED, None, at_x(in_units), ())
    sine = x * power_series(cosine._SINE, -(x * x)).scaled(2)
    assert value.exact == (sine * sine).halved(62)


def test_formula_of_two_to_minus():
    """2^(-k - f) = (c₀ - c₁·u + c₂·u² - …)/2ᵏ with u = f·ln 2."""
    f, in_units = unknown("f", Fraction(1, 4))
    u = f.scaled(Fraction(exponents._LN_2, ONE))
    value = exponents.two_to_minus(BOUNDED, 3, in_units)
    assert value.exact == power_series(exponents._EXPONENTIAL, -u).halved(3)


@pytest.mark.parametrize("least", [Fraction(3, 4), Fraction(5, 4)])
def test_formula_of_half_log_slope(least, monkeypatch):
    """B/2 = 2·i·(c₀ + c₁·z² + c₂·z⁴ + …) with i = 1/(1 + y) and z = (y - 1)·i."""
    y, in_units = unknown("y", least)
    inverse, inverse_in_units = unknown("1/(1 + y)", 1 / (1 + least))
    one_plus = Mock(return_value=inverse_in_units)
    monkeypatch.setattr(exponents, "_inverse_of_one_plus", one_plus)
    z = (y - constant(1)) * inverse
    value = exponents.half_log_slope(BOUNDED, in_units)
    one_plus.assert_called_once_with(BOUNDED, in_units)
    assert value.exact == (inverse * power_series(exponents._LOGARITHM, z * z)).scaled(2)


@pytest.mark.parametrize("p", [1, int(POWERS_OF_T.high)])
def test_formula_of_parabola(p):
    """S = x + (P + 1)/2·(t - 1)·(1 - x)."""
    x, x_in_units = unknown("x", Fraction(1, 4))
    growth, growth_in_units = unknown("t - 1", Fraction(1, 2**23))
    value = inverse_power._parabola(BOUNDED, x_in_units, growth_in_units, (p, 0, 0))
    bend = growth.scaled(Fraction(p + 1, 2))
    assert value.exact == (x + bend * (constant(1) - x)).scaled(ONE)


# The constants, and how each is rounded. The proofs below read by how much.


@pytest.mark.parametrize("k", range(len(cosine._SINE)))
def test_coefficient_of_sine_is_the_nearest(k):
    error = point(cosine._SINE[k]) - sine_coefficient(k)
    assert error.within(HALF_A_UNIT.scaled(Fraction(1001, 1000)))


@pytest.mark.parametrize("k", range(len(exponents._EXPONENTIAL)))
def test_coefficient_of_exponential_is_rounded_down(k):
    assert exponents._EXPONENTIAL[k] == ONE // factorial(k)


@pytest.mark.parametrize("k", range(len(exponents._LOGARITHM)))
def test_coefficient_of_logarithm_is_rounded_down(k):
    error = point(exponents._LOGARITHM[k]) - point(ONE) / LN_2.scaled(2 * (2 * k + 1))
    assert error.within(ROUNDED_DOWN)


def test_ln_2_is_rounded_down():
    error = point(exponents._LN_2) - LN_2.scaled(ONE)
    assert error.within(ROUNDED_DOWN)


# The straight line and the half cosine, for x from 0 to 1/2.

PHASES_OF_COSINE = tuple(phases(256))


def test_phases_contain_half_of_a_segment():
    for boxes in (phases(1), PHASES_OF_COSINE):
        assert_covered(PHASES.scaled(ONE), [x.exact.range for x in boxes])
    assert Interval(0, LARGEST["linear"]) == PHASES


def test_linear_is_the_phase():
    for x in phases(1):
        assert Linear.interpolant(BOUNDED, None, at_x(x), ()) is x
        show("linear", x.error)


def test_cosine():
    show("cosine", union(cosine_at(x).error for x in PHASES_OF_COSINE))


# The number of steps j that a shape scales: to j·4ᵏ for the root, and to j·2ᵏ for the powers.

every_scale = pytest.mark.parametrize(
    ("scale", "ranges", "factor"),
    [
        (root._scale_by_fours, steps_scaled_by_fours(), 4),
        (power_shapes._scale_near_length, steps_scaled_by_twos(), 2),
    ],
    ids=["by fours", "by twos"],
)


@every_scale
def test_steps_are_scaled_by_their_fraction_of_the_length(scale, ranges, factor):
    """All j and L with j/L in a range have the same k, and nothing overflows."""
    for expected_k, steps in enumerate(ranges):
        k, scaled = scale(PYTHON, steps, LENGTH)
        assert k == expected_k
        assert scaled.least == steps.least * factor**k
        assert scaled.most == steps.most * factor**k


@every_scale
def test_ranges_contain_every_fraction_of_a_length(scale, ranges, factor):
    """Between two ranges there are only fractions of lengths above the longest.

    A range begins at a fraction c/d. Every j/L below it is at most c/d - 1/(d·L), because
    c·L - d·j is an integer.
    """
    assert ranges[0].most == 1 - Fraction(1, MAX_LENGTH)
    assert ranges[-1].least <= Fraction(1, MAX_LENGTH)
    for longer, shorter in pairwise(ranges):
        begin = longer.least
        assert begin - shorter.most <= Fraction(1, begin.denominator * MAX_LENGTH)


def test_scaled_steps_are_near_the_length():
    """j·2ᵏ/L lies in [5/7, 10/7], where logarithms are computed."""
    for k, steps in enumerate(steps_scaled_by_twos()):
        assert Interval(steps.least * 2**k, steps.most * 2**k).within(NORMALIZED)


# The square root, for j from 1 to L - 1.

SEGMENT = SimpleNamespace(length=4)
POSITION = SegmentPosition(elapsed=1, remaining=3, x=None)

BOXES_OF_ROOTS = tuple(ROOTS.boxes(32))


def test_boxes_contain_every_root():
    assert_covered(ROOTS, BOXES_OF_ROOTS)
    squares = ROOTS**2
    for k, steps in enumerate(steps_scaled_by_fours()):
        assert Interval(steps.least * 4**k, steps.most * 4**k).within(squares)


@cache
def roots() -> list[tuple[Variable, Bounded]]:
    return [root_of_square(box) for box in BOXES_OF_ROOTS]


def error_of_root(k: int, monkeypatch: pytest.MonkeyPatch) -> Interval:
    """Return the error of S = √y/2ᵏ, for all y in [1/4, 1)."""
    errors: list[Interval] = []
    for t, root_of_y in roots():
        assert root_of_y.computed.high <= ONE
        scale = Mock(return_value=(k, 2))
        ratio = Mock(return_value=ONE // 2)
        square_root = Mock(return_value=root_of_y)
        monkeypatch.setattr(root, "_scale_by_fours", scale)
        monkeypatch.setattr(root, "ratio", ratio)
        monkeypatch.setattr(root, "_root", square_root)
        value = SquareRoot.interpolant(BOUNDED, SEGMENT, POSITION, ())
        scale.assert_called_once_with(BOUNDED, 1, 4)
        ratio.assert_called_once_with(2, SEGMENT)
        square_root.assert_called_once_with(BOUNDED, ONE // 2)
        of_formula = value.exact - power_of(t, 1).scaled(ONE).halved(k)
        errors.append(of_formula.range + value.error)
    return union(errors)


def test_root(monkeypatch):
    roots()  # before `_root` is replaced
    show("1-sqrt", error_of_root(0, monkeypatch))


@pytest.mark.parametrize("k", range(1, MOST_K_OF_ROOT + 1))
def test_root_of_scaled_steps_is_no_farther_off(k, monkeypatch):
    """The shift by k divides the error by 2ᵏ, and adds at most a unit."""
    roots()
    assert error_of_root(k, monkeypatch).within(ERRORS["1-sqrt"])


# The exponential, and the powers 2^(-E) that the other shapes are made of.


def test_boxes_contain_every_exponent():
    """From E = 64 on, 2^(-E) and what is computed, which is 0, are both below a unit."""
    assert_covered(Interval(0, FIXED_BITS + 2), [power.exponent for power in powers()])


@pytest.mark.parametrize("whole", [FIXED_BITS + 2, 2**62])
def test_powers_of_two_from_64_on_are_0(whole):
    """For all whole parts from 63 on, the shift is by 63."""
    value = exponents.two_to_minus(BOUNDED, whole, integer(0, ONE - 1))
    assert value.computed == NOTHING


def test_exponential():
    errors = [power.error_for(ERROR_OF_GROWTH) for power in powers()]
    show("exponential", union(errors))


def test_powers_of_two_of_exact_exponents():
    """`two_to_minus` is less than 5.6 units off if E is not."""
    errors = union(power.error for power in powers())
    assert errors.within(Interval(Fraction(-56, 10), Fraction(56, 10)))


def test_powers_of_two_are_at_most_1():
    for power in powers():
        assert power.integers.within(Interval(0, ONE))


def test_boxes_contain_every_normalized_number():
    """Also those that are rounded to a number outside."""
    assert_covered(NORMALIZED + MARGIN, [slope.y for slope in slopes()])


def test_half_slope_is_below_1():
    """So it is an operand that `multiply` accepts."""
    for slope in slopes():
        assert slope.integers.within(HALF_SLOPE)


# The powers x^P and (1 - x)^P are both w^P, with w = steps/L = y/2ᵏ from 1/L to 1 - 1/L and
# E = P·k + P·(1 - y)·B(y). The inverse power t^(-P), with t = 1 + j·r = 2ᵏ·y, has
# E = P·k + P·(y - 1)·B(y).


@dataclass(frozen=True)
class Family:
    """Powers 2^(-E) with E = P·(k + sign·log₂ y)."""

    powers: Interval
    most_k: int
    sign: int
    error_of_exponent: Callable[[Exponent], Interval]

    def exponents_near(self, box: Interval) -> Iterator[Exponent]:
        """Yield boxes that cover every exact E that is rounded to one in the box."""
        return exponents_in(around(box), self.powers, self.most_k, self.sign)


FAMILIES = {
    "1-x^P": Family(powers_of(SHAPES["1-x^P"]), MOST_K_OF_X, -1, error_of_power_exponent),
    "(1-x)^P": Family(powers_of(SHAPES["(1-x)^P"]), MOST_K_OF_X, -1, error_of_power_exponent),
    "t^-P": Family(POWERS_OF_T, MOST_K_OF_T, 1, error_of_inverse_power_exponent),
}
every_family = pytest.mark.parametrize("name", FAMILIES)


@every_family
def test_power(name):
    """For every P. From E = 64 on, the power is below a unit, and 0 is computed."""
    family = FAMILIES[name]
    errors: list[Interval] = []
    for power in powers():
        for exponent in family.exponents_near(power.exponent):
            error = family.error_of_exponent(exponent)
            errors.append(power.error_for(error))
    show(name, union(errors))


@every_family
def test_exponent_is_far_above_0_unless_k_is_0(name):
    """So no error makes it negative. `test_exponent_is_not_negative` is about k = 0."""
    family = FAMILIES[name]
    for slope in slopes():
        octaves = slope.logarithm.scaled(family.sign)
        least = family.powers * (octaves + point(1))
        assert least.low > MARGIN.high


@every_family
def test_boxes_contain_every_power(name):
    """For any P, k and y, E is in one of its boxes together with them."""
    family = FAMILIES[name]
    least = family.powers.low
    most = family.powers.high
    boxes: list[tuple[Fraction, Fraction, list[Exponent]]] = []
    for power in powers():
        exponents = list(family.exponents_near(power.exponent))
        boxes.append((power.exponent.low, power.exponent.high, exponents))
    middles = [(slope.y.low + slope.y.high) / 2 for slope in slopes()]
    for p, k, y in product((least, 3 * least, most), (0, 1, 2, 3, 5, family.most_k), middles):
        total = p * (k + family.sign * Fraction(log2(y)))
        if 0 <= total < FIXED_BITS + 2:
            candidates = exponents_with(boxes, total)
            assert any(is_in_box(p, k, y, exponent) for exponent in candidates)


@every_family
def test_boxes_contain_the_greatest_k(name):
    """For an E alone: k is greatest for the least P and a y at one of its ends."""
    family = FAMILIES[name]
    least = family.powers.low
    for k, y in product(range(family.most_k + 1), (NORMALIZED.low, NORMALIZED.high)):
        total = least * (k + family.sign * Fraction(log2(y)))
        if total >= 0:
            exponents = family.exponents_near(point(total))
            assert any(is_in_box(least, k, y, exponent) for exponent in exponents)


def exponents_with(
    boxes: list[tuple[Fraction, Fraction, list[Exponent]]], total: Fraction
) -> list[Exponent]:
    """Return the boxes of all P, k and y that can have this E."""
    matching: list[Exponent] = []
    for low, high, candidates in boxes:
        if low <= total <= high:
            matching += candidates
    return matching


def is_in_box(p: Fraction, k: int, y: Fraction, exponent: Exponent) -> bool:
    return p in exponent.power and k in exponent.k and y in exponent.slope.y
