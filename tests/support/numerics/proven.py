"""The bounds that the proofs show, in units of 2⁻⁶², and the ranges that they are about."""

from fractions import Fraction

from support.numerics.intervals import Interval

from plateau_jax.numerics.arithmetic import ONE

MAX_LENGTH = 2**31 - 1
"""The longest segment."""

UP_TO_ONE = Interval(-ONE, ONE + 2**31 - 1), Interval(0, ONE + 2**31 - 1)
AROUND_ONE = Interval(0, 5 * ONE // 4), Interval(0, 3 * ONE // 4)
OPERANDS = UP_TO_ONE, AROUND_ONE
"""The ranges of both operands for which `multiply` is documented."""

HALF_SLOPE = Interval(0, ONE)
"""The range of B(y)/2 for y in [5/7, 10/7]."""
