"""How far each shape is off, proved for every x, every length and every P.

The product's own functions run on numbers that carry bounds (`support.numerics.bounded`), over boxes that cover all x.
A bound has up to four parts, all in units of 2⁻⁶²:

    rounding        of each operation, followed through the formula
    coefficients    the distance of each rounded coefficient from π, ln 2 and fractions as intervals
    omitted terms   of a series, by the term that would follow
    phase           of x, of rates and of logarithms, which are rounded before the shape begins

`ERRORS` has the sum for each shape. A test prints what it has shown; `python -m pytest -s` shows it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import pytest
from support.numerics.bounded import BOUNDED, OF_A_PRODUCT, Bounded, near
from support.numerics.exponent_errors import (
    Slope,
    merged,
    powers,
    relative_error,
    slopes,
    union,
    with_relative_error,
)
from support.numerics.intervals import (
    NOTHING,
    Interval,
    Polynomial,
    Variable,
    constant,
    pi,
    point,
    power_of,
    variable,
)
from support.numerics.proven import ERRORS, HALF_SLOPE, OF_X

from plateau_jax.numerics.arithmetic import ONE, PYTHON, Operations
from plateau_jax.numerics.exponents import half_log_slope
from plateau_jax.shapes import cosine, inverse_power, power, root
from plateau_jax.shapes.cosine import Cosine
from plateau_jax.shapes.known_shapes import SHAPES
from plateau_jax.shapes.line import Linear
from plateau_jax.shapes.root import SquareRoot
from plateau_jax.shapes.shape import SegmentPosition

PI = pi()
MARGIN = Interval(Fraction(-1, 2**40), Fraction(1, 2**40))
"""More than any error, and more than any product of errors in units of 2⁻⁶²."""

HALF_A_UNIT = Interval(Fraction(-1, 2), Fraction(1, 2))
ROUNDED_DOWN = Interval(-1, 0)


def show(name: str, error: Interval) -> None:
    print(f"{name}: computed - exact lies in {error} units")
    assert error.within(ERRORS[name]), f"{name} is off by {error}"


def test_every_shape_has_a_proven_bound():
    assert ERRORS.keys() == SHAPES.keys()


# The straight line and the half cosine, for x from 0 to 1/2.


def at_x(x: Bounded) -> SegmentPosition:
    return SegmentPosition(None, None, x)


def phases(count: int) -> Iterator[Bounded]:
    """Yield x as the arithmetic has it, box by box."""
    for box in Interval(0, Fraction(1, 2)).boxes(count):
        yield near(box.scaled(ONE), OF_X, at_least=0)


def test_linear_is_the_phase():
    for x in phases(1):
        assert Linear.interpolant(BOUNDED, None, at_x(x), ()) is x
        show("linear", x.error)


@cache
def sine_coefficient(k: int) -> Interval:
    """Return half the k-th coefficient of sin(πx/2), without its sign: (π/2)²ᵏ⁺¹/(2k + 1)!/2."""
    term = PI.scaled(Fraction(ONE, 4))
    half_pi = PI.scaled(Fraction(1, 2))
    for factor in range(2, 2 * k + 2):
        term = term * half_pi.scaled(Fraction(1, factor))
    return term


def sine_error(x: Interval) -> Interval:
    """Return what half the sine's polynomial is off, with its rounded coefficients.

    The series alternates: after an even number of terms it is too small, after nine too large, by less than the next
    term.
    """
    total = NOTHING
    for k, coefficient in enumerate(cosine._SINE):
        rounding = point(coefficient) - sine_coefficient(k)
        assert rounding.magnitude <= Fraction(501, 1000), f"coefficient {k} is not the nearest"
        total += rounding.scaled((-1) ** k) * x ** (2 * k + 1)
    omitted = sine_coefficient(9) * x**19
    return total + Interval(0, omitted.high)


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
    """Return all L/j for which j·4ᵏ lies in [L/4, L). The smallest is above 4ᵏ by 1/j, so by more than 2⁻³¹."""
    return Interval(4**k + Fraction(1, 2**31), 4 ** (k + 1))


@pytest.mark.parametrize("k", range(16))
def test_root_scales_steps_to_the_last_quarter(k):
    """`_scale_by_fours` compares 2ⁿ·j with L, so only L/j counts: here j is 1.

    A comparison with a larger L never turns from true to false. So what both ends of an interval have in common, all
    lengths between them have too. Since L < 2³¹, k is at most 15.
    """
    ends = scale_range(k)
    for length in (ends.low, ends.high):
        assert root._scale_by_fours(PYTHON, 1, length) == (k, 4**k)


ROOTS = Interval(Fraction(1, 2), 1 - Fraction(1, 2**32))


class RestartedSteps:
    """Steps that start from h = (1 + e)/(2t), with √y = t, of which only the range of e is known.

    The formula of Newton's step is then (1 - 3/2·e² - 1/2·e³)/(2t), as a polynomial, and e almost vanishes from step to
    step. Heron's step names the error of every product, since they cancel.
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


OF_SCALED_STEPS = Interval(-2, 0)
"""The error of `ratio` for up to 2³¹ steps."""


@pytest.mark.parametrize("box", Interval(Fraction(1, 2), 1).boxes(4))
def test_root(box, monkeypatch):
    """S = √y/2ᵏ with y = t² in [1/4, 1). Since L < 2³¹, y is at most 1 - 2⁻³¹, and t at most 1 - 2⁻³²."""
    restart_steps(monkeypatch)
    errors: list[Interval] = []
    for narrow_box in box.intersection(ROOTS).boxes(8):
        t = Variable("t", narrow_box)
        y = near(power_of(t, 2).scaled(ONE), OF_SCALED_STEPS)
        RestartedSteps.t = t
        value = root._root(BOUNDED, y)
        assert value.computed.high <= ONE
        of_formula = value.exact - power_of(t, 1).scaled(ONE)
        error = of_formula.range + value.error
        errors.append(error)
        errors.append(error.halved(1) + ROUNDED_DOWN)  # k = 1; for a larger k it is smaller
    show("1-sqrt", union(errors))


# The exponential, and the powers 2^(-E) that the other shapes are made of.

PHASE_OF_EXPONENTIAL = Interval(Fraction(-2001, 1000), Fraction(1, 1000))
"""The error of E = steps·r. The rate r·2⁹³ is rounded down, and so is the product, for up to 2³¹ steps."""


def test_exponential():
    """For E from 64 on, 2^(-E) and what is computed, which is 0, are both below a unit."""
    errors = [each_power.error_for(PHASE_OF_EXPONENTIAL) for each_power in powers()]
    show("exponential", union(errors))


def test_powers_of_two_are_at_most_1():
    for each_power in powers():
        assert each_power.integers.within(Interval(0, ONE))


def test_half_slope_is_below_1():
    """So it is an operand that `multiply` accepts."""
    for slope in slopes():
        assert slope.integers.within(HALF_SLOPE)


# The powers x^P and (1 - x)^P, both w^P, with w = steps/L = y/2ᵏ from 1/L to 1 - 1/L: E = P·k + P·(1 - y)·B(y).

BELOW_1, FROM_1 = (
    merged(slope for slope in slopes() if slope.y.high <= 1),
    merged(slope for slope in slopes() if slope.y.low >= 1),
)
OF_EXPONENT_OF_POWER = Interval(-4, 0)
"""`test_exponent_of_power_is_less_than_four_units_low`"""


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
    """As for the root, only L/j counts: j·2ᵏ is then from 5/7·L to 10/7·L. Since L < 2³¹, k is at most 31.

    7·2ⁿ·j is below 2¹⁶·10·L when it is compared with 10·L, and fits into int64.
    """
    for length in least_and_greatest_ratio(k):
        assert power._scale_near_length(PYTHON, 1, length) == (k, 2**k)


@dataclass(frozen=True)
class Exponent:
    """E = P·(k + log₂ y) or P·(k - log₂ y), where y lies in a box and E in another one."""

    total: Interval
    """E"""
    power: Interval
    """P"""
    k: Interval
    octaves: Interval
    """log₂ y or -log₂ y, so that E = P·(k + octaves)."""
    slope: Slope

    def error(self, of_product: Interval) -> Interval:
        """Return the error of E = P·k + B·p, where p = P·(y - 1) or P·(1 - y) is off by `of_product`.

        P is rounded to the nearest integer. B is off by a relative error, and B·p = P·octaves by the same.
        """
        product = self.total
        if self.k.high > 0:
            product = self.power * self.octaves
        of_slope = (self.slope.relative_error * product).scaled(ONE)
        of_factor = self.slope.slope * of_product
        return self.k * HALF_A_UNIT + of_factor + of_slope + OF_EXPONENT_OF_POWER + MARGIN


def exponents_in(total: Interval, powers: Interval, most: int, sign: int) -> Iterator[Exponent]:
    """Yield boxes that cover every E in an interval: all P in a range, all k up to `most`, all y."""
    ks = [point(1), point(2), Interval(3, most)]
    cases = [(slope, k) for slope in (BELOW_1, FROM_1) for k in ks]
    for slope in slopes():
        if slope.logarithm.scaled(sign).is_not_negative:
            cases.append((slope, point(0)))
    for slope, k in cases:
        octaves = slope.logarithm.scaled(sign)
        power = powers_between(total, k + octaves, powers)
        if power is None:
            continue
        if k.high == most:
            # E = P·(k + octaves), and octaves is above -1.
            k = Interval(k.low, min(k.high, max(k.low, total.high / power.low + 1)))
        yield Exponent(total, power, k, octaves, slope)


def powers_between(total: Interval, doublings: Interval, powers: Interval) -> Interval | None:
    """Return the P in a range for which P·doublings can be in an interval; None if there is none."""
    lowest = powers.low
    highest = powers.high
    if doublings.high > 0:
        lowest = max(lowest, total.low / doublings.high)
    if doublings.low > 0:
        highest = min(highest, total.high / doublings.low)
    if lowest > highest:
        return None
    return Interval(lowest, highest)


def around(box: Interval) -> Interval:
    """Return a little more than a box of computed E: the exact E is in it, whatever its error."""
    return box + MARGIN


ABOVE_START = Interval(Fraction(-1301, 1000), Fraction(1, 1000))
PAST_LENGTH = Interval(-1, Fraction(431, 1000))
"""The error of P·(1 - y) = (L - j·2ᵏ)·r, for up to 2/7 of 2³¹ steps, and for down to -3/7 of them.

The rate r·2⁹³ = P/L·2⁹³ is rounded down, and so is the product.
"""


def error_of_power_exponent(exponent: Exponent) -> Interval:
    if exponent.slope.y.high <= 1:
        return exponent.error(ABOVE_START)
    return exponent.error(PAST_LENGTH)


@pytest.mark.parametrize("name", ["1-x^P", "(1-x)^P"])
def test_power(name):
    """For every P from 0.05 to 20. For E from 64 on, w^P and what is computed, which is 0, are below a unit.

    E is never negative: for k = 0 the product is not, and else P·k is larger than what a y above 1 takes away.
    """
    errors: list[Interval] = []
    for each_power in powers():
        total = around(each_power.exponent)
        for exponent in exponents_in(total, Interval(Fraction(1, 20), 20), 31, -1):
            error = error_of_power_exponent(exponent)
            errors.append(each_power.error_for(error))
    show(name, union(errors))


# The inverse power t^(-P), with t = 1 + j·r = 2ᵏ·y: E = P·k + P·(y - 1)·B(y).

OF_NORMALIZED = Interval(-2, 0)
"""The error of y - 1. The rate and the product are rounded down, as for the exponential, and y - 1 is."""

CENTERED = point(inverse_power._CENTERED)


def error_of_inverse_power_exponent(exponent: Exponent) -> Interval:
    y_minus_1 = exponent.slope.y - point(1)
    of_product = exponent.power * OF_NORMALIZED + y_minus_1 * HALF_A_UNIT + OF_A_PRODUCT
    return exponent.error(of_product + CENTERED)


def test_inverse_power():
    """For every P from 0.25 to 4, and every t from 1 to 2⁶²."""
    errors: list[Interval] = []
    for each_power in powers():
        total = around(each_power.exponent)
        for exponent in exponents_in(total, Interval(Fraction(1, 4), 4), 62, 1):
            error = error_of_inverse_power_exponent(exponent)
            errors.append(each_power.error_for(error))
    show("t^-P", union(errors))
