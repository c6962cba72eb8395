"""The bounds that the proofs show, in units of 2⁻⁶², and the ranges that they are about."""

from fractions import Fraction

from support.numerics.intervals import Interval

from plateau_jax.numerics.arithmetic import ONE

MAX_LENGTH = 2**31 - 1
"""The longest segment."""

_UP_TO_ONE = Interval(-ONE, ONE + 2**31 - 1), Interval(0, ONE + 2**31 - 1)
_ABOVE_ONE = Interval(0, 5 * ONE // 4)
_BELOW_ONE = Interval(0, 3 * ONE // 4)
OPERANDS = _UP_TO_ONE, (_ABOVE_ONE, _BELOW_ONE), (_BELOW_ONE, _ABOVE_ONE)
"""The ranges of both operands for which `multiply` is documented."""

HALF_SLOPE = Interval(0, ONE)
"""The range of B(y)/2 for y in [5/7, 10/7]: `test_half_slope_is_below_1`."""

ERROR_OF_X = Interval(Fraction(-3, 2), 0)
"""The error of x = j/L, for j up to L/2: `test_ratio_is_rounded_down_once`."""

ERROR_OF_HIGHER_LEVEL = Interval(Fraction(-1001, 1000), Fraction(1, 1000))
"""The error of the higher level of a segment: it is rounded down, from 224 bits and 100 digits."""

ERROR_OF_LOWER_LEVEL = -ERROR_OF_HIGHER_LEVEL
"""That of the lower level: it is rounded up."""

ERRORS = {
    "linear": ERROR_OF_X,
    "cosine": Interval(-12, 5),
    "1-sqrt": Interval(Fraction(-31, 10), Fraction(21, 10)),
    "exponential": Interval(-4, Fraction(63, 10)),
    "1-x^P": Interval(-11, Fraction(142, 10)),
    "(1-x)^P": Interval(-11, Fraction(142, 10)),
    "t^-P": Interval(Fraction(-123, 10), Fraction(159, 10)),
}
"""By shape, what S in 62 bits, or 1 - S, or the level as a fraction of the higher level, is off."""

ERROR_OF_PARABOLA = Interval(Fraction(-116, 10), Fraction(1, 1000))
"""The error of the parabola that "t^-P" is between nearly equal levels."""

LARGEST = {
    "linear": Fraction(1, 2),
    "cosine": Fraction(1, 2),
    "1-sqrt": Fraction(1),
    "1-x^P": Fraction(1),
    "(1-x)^P": Fraction(1),
}
"""By shape, the largest S or 1 - S that is computed."""

PROMISED = 16
"""2⁻⁵⁸: what a value may be off before it is rounded to float32."""
