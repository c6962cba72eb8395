"""The ranges that the proofs are about, and the bounds that they show, in units of 2⁻⁶².

Both come from the product where it has them, so that a proof fails, or covers more, if the product
accepts more.
"""

from fractions import Fraction
from math import ceil

from proofs.arithmetic.intervals import HALF_A_UNIT, ROUNDED_DOWN, Interval

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.curves import scaled_curve
from plateau_jax.numerics import exact
from plateau_jax.numerics.arithmetic import FIXED_BITS, INVERSE_BITS, LIMB_BITS, ONE
from plateau_jax.shapes import inverse_power
from plateau_jax.shapes.inverse_power import InversePower
from plateau_jax.shapes.power import PowerFromEnd, PowerFromStart
from plateau_jax.shapes.shape import Shape

# Ranges.

MAX_LENGTH = MAX_STEP
"""The longest segment."""

LEAST_STEP = Fraction(ONE, MAX_LENGTH)
"""1/L in units of 2⁻⁶², for the longest segment: 2³¹ and a little more."""

OCTAVES_OF_LENGTH = range(MAX_LENGTH.bit_length())
"""n: all lengths from 2ⁿ to 2ⁿ⁺¹."""

NORMALIZED = Interval(Fraction(5, 7), Fraction(10, 7))
"""All y whose logarithm is computed."""


Y_MINUS_1 = Interval(-2 * ONE // 7, 3 * ONE // 7)
"""All y - 1 in units, rounded down."""


def powers_of(shape: type[Shape]) -> Interval:
    """Return the range of P."""
    assert shape.powers
    least, most = shape.powers
    return Interval(Fraction(least), Fraction(most))


POWERS_OF_X = powers_of(PowerFromStart).union(powers_of(PowerFromEnd))
POWERS_OF_T = powers_of(InversePower)

MAX_T = int(inverse_power._MAX_RATIO)
LEAST_GROWTH = inverse_power.LEAST_GROWTH

MOST_K_OF_ROOT = ((MAX_LENGTH - 1).bit_length() + 1) // 2 - 1
"""The least k for which 4ᵏ⁺¹ >= L, so that no step is scaled further."""

MOST_K_OF_X = (ceil(MAX_LENGTH * NORMALIZED.low) - 1).bit_length()
"""The least k for which 2ᵏ >= 5/7·L, so that no step is scaled further."""

MOST_K_OF_T = (MAX_T - 1).bit_length()
"""The least k for which 2ᵏ >= t."""

MOST_DOUBLINGS = scaled_curve._MAX_FACTOR.bit_length() - 1
"""The factor of a batch plan is at most 2 to this power."""

_HARDLY_ABOVE_ONE = ONE + 2**31 - 1
_UP_TO_ONE = Interval(-ONE, _HARDLY_ABOVE_ONE), Interval(0, _HARDLY_ABOVE_ONE)
_ABOVE_ONE = Interval(0, 5 * ONE // 4)
_BELOW_ONE = Interval(0, 3 * ONE // 4)
OPERANDS = _UP_TO_ONE, (_ABOVE_ONE, _BELOW_ONE), (_BELOW_ONE, _ABOVE_ONE)
"""The ranges of both operands for which `multiply` is documented."""

# Errors of the numbers in the table, and of products with steps.

_DIGITS = Fraction(100, 10**exact._RELIABLE.prec)
"""More than any error of a level, and of a rate as a fraction of `MAX_RATE`."""

_FROM_224_BITS = HALF_A_UNIT.halved(exact.BITS - FIXED_BITS)

ERROR_OF_HIGHER_LEVEL = ROUNDED_DOWN + _FROM_224_BITS + Interval(-1, 1).scaled(_DIGITS * ONE)
"""The error of the higher level of a segment: it is rounded down."""

ERROR_OF_LOWER_LEVEL = -ERROR_OF_HIGHER_LEVEL
"""That of the lower level: it is rounded up."""

ERROR_OF_INVERSE = ROUNDED_DOWN
"""The error of 2⁹³/L, and of 2⁹³·P/L, which are computed in fractions."""

MAX_RATE = MAX_T << INVERSE_BITS

ERROR_OF_RATE = ROUNDED_DOWN + Interval(-1, 1).scaled(_DIGITS * MAX_RATE)
"""The error of any other rate r·2⁹³, which is computed in decimals and rounded down."""


def error_of_steps_times(factor_error: Interval, fractions: Interval) -> Interval:
    """Return the error of steps·F/2³¹, rounded down, for a factor F in units of 2⁻⁹³.

    Args:
        factor_error: The error of F.
        fractions: The steps, divided by the length.
    """
    steps = fractions.scaled(MAX_LENGTH)
    return (factor_error * steps).halved(LIMB_BITS) + ROUNDED_DOWN


WHOLE_LENGTH = Interval(0, 1)

ERROR_OF_X = error_of_steps_times(ERROR_OF_INVERSE, Interval(0, Fraction(1, 2)))
"""The error of x = j/L, for j up to L/2."""

ERROR_OF_SCALED_STEPS = error_of_steps_times(ERROR_OF_INVERSE, WHOLE_LENGTH)
"""The error of `ratio` for all steps."""

ERROR_OF_GROWTH = error_of_steps_times(ERROR_OF_RATE, WHOLE_LENGTH)
"""The error of j·r, the exponent of an exponential and t - 1 of an inverse power."""

ERROR_OF_NORMALIZED = ERROR_OF_GROWTH.union(ERROR_OF_GROWTH.halved(1) + ROUNDED_DOWN)
"""The error of t/2ᵏ - 1: for k = 0 that of t, for k > 0 it is rounded down once more."""

ERROR_OF_Y = ERROR_OF_NORMALIZED.union(error_of_steps_times(ERROR_OF_INVERSE, NORMALIZED))
"""The error of any y: of `ratio` for up to 10/7·L steps, and of a normalized t."""

# What is proved of parts that several proofs use.

HALF_SLOPE = Interval(0, ONE)
"""The range of B(y)/2 for y in [5/7, 10/7]: `test_half_slope_is_below_1`."""

ERROR_OF_EXPONENT = Interval(-4, 0)
"""The error of `exponent_of_power`: `test_exponent_of_power_is_less_than_four_units_low`."""

ERROR_OF_PARABOLA = Interval(Fraction("-11.501"), Fraction("0.001"))
"""The error of the parabola between nearly equal levels: `test_error_of_parabola`."""

PROMISED = 16
"""2⁻⁵⁸: what a value may be off before it is rounded to float32."""
