"""Values never go the wrong way from one step to the next: proved for every length.

- The product with the distance between the levels, the clamp at the lower level and the conversion
  to float32 never decrease (`test_product_never_decreases`; rounding to nearest never does). So it
  is enough that the interpolant S, or the power of two, is monotonic.
- From one step to the next it changes by at least some amount. If that exceeds the width of its
  error, it is monotonic.
- At the ends, a value lies between the two levels in 62 bits, because S is at most 1 (`test_root`,
  `test_powers_of_two_are_at_most_1`, `test_parabola_is_at_most_1`). The levels are rounded towards
  each other, so no value passes the exact level of an end, whose nearest float32 is in the table.
"""

from collections.abc import Callable
from fractions import Fraction
from math import ceil

import pytest
from proofs.arithmetic import bounded
from proofs.arithmetic.bounded import BOUNDED, Bounded, near
from proofs.arithmetic.errors_of_exponentials import LN_2, powers
from proofs.arithmetic.errors_of_powers import (
    Exponent,
    error_of_inverse_power_exponent,
    error_of_power_exponent,
    exponents_in,
)
from proofs.arithmetic.errors_of_sine import PI, cosine_at, phases
from proofs.arithmetic.integers import integer
from proofs.arithmetic.intervals import (
    NOTHING,
    Interval,
    assert_covered,
    constant,
    octaves,
    union,
    variable,
)
from proofs.arithmetic.proven import (
    ERROR_OF_PARABOLA,
    ERRORS,
    LEAST_GROWTH,
    MAX_LENGTH,
    MAX_T,
    MOST_K_OF_T,
    MOST_K_OF_X,
    POWERS_OF_T,
    POWERS_OF_X,
)

from plateau_jax.numerics import exponents
from plateau_jax.numerics.arithmetic import FIXED_BITS, LIMB, ONE, multiply

LEAST_STEP = Fraction(ONE, MAX_LENGTH)
"""1/L in units of 2⁻⁶², for the longest segment: 2³¹ and a little more."""


def width(error: Interval) -> Fraction:
    return error.high - error.low


def test_linear() -> None:
    """x = j/L grows by 1/L."""
    assert width(ERRORS["linear"]) < LEAST_STEP


def test_root() -> None:
    """√(j/L) grows by 1/(√(j + 1) + √j)/√L, which is more than 1/(2·L) for j + 1 <= L."""
    assert width(ERRORS["1-sqrt"]) < LEAST_STEP / 2


def error_of_sine(x: Bounded) -> Interval:
    """Run the cosine, and return the error of the sine, which its last product squares."""
    operands: list[tuple[Bounded, Bounded]] = []

    def multiply(a: Bounded, b: Bounded) -> Bounded:
        operands.append((a, b))
        return BOUNDED.multiply(a, b)

    square = cosine_at(x, BOUNDED._replace(multiply=multiply))
    sine, again = operands[-1]
    assert sine is again
    assert BOUNDED.multiply(sine, sine).error == square.error
    return sine.error


def test_cosine_up_to_the_middle() -> None:
    """S is the square of a sine, and near 0 S grows by less than its error. The sine does not.

    The derivative of sin(πx/2) is π/2·cos(πx/2), at least π/2·√(1/2) > π/2·0.7071 up to 1/2. So the
    computed sine grows from step to step, and `multiply` never decreases with either operand.
    """
    errors = union(error_of_sine(x) for x in phases(256))
    least_growth = PI.scaled(Fraction(7071, 20_000)).low * LEAST_STEP
    assert width(errors) < least_growth


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_middle_of_a_segment(name: str) -> None:
    """From step j, counted from the start, to a later step j', counted from the end.

    The value at j is a - D·S(x), the one at j' is b + D·S(x'), with D = a - b and x + x' <= 1 -
    1/L. They are in order if S(x) + S(x') <= 1 in 62 bits. Exactly, the sum is at most 1 - (S(x +
    1/L) - S(x)) for the greatest x below 1/2, at which S grows by 1/L at least: S is convex up to
    1/2, S(0) = 0, S(1/2) = 1/2, and S(1 - x) = 1 - S(x).
    """
    assert 2 * ERRORS[name].high < LEAST_STEP


# The powers: E falls from step to step, and 2^(-E) grows with it.


def least_change_of_exponent() -> Fraction:
    """Return the units by which E must change so that 2^(-E) never goes the wrong way.

    Before the shift by the whole part, 2^(-f) lies in [1/2, 1] and changes by at least ln 2/2 times
    as much as E. Its error has this width. With a larger whole part the error is shifted too, and
    becomes smaller.
    """
    first = [power.error for power in powers() if power.exponent.high <= 1]
    return width(union(first)) / (LN_2.low / 2)


LEAST_CHANGE = 24


def test_least_change_of_exponent() -> None:
    change = least_change_of_exponent()
    print(f"2^(-E) is monotone if E changes by {float(change):.1f} units")
    assert change < LEAST_CHANGE


def error_of_exponents(
    exponents: list[Exponent], error_of: Callable[[Exponent], Interval]
) -> Interval:
    return union([error_of(exponent) for exponent in exponents])


def test_powers() -> None:
    """E = P·log₂(L/j) falls by P·log₂((j + 1)/j) > P/(L·ln 2). From E = 64 on, all values are 0."""
    total = Interval(0, FIXED_BITS + 2)
    exponents = list(exponents_in(total, POWERS_OF_X, MOST_K_OF_X, -1))
    error = error_of_exponents(exponents, error_of_power_exponent)
    least_change = POWERS_OF_X.low * LEAST_STEP / LN_2.high
    assert least_change - width(error) > least_change_of_exponent()


OCTAVES_OF_P = tuple(octaves(POWERS_OF_T))
GROWTHS = Interval(LEAST_GROWTH, MAX_T)
OCTAVES_OF_GROWTH = tuple(octaves(GROWTHS))


def test_octaves_contain_every_power_and_growth() -> None:
    assert_covered(POWERS_OF_T, OCTAVES_OF_P)
    assert_covered(GROWTHS, OCTAVES_OF_GROWTH)


@pytest.mark.parametrize("powers_of_t", OCTAVES_OF_P, ids=repr)
def test_inverse_power(powers_of_t: Interval) -> None:
    """E = P·log₂ t with t = 1 + g·j/L, for P and the growth g between two powers of two.

    From one step to the next E grows by more than P/ln 2·g/L/(1 + g). It is at most P·log₂(1 + g).
    """
    for growth in OCTAVES_OF_GROWTH:
        # log₂(1 + g) is below g/ln 2, and at most n if 1 + g is at most 2ⁿ.
        doublings = min(growth.high / LN_2.low, ceil(growth.high).bit_length())
        total = Interval(0, powers_of_t.high * doublings)
        exponents = list(exponents_in(total, powers_of_t, MOST_K_OF_T, 1))
        error = error_of_exponents(exponents, error_of_inverse_power_exponent)
        slope = powers_of_t.low / LN_2.high
        least_change = slope * LEAST_STEP * growth.low / (1 + growth.low)
        assert least_change - width(error) > least_change_of_exponent()


def test_inverse_power_between_nearly_equal_levels() -> None:
    """The parabola x + a·g·x·(1 - x) with a = (P + 1)/2 grows by at least (1 - a·g)/L.

    That is far above its error, which `test_error_of_parabola` shows.
    """
    bend = (POWERS_OF_T.high + 1) / 2 * LEAST_GROWTH
    assert width(ERROR_OF_PARABOLA) < (1 - bend) * LEAST_STEP


# The exponential. E = floor(j·R/2³¹) is computed without a further error, and grows by at least
# floor(R/2³¹) units from step to step. If these are 24 or more, 2^(-E) never goes the wrong way.
# Otherwise R < 24·2³¹, and j < 2³¹, so E < 24·2³¹ units: its whole part is 0. As E grows,
# u = multiply(E, ln 2) never falls (`test_product_never_decreases`). The value is 1 minus the last
# product of `two_to_minus`, (1 - d)·u with d = u/2 - u²/6 + …; it remains to show that this product
# never falls from any u to u + 1.

SLOW = LEAST_CHANGE * 2**31
"""More than any E and any u of such an exponential, in units."""

MOST_E = LEAST_CHANGE // 2
"""The greatest d/2³¹, rounded up, because d is below u/2 and a little more."""


@pytest.mark.parametrize("h", range(LEAST_CHANGE))
def test_last_product_of_a_slow_exponential(h: int) -> None:
    """multiply(1 - d, u) is u - Q/2³¹, rounded down, with Q = d·h + e·l.

    Here h and l are the limbs of u, and e is d/2³¹, rounded up: 2³¹ - e is the high limb of 1 - d.
    """
    u = integer("u", Interval(h * 2**31, h * 2**31 + LIMB))
    low_limb = u.value - constant(h * 2**31)
    for e in range(MOST_E + 1):
        d = integer("d", Interval(max(0, (e - 1) * 2**31 + 1), e * 2**31))
        product = multiply(ONE - d, u)
        q = d.value.scaled(h) + low_limb.scaled(e)
        missing = u.value - q.halved(31) - product.value
        assert missing.range.within(Interval(0, 1 - Fraction(1, 2**31)))


def factor_of_last_product(u: Bounded) -> Bounded:
    """Run `two_to_minus`, and return the factor of u in its last product, 1 - d."""
    factors: list[Bounded] = []
    exponent = bounded.integer(0, SLOW)

    def multiply(a: Bounded, b: Bounded) -> Bounded:
        if a is exponent:
            assert b == exponents._LN_2
            return u
        assert b is u
        factors.append(a)
        return BOUNDED.multiply(a, b)

    exponents.two_to_minus(BOUNDED._replace(multiply=multiply), 0, exponent)
    assert len(factors) == len(exponents._EXPONENTIAL) - 1
    return factors[-1]


def any_u(low: int, high: int) -> Bounded:
    """Return an unknown u between `low` and `high` units, as a variable."""
    u = variable("u", Interval(Fraction(low, ONE), Fraction(high, ONE)))
    return near(u.scaled(ONE), NOTHING)


def d_minus_half_u(u: Bounded) -> Interval:
    """Return the range of d - u/2, in units."""
    factor = factor_of_last_product(u)
    distance = constant(ONE) - factor.exact - u.exact.halved(1)
    return distance.range - factor.error


def test_slow_exponential() -> None:
    """The last product, u - Q/2³¹ rounded down, never falls: Q grows by less than 2³¹ at u + 1.

    Q = d·h + e·l, where h < 24 and l are the limbs of u, and e <= 12 is d/2³¹, rounded up. From u
    to u + 1, d changes by an integer t: by nearly 1/2 without its error, whose width is below 2.1.
    So t lies in -1 … 2, and e changes by at most 1. In each case h, l, d and e are those of u:

    - h and e stay the same: Q grows by t·h + e.
    - h grows by 1 and l falls from 2³¹ - 1 to 0, whatever e becomes: Q grows by t·(h + 1) + d -
      e·(2³¹ - 1), which is at most t·(h + 1) + e because d <= e·2³¹.
    - h stays the same and e falls by 1: then t is -1, and Q grows by e - 1 - l - h < e.
    - h stays the same and e grows by 1: Q grows by t·h + e + l + 1.

    All of this is below 100, but for the l of the last case. That l is at most 198. For d <= e·2³¹
    < d + t, so d is e·2³¹ or e·2³¹ - 1. Since d - u/2 lies in -99 … 1/1000, u lies in 2·d … 2·d +
    198. If e is 0, so is d, and u itself is at most 198. Otherwise d - u/2 is below -1/2 for all
    these u: so u >= 2·d + 2 >= 2·e·2³¹, while u <= 2·e·2³¹ + 198.
    """
    assert (LEAST_CHANGE, MOST_E) == (24, 12)
    u = any_u(0, SLOW)
    assert width(factor_of_last_product(u).error) < Fraction(21, 10)
    assert d_minus_half_u(u).within(Interval(-99, Fraction(1, 1000)))
    for e in range(1, MOST_E + 1):
        near_border = any_u(2 * e * 2**31 - 4, 2 * e * 2**31 + 198)
        assert d_minus_half_u(near_border).high < Fraction(-1, 2)
