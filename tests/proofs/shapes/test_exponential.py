"""The exponential: the higher level times 2^(-E), with E = j·r."""

from collections.abc import Mapping
from fractions import Fraction
from math import inf
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from proofs.arithmetic import bounded
from proofs.arithmetic.bounded import BOUNDED, Bounded, near
from proofs.arithmetic.errors_of_exponentials import least_change_of_exponent, powers
from proofs.arithmetic.integers import INTEGERS, Integer, integer
from proofs.arithmetic.intervals import NOTHING, Interval, Polynomial, constant, union, variable
from proofs.arithmetic.limbs import any_rate, joined
from proofs.arithmetic.parts import (
    UP_TO_ONE,
    exponent_given_to,
    from_higher_level,
    replace_function,
)
from proofs.arithmetic.proven import ERROR_OF_GROWTH
from proofs.shapes.spec import GeometricSpec, ReplacedFactor, units

from plateau_jax.numerics import exponents
from plateau_jax.numerics.arithmetic import LIMB, ONE, Operations, multiply
from plateau_jax.shapes import exponential
from plateau_jax.shapes.exponential import Exponential
from plateau_jax.shapes.shape import SegmentPosition


class ExponentialSpec(GeometricSpec):
    name = "exponential"
    title = "exponential"
    error = units("-2.129", "6.158")
    value_error = units("-5.129", "6.158")
    samples = ("exponential",)
    file_name = "long_exponential"
    stages: ClassVar[Mapping[str, str]] = {"staged_exponential": "exponential"}

    def level(self, mp: Any, start: Any, end: Any, x: Any, power: Any) -> Any:
        return start * (end / start) ** x

    def place(self, mp: Any, start: Any, end: Any, level: Any, power: Any) -> Any:
        return mp.log(level / start) / mp.log(end / start)

    def most_octaves(self, power: Any) -> Any:
        return inf

    def prove_error(self) -> Interval:
        return union(power.error_for(ERROR_OF_GROWTH) for power in powers())

    def prove_monotone(self) -> None:
        """E = floor(j·R/2³¹) is computed without a further error.

        It grows by at least floor(R/2³¹) units from step to step. If these are 24 or more, 2^(-E)
        never goes the wrong way. Otherwise the exponential is slow.
        """
        assert least_change_of_exponent() < LEAST_CHANGE
        prove_slow_exponential_is_monotone()

    def replace_factor(self, factor: Bounded, monkeypatch: pytest.MonkeyPatch) -> ReplacedFactor:
        two_to_minus = Mock(return_value=factor)
        monkeypatch.setattr(exponential, "two_to_minus", two_to_minus)

        def check(xp: Operations, at: SegmentPosition) -> None:
            two_to_minus.assert_called_once_with(xp, 0, 0)
            two_to_minus.reset_mock()

        no_rate = 0, 0, 0, 0
        return ReplacedFactor(no_rate, check)


@from_higher_level
def test_exponential_joins_its_parts(
    at: SegmentPosition, steps: Integer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level is the higher one times 2^(-E), with E = steps·r rounded down."""
    rate = any_rate()
    power_of_two = replace_function("two_to_minus", UP_TO_ONE, exponential, monkeypatch)
    level = replace_function("level_below", UP_TO_ONE, exponential, monkeypatch)
    value = Exponential.fixed_level(INTEGERS, at, rate)
    assert value is level.return_value
    level.assert_called_once_with(INTEGERS, at, power_of_two.return_value)
    exact = (steps.value * joined(*rate)).halved(31)
    missing = exact - exponent_given_to(power_of_two)
    assert missing.range.within(Interval(0, 1))


# A slow exponential: R < 24·2³¹, and j < 2³¹, so E < 24·2³¹ units: its whole part is 0. As E grows,
# u = multiply(E, ln 2) never falls (`test_product_never_decreases`). The value is 1 minus the last
# product of `two_to_minus`, (1 - d)·u with d = u/2 - u²/6 + …; it remains to show that this product
# never falls from any u to u + 1.

LEAST_CHANGE = 24

SLOW = LEAST_CHANGE * 2**31
"""More than any E and any u of such an exponential, in units."""

MOST_E = LEAST_CHANGE // 2
"""The greatest d/2³¹, rounded up, because d is below u/2 and a little more."""


@pytest.mark.parametrize("h", range(LEAST_CHANGE))
def test_last_product_of_a_slow_exponential(h: int) -> None:
    """multiply(1 - d, u) is u - Q/2³¹, rounded down, with Q = d·h + e·l.

    Here h and l are the limbs of u, and e is d/2³¹, rounded up: 2³¹ - e is the high limb of 1 - d.
    """
    least = h * 2**31
    u = integer("u", Interval(least, least + LIMB))
    low_limb = u.value - constant(least)
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
            assert b == exponents.LN_2
            return u
        assert b is u
        factors.append(a)
        return BOUNDED.multiply(a, b)

    exponents.two_to_minus(BOUNDED._replace(multiply=multiply), 0, exponent)
    assert len(factors) == len(exponents.EXPONENTIAL) - 1
    return factors[-1]


def any_u(low: int, high: int) -> Bounded:
    """Return an unknown u between `low` and `high` units, as a variable."""
    u = variable("u", Interval(Fraction(low, ONE), Fraction(high, ONE)))
    return near(u.scaled(ONE), NOTHING)


def d_minus_half_u(u: Bounded) -> Interval:
    """Return the range of d - u/2, in units."""
    factor = factor_of_last_product(u)
    assert isinstance(factor.exact, Polynomial)
    assert isinstance(u.exact, Polynomial)
    distance = constant(ONE) - factor.exact - u.exact.halved(1)
    return distance.range - factor.error


def prove_slow_exponential_is_monotone() -> None:
    """The last product, u - Q/2³¹ rounded down, never falls: Q grows by less than 2³¹ at u + 1.

    `test_last_product_of_a_slow_exponential` shows Q = d·h + e·l, where h < 24 and l are the limbs
    of u, and e <= 12 is d/2³¹, rounded up. From u to u + 1, d changes by an integer t: by nearly
    1/2 without its error, whose width is below 2.1. So t lies in -1 … 2, and e changes by at most
    1. In each case h, l, d and e are those of u:

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
    assert LEAST_CHANGE == 24
    assert MOST_E == 12
    u = any_u(0, SLOW)
    assert factor_of_last_product(u).error.width < Fraction(21, 10)
    assert d_minus_half_u(u).within(Interval(-99, Fraction(1, 1000)))
    for e in range(1, MOST_E + 1):
        border = 2 * e * 2**31
        near_border = any_u(border - 4, border + 198)
        assert d_minus_half_u(near_border).high < Fraction(-1, 2)
