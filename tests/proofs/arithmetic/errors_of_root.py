"""The square root: √y with y = t², as the formula of its steps with the error of every product."""

from fractions import Fraction
from unittest.mock import Mock, patch

from proofs.arithmetic.bounded import BOUNDED, Bounded, near
from proofs.arithmetic.errors_of_exponentials import relative_error, with_relative_error
from proofs.arithmetic.intervals import NOTHING, Interval, Polynomial, Variable, power_of, variable
from proofs.arithmetic.proven import ERROR_OF_SCALED_STEPS, MAX_LENGTH

from plateau_jax.numerics.arithmetic import ONE, Operations
from plateau_jax.shapes import root

ROOTS = Interval(Fraction(1, 2), 1 - Fraction(1, 2 * MAX_LENGTH))
"""All √y: y lies in [1/4, 1), so it is at most 1 - 1/L, and its root at most 1 - 1/(2·L)."""


def named(number: Bounded) -> Bounded:
    """Return the number with its error as one more variable of its formula."""
    assert isinstance(number.exact, Polynomial)
    error = variable("error", number.error)
    return near(number.exact + error, NOTHING)


def _named_product(a: Bounded, b: Bounded) -> Bounded:
    return named(BOUNDED.multiply(a, b))


NAMING = BOUNDED._replace(multiply=_named_product)


def root_of_square(roots: Interval) -> tuple[Variable, Bounded]:
    """Return an unknown t in an interval, and what `square_root` makes of y = t², with its error.

    Each step starts from h = (1 + e)/(2t), of which only the range of e is known. The formula of
    Newton's step is then (1 - 3/2·e² - 1/2·e³)/(2t), as a polynomial, and e almost vanishes from
    step to step. Heron's step names the error of every product, since they cancel.
    """
    t = Variable("t", roots)
    y = near(power_of(t, 2).scaled(ONE), ERROR_OF_SCALED_STEPS)
    twice_t = power_of(t, 1).scaled(2)
    inverse = power_of(t, -1).scaled(Fraction(1, 2))
    newton_step = root.newton_step
    heron_step = root.heron_step

    def known_relatively(h: Bounded) -> Bounded:
        error = relative_error(h, twice_t, ONE)
        return with_relative_error(inverse, error, ONE)

    def restarted_newton_step(xp: Operations, same_y: Bounded, h: Bounded) -> Bounded:
        assert xp is BOUNDED
        assert same_y is y
        return newton_step(xp, y, known_relatively(h))

    def restarted_heron_step(xp: Operations, same_y: Bounded, h: Bounded) -> Bounded:
        assert xp is BOUNDED
        assert same_y is y
        return heron_step(NAMING, named(y), known_relatively(h))

    newton_steps = Mock(side_effect=restarted_newton_step)
    heron_steps = Mock(side_effect=restarted_heron_step)
    with (
        patch.object(root, "newton_step", newton_steps),
        patch.object(root, "heron_step", heron_steps),
    ):
        computed = root.square_root(BOUNDED, y)
    assert newton_steps.call_count == 4
    assert heron_steps.call_count == 1
    return t, computed
