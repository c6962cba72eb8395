"""The errors of the exponents E = P·(k + log₂ y) and E = P·(k - log₂ y), box by box."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from proofs.arithmetic.bounded import BOUNDED, ERROR_OF_PRODUCT, Bounded, integer, near
from proofs.arithmetic.errors_of_exponentials import (
    MARGIN,
    Slope,
    powers as powers_of_two,
    slopes,
    slopes_below_1,
    slopes_from_1,
)
from proofs.arithmetic.intervals import (
    HALF_A_UNIT,
    Interval,
    Variable,
    assert_covered,
    constant,
    point,
    power_of,
    union,
)
from proofs.arithmetic.proven import (
    ERROR_OF_EXPONENT,
    ERROR_OF_GROWTH,
    ERROR_OF_INVERSE,
    ERROR_OF_NORMALIZED,
    ERROR_OF_SCALED_STEPS,
    LEAST_GROWTH,
    MOST_K_OF_T,
    MOST_K_OF_X,
    POWERS_OF_T,
    POWERS_OF_X,
    error_of_steps_times,
)

from plateau_jax.numerics.arithmetic import LIMB, ONE
from plateau_jax.shapes import inverse_power

UNIT = Fraction(1, ONE)


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
        """Return the error of E = P·k + B·p, if p = P·(y - 1) or P·(1 - y) is off by `of_product`.

        P is rounded to the nearest integer. B is off by a relative error, so what is computed is
        P'·k + (B + B·e)·p', and B·p = P·octaves.
        """
        product = self.total
        if self.k.high > 0:
            product = self.power * self.octaves
        of_power = self.k * HALF_A_UNIT
        of_slope = self.slope.relative_error * product.scaled(ONE)
        computed_slope = self.slope.slope + self.slope.slope * self.slope.relative_error
        return of_power + of_slope + computed_slope * of_product + ERROR_OF_EXPONENT


def exponents_in(total: Interval, powers: Interval, most: int, sign: int) -> Iterator[Exponent]:
    """Yield boxes that cover every E in an interval: all P in a range, k up to `most`, all y."""
    cases: list[tuple[Slope, Interval]] = []
    for k in (point(1), point(2), Interval(3, most)):
        cases.append((slopes_below_1(), k))
        cases.append((slopes_from_1(), k))
    for slope in slopes():
        if slope.logarithm.scaled(sign).is_not_negative:
            cases.append((slope, point(0)))
    for slope, k in cases:
        octaves = slope.logarithm.scaled(sign)
        power = powers_between(total, k + octaves, powers)
        if power is None:
            continue
        if k.high == most:
            # E = P·(k + octaves) and octaves > -1, so k < E/P + 1.
            k = Interval(k.low, min(k.high, max(k.low, total.high / power.low + 1)))
        yield Exponent(total, power, k, octaves, slope)


def powers_between(total: Interval, doublings: Interval, powers: Interval) -> Interval | None:
    """Return the P in a range for which P·doublings can be in an interval, or None."""
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


def error_of_power_exponent(exponent: Exponent) -> Interval:
    """Return the error of E for x^P, for which P·(1 - y) is L - j·2ᵏ steps times P/L."""
    distance = point(1) - exponent.slope.y
    return exponent.error(error_of_steps_times(ERROR_OF_INVERSE, distance))


CENTERED = point(inverse_power.CENTERING)


def error_of_inverse_power_exponent(exponent: Exponent) -> Interval:
    """Return the error of E for t^(-P), for which P·(y - 1) is a product of rounded numbers."""
    y_minus_1 = exponent.slope.y - point(1)
    of_power = (y_minus_1 + ERROR_OF_NORMALIZED.scaled(UNIT)) * HALF_A_UNIT
    of_y = exponent.power * ERROR_OF_NORMALIZED
    return exponent.error(of_power + of_y + ERROR_OF_PRODUCT + CENTERED)


@dataclass(frozen=True)
class PowerFamily:
    """Powers 2^(-E) with E = P·(k + sign·log₂ y)."""

    powers: Interval
    most_k: int
    sign: int
    error_of_exponent: Callable[[Exponent], Interval]

    def exponents_near(self, box: Interval) -> Iterator[Exponent]:
        """Yield boxes that cover every exact E that is rounded to one in the box."""
        return exponents_in(around(box), self.powers, self.most_k, self.sign)

    def error(self) -> Interval:
        """Return the error of the powers, for every P.

        From E = 64 on, a power is below a unit, and 0 is computed.
        """
        errors: list[Interval] = []
        for power in powers_of_two():
            for exponent in self.exponents_near(power.exponent):
                errors.append(power.error_for(self.error_of_exponent(exponent)))
        return union(errors)

    def error_of_exponents(self, total: Interval, powers: Interval) -> Interval:
        """Return the error of every E in an interval, for some of the P."""
        exponents = exponents_in(total, powers, self.most_k, self.sign)
        return union(self.error_of_exponent(exponent) for exponent in exponents)


POWERS_OF_FRACTIONS = PowerFamily(POWERS_OF_X, MOST_K_OF_X, -1, error_of_power_exponent)
"""x^P and (1 - x)^P are both w^P, with w = steps/L = y/2ᵏ from 1/L to 1 - 1/L."""

INVERSE_POWERS = PowerFamily(POWERS_OF_T, MOST_K_OF_T, 1, error_of_inverse_power_exponent)
"""t^(-P), with t = 1 + j·r = 2ᵏ·y."""


# The parabola that replaces t^(-P) between nearly equal levels.


def any_parabola() -> Bounded:
    """Return x + (P + 1)/2·(t - 1)·(1 - x) as the arithmetic has it, for all x, t and P.

    P is half a unit off, and its factor in the parabola is at most (t - 1)/2.
    """
    x = near(Interval(0, ONE), ERROR_OF_SCALED_STEPS, at_least=0)
    growth = near(Interval(0, LEAST_GROWTH * ONE), ERROR_OF_GROWTH, at_least=0)
    limb = integer(0, LIMB)
    power = integer(0, int(POWERS_OF_T.high)), limb, limb
    parabola = inverse_power.parabola_at(BOUNDED, x, growth, power)
    of_power = HALF_A_UNIT * Interval(0, LEAST_GROWTH / 2)
    return Bounded(parabola.exact, parabola.error + of_power, parabola.computed)


@cache
def omitted_from_values_on_parabola() -> Interval:
    """Return how much the exact level is off the parabola's, in units.

    Levels h and l with h/l = (1 + g)^P are at most P·g apart.
    """
    boxes_of_p = [*POWERS_OF_T.boxes(4)]
    boxes_of_x = [*Interval(0, 1).boxes(8)]
    assert_covered(POWERS_OF_T, boxes_of_p)
    assert_covered(Interval(0, 1), boxes_of_x)
    omitted: list[Interval] = []
    for powers in boxes_of_p:
        for x in boxes_of_x:
            of_interpolant = x * omitted_from_parabola(powers, x).scaled(LEAST_GROWTH**2)
            omitted.append(of_interpolant * powers.scaled(LEAST_GROWTH * ONE))
    return union(omitted)


def omitted_from_parabola(powers: Interval, x: Interval) -> Interval:
    """Return S - x·(1 + a·g·(1 - x)) for t = 1 + g·x, with a = (P + 1)/2, as a multiple of x·g².

    The exact S is x·N/D, where

        N = 1 - a·g·x + c·g²·x² - …    D = 1 - a·g + c·g² - …    c = a·(P + 2)/3

    Both series alternate, so what follows lies between 0 and the next term, b·g³ or b·g³·x³ with
    b = c·(P + 3)/4. In N - D·(1 + a·g·(1 - x)) all terms below g² cancel.
    """
    most = powers.high
    greatest_b = (most + 1) / 2 * (most + 2) / 3 * (most + 3) / 4
    p = Variable("P", powers)
    growth = Variable("g", Interval(0, LEAST_GROWTH))
    place = Variable("x", x)
    rest_of_n = Variable("rest of N", Interval(-greatest_b, 0))
    rest_of_d = Variable("rest of D", Interval(-greatest_b, 0))
    g = power_of(growth, 1)
    gx = g * power_of(place, 1)
    a = (power_of(p, 1) + constant(1)).scaled(Fraction(1, 2))
    c = a * (power_of(p, 1) + constant(2)).scaled(Fraction(1, 3))
    g_cubed = power_of(growth, 3)
    n = constant(1) - a * gx + c * gx * gx + power_of(rest_of_n, 1) * g_cubed
    d = constant(1) - a * g + c * g * g + power_of(rest_of_d, 1) * g_cubed
    parabola = constant(1) + a * (g - gx)
    difference = (n - d * parabola) * power_of(growth, -2)
    return difference.range / d.range
