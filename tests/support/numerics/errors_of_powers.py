"""The errors of the exponents E = P·(k + log₂ y) and E = P·(k - log₂ y), box by box."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from support.numerics.bounded import ERROR_OF_PRODUCT
from support.numerics.errors_of_exponentials import Slope, slopes, slopes_below_1, slopes_from_1
from support.numerics.intervals import Interval, point

from plateau_jax.numerics.arithmetic import ONE
from plateau_jax.shapes import inverse_power

MARGIN = Interval(Fraction(-1, 2**40), Fraction(1, 2**40))
"""More than any error, and more than any product of errors in units of 2⁻⁶²."""

HALF_A_UNIT = Interval(Fraction(-1, 2), Fraction(1, 2))
ERROR_OF_EXPONENT = Interval(-4, 0)
"""`test_exponent_of_power_is_less_than_four_units_low`"""


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

        P is rounded to the nearest integer. B is off by a relative error, and B·p = P·octaves by
        the same.
        """
        product = self.total
        if self.k.high > 0:
            product = self.power * self.octaves
        of_slope = (self.slope.relative_error * product).scaled(ONE)
        of_factor = self.slope.slope * of_product
        return self.k * HALF_A_UNIT + of_factor + of_slope + ERROR_OF_EXPONENT + MARGIN


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


ABOVE_START = Interval(Fraction(-1301, 1000), Fraction(1, 1000))
PAST_LENGTH = Interval(-1, Fraction(431, 1000))
"""The error of P·(1 - y) = (L - j·2ᵏ)·r, for up to 2/7 of 2³¹ steps, and for down to -3/7 of them.

The rate r·2⁹³ = P/L·2⁹³ is rounded down, and so is the product.
"""


def error_of_power_exponent(exponent: Exponent) -> Interval:
    if exponent.slope.y.high <= 1:
        return exponent.error(ABOVE_START)
    return exponent.error(PAST_LENGTH)


ERROR_OF_NORMALIZED = Interval(-2, 0)
"""The error of y - 1, for which the rate, the product and the sum are rounded down."""

CENTERED = point(inverse_power._CENTERING)


def error_of_inverse_power_exponent(exponent: Exponent) -> Interval:
    y_minus_1 = exponent.slope.y - point(1)
    of_product = exponent.power * ERROR_OF_NORMALIZED + y_minus_1 * HALF_A_UNIT + ERROR_OF_PRODUCT
    return exponent.error(of_product + CENTERED)
