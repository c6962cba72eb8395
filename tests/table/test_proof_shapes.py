"""How far each shape is off, proved for every x, every length and every P.

The product's own functions run on numbers that carry bounds (`support.numerics.bounded`), over
boxes that cover all x. A bound has up to four parts, all in units of 2⁻⁶²:

    rounding        of each operation, followed through the formula
    coefficients    the distance of each rounded coefficient from π, ln 2 and fractions as intervals
    omitted terms   of a series, by the term that would follow
    phase           of x, of rates and of logarithms, which are rounded before the shape begins

`ERRORS` has the sum for each shape. A test prints what it has shown; `python -m pytest -s` shows
it.
"""

from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.numerics.bounded import BOUNDED, Bounded, integer, near
from support.numerics.errors_of_exponentials import (
    powers,
    relative_error,
    slopes,
    union,
    with_relative_error,
)
from support.numerics.errors_of_powers import (
    around,
    error_of_inverse_power_exponent,
    error_of_power_exponent,
    exponents_in,
)
from support.numerics.errors_of_sine import at_x, phases, sine_error
from support.numerics.intervals import (
    NOTHING,
    Interval,
    Polynomial,
    Variable,
    constant,
    pi,
    power_of,
    variable,
)
from support.numerics.proven import ERRORS, HALF_SLOPE

from plateau_jax.numerics import exponents
from plateau_jax.numerics.arithmetic import ONE, PYTHON, Operations
from plateau_jax.shapes import cosine, inverse_power, power, root
from plateau_jax.shapes.cosine import Cosine
from plateau_jax.shapes.known_shapes import SHAPES
from plateau_jax.shapes.line import Linear
from plateau_jax.shapes.root import SquareRoot
from plateau_jax.shapes.shape import SegmentPosition

PI = pi()


def show(name: str, error: Interval) -> None:
    print(f"{name}: computed - exact lies in {error} units")
    assert error.within(ERRORS[name]), f"{name} is off by {error}"


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
    monkeypatch.setattr(exponents, "_inverse_of_one_plus", Mock(return_value=inverse_in_units))
    z = (y - constant(1)) * inverse
    value = exponents.half_log_slope(BOUNDED, in_units)
    assert value.exact == (inverse * power_series(exponents._LOGARITHM, z * z)).scaled(2)


@pytest.mark.parametrize("p", [1, 4])
def test_formula_of_parabola(p):
    """S = x + (P + 1)/2·(t - 1)·(1 - x)."""
    x, x_in_units = unknown("x", Fraction(1, 4))
    growth, growth_in_units = unknown("t - 1", Fraction(1, 2**23))
    value = inverse_power._parabola(BOUNDED, x_in_units, growth_in_units, (p, 0, 0))
    bend = growth.scaled(Fraction(p + 1, 2))
    assert value.exact == (x + bend * (constant(1) - x)).scaled(ONE)


# The straight line and the half cosine, for x from 0 to 1/2.


def test_linear_is_the_phase():
    for x in phases(1):
        assert Linear.interpolant(BOUNDED, None, at_x(x), ()) is x
        show("linear", x.error)


def test_cosine():
    """S = (2p)², where p is half the sine. If p is off by d, S is off by 4·d·(2p + d).

    Twice p is the sine, which is at most √(1/2) < 0.7072.
    """
    errors = [NOTHING]
    for x in phases(256):
        rounding = Cosine.interpolant(BOUNDED, None, at_x(x), ()).error
        off = sine_error(x.exact.range.scaled(Fraction(1, ONE)))
        errors.append(rounding + off.scaled(4) * Interval(0, Fraction(7072, 10_000)))
    show("cosine", union(errors))


# The square root, for j from 1 to L - 1.


def scale_range(k: int) -> Interval:
    """Return all L/j for which j·4ᵏ lies in [L/4, L): above 4ᵏ by 1/j, so by more than 2⁻³¹."""
    return Interval(4**k + Fraction(1, 2**31), 4 ** (k + 1))


@pytest.mark.parametrize("k", range(16))
def test_root_scales_steps_to_the_last_quarter(k):
    """`_scale_by_fours` compares 2ⁿ·j with L, so only L/j counts: here j is 1.

    A comparison with a larger L never turns from true to false. So what both ends of an interval
    have in common, all lengths between them have too. Since L < 2³¹, k is at most 15.
    """
    ends = scale_range(k)
    for length in (ends.low, ends.high):
        assert root._scale_by_fours(PYTHON, 1, length) == (k, 4**k)


ROOTS = Interval(Fraction(1, 2), 1 - Fraction(1, 2**32))


class RestartedSteps:
    """Steps that start from h = (1 + e)/(2t), with √y = t, of which only the range of e is known.

    The formula of Newton's step is then (1 - 3/2·e² - 1/2·e³)/(2t), as a polynomial, and e almost
    vanishes from step to step. Heron's step names the error of every product, since they cancel.
    """

    t: Variable
    newton_step = staticmethod(root._newton_step)
    heron_step = staticmethod(root._heron_step)

    @classmethod
    def known_relatively(cls, h: Bounded) -> Bounded:
        error = relative_error(h, power_of(cls.t, 1).scaled(2), ONE)
        inverse = power_of(cls.t, -1).scaled(Fraction(1, 2))
        return with_relative_error(inverse, error, ONE)

    @classmethod
    def restarted_newton_step(cls, xp: Operations, y: Bounded, h: Bounded) -> Bounded:
        return cls.newton_step(xp, y, cls.known_relatively(h))

    @classmethod
    def restarted_heron_step(cls, xp: Operations, y: Bounded, h: Bounded) -> Bounded:
        return cls.heron_step(NAMING, named(y), cls.known_relatively(h))


def restart_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "_newton_step", RestartedSteps.restarted_newton_step)
    monkeypatch.setattr(root, "_heron_step", RestartedSteps.restarted_heron_step)


def named(number: Bounded) -> Bounded:
    """Return the number with its error as one more variable of its formula."""
    error = variable("error", number.error)
    return near(number.exact + error, NOTHING)


def named_product(a: Bounded, b: Bounded) -> Bounded:
    return named(BOUNDED.multiply(a, b))


NAMING = BOUNDED._replace(multiply=named_product)


SEGMENT = SimpleNamespace(length=4)

ERROR_OF_SCALED_STEPS = Interval(-2, 0)
"""The error of `ratio` for up to 2³¹ steps."""


@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("box", [*Interval(Fraction(1, 2), 1).boxes(4)], ids=repr)
def test_root(box, k, monkeypatch):
    """S = √y/2ᵏ with y = t² in [1/4, 1). Since L < 2³¹, y <= 1 - 2⁻³¹ and t <= 1 - 2⁻³².

    For a larger k, the shift divides the error of √y by more, and its own is the same.
    """
    restart_steps(monkeypatch)
    monkeypatch.setattr(root, "_scale_by_fours", Mock(return_value=(k, None)))
    errors: list[Interval] = []
    for narrow_box in box.intersection(ROOTS).boxes(8):
        t = Variable("t", narrow_box)
        y = near(power_of(t, 2).scaled(ONE), ERROR_OF_SCALED_STEPS)
        RestartedSteps.t = t
        monkeypatch.setattr(root, "ratio", Mock(return_value=y))
        value = SquareRoot.interpolant(BOUNDED, SEGMENT, SegmentPosition(1, 3, None), ())
        assert value.computed.high <= ONE
        of_formula = value.exact - power_of(t, 1).scaled(ONE).halved(k)
        errors.append(of_formula.range + value.error)
    show("1-sqrt", union(errors))


# The exponential, and the powers 2^(-E) that the other shapes are made of.

PHASE_OF_EXPONENTIAL = Interval(Fraction(-2001, 1000), Fraction(1, 1000))
"""The error of E = steps·r for up to 2³¹ steps: the rate r·2⁹³ and the product are rounded down."""


def test_exponential():
    """For E from 64 on, 2^(-E) and what is computed, which is 0, are both below a unit."""
    errors = [each_power.error_for(PHASE_OF_EXPONENTIAL) for each_power in powers()]
    show("exponential", union(errors))


def test_powers_of_two_of_exact_exponents():
    """`two_to_minus` is less than 5.6 units off if E is not."""
    errors = union(each_power.error for each_power in powers())
    assert errors.within(Interval(Fraction(-56, 10), Fraction(56, 10)))


@pytest.mark.parametrize("whole", [64, 2**62])
def test_powers_of_two_from_64_on_are_0(whole):
    """For all whole parts from 63 on, the shift is by 63."""
    value = exponents.two_to_minus(BOUNDED, whole, integer(0, ONE - 1))
    assert value.computed.magnitude == 0


def test_powers_of_two_are_at_most_1():
    for each_power in powers():
        assert each_power.integers.within(Interval(0, ONE))


def test_half_slope_is_below_1():
    """So it is an operand that `multiply` accepts."""
    for slope in slopes():
        assert slope.integers.within(HALF_SLOPE)


# The powers x^P and (1 - x)^P are both w^P, with w = steps/L = y/2ᵏ from 1/L to 1 - 1/L. In both
# E = P·k + P·(1 - y)·B(y).


def least_and_greatest_ratio(k: int) -> tuple[Fraction, Fraction]:
    """Return the ends of all L/j for which j·2ᵏ is the greatest below 10/7·L, with j < L.

    10·L and 7·2ᵏ·j are integers, so L/j is above 7/10·2ᵏ by at least 1/(10·j).
    """
    greatest = Fraction(7, 10) * 2 ** (k + 1)
    if k == 0:
        return 1 + Fraction(1, 2**31), greatest
    return Fraction(7, 10) * 2**k + Fraction(1, 2**35), greatest


@pytest.mark.parametrize("k", range(32))
def test_power_scales_steps_near_the_length(k):
    """As for the root, only L/j counts: j·2ᵏ lies in 5/7·L … 10/7·L. Since L < 2³¹, k <= 31.

    7·2ⁿ·j is below 2¹⁶·10·L when it is compared with 10·L, and fits into int64.
    """
    for length in least_and_greatest_ratio(k):
        assert power._scale_near_length(PYTHON, 1, length) == (k, 2**k)


@pytest.mark.parametrize("name", ["1-x^P", "(1-x)^P"])
def test_power(name):
    """For every P from 0.05 to 20. From E = 64 on, w^P is below a unit, and 0 is computed.

    E is never negative: for k = 0 the product is not, and else P·k is larger than what a y above 1
    takes away.
    """
    errors: list[Interval] = []
    for each_power in powers():
        total = around(each_power.exponent)
        for exponent in exponents_in(total, Interval(Fraction(1, 20), 20), 31, -1):
            error = error_of_power_exponent(exponent)
            errors.append(each_power.error_for(error))
    show(name, union(errors))


# The inverse power t^(-P), with t = 1 + j·r = 2ᵏ·y: E = P·k + P·(y - 1)·B(y).


def test_inverse_power():
    """For every P from 0.25 to 4, and every t from 1 to 2⁶²."""
    errors: list[Interval] = []
    for each_power in powers():
        total = around(each_power.exponent)
        for exponent in exponents_in(total, Interval(Fraction(1, 4), 4), 62, 1):
            error = error_of_inverse_power_exponent(exponent)
            errors.append(each_power.error_for(error))
    show("t^-P", union(errors))
