"""How a shape joins its parts: functions with their own proofs are replaced by unknown integers.

A replaced function returns an unknown integer, and the test checks its arguments.
"""

from unittest.mock import Mock

import pytest
from proofs.arithmetic.integers import INTEGERS, integer
from proofs.arithmetic.intervals import Interval, Polynomial
from proofs.arithmetic.limbs import joined_with_fraction
from proofs.arithmetic.positions import position
from proofs.arithmetic.proven import MAX_LENGTH

from plateau_jax.numerics.arithmetic import ONE

ELAPSED = integer("elapsed", Interval(1, MAX_LENGTH))
REMAINING = integer("remaining", Interval(1, MAX_LENGTH))
INVERSE = object()
INVERSE_REST = object()
POSITION = position(
    elapsed=ELAPSED, remaining=REMAINING, inverse=INVERSE, inverse_rest=INVERSE_REST
)
FALLING = POSITION._replace(start=ONE, end=0)
RISING = POSITION._replace(start=0, end=ONE)
UP_TO_ONE = Interval(0, ONE)

# The levels are plain numbers here, so that it is known which one is higher.
from_higher_level = pytest.mark.parametrize(
    ("at", "steps"),
    [(FALLING, ELAPSED), (RISING, REMAINING)],
    ids=["falling", "rising"],
)
"""A position, and its steps from the end with the higher level."""


def replace_function(
    name: str, within: Interval, module: object, monkeypatch: pytest.MonkeyPatch
) -> Mock:
    """Replace a function by one that returns an unknown integer."""
    function = Mock(return_value=integer(name, within))
    monkeypatch.setattr(module, name, function)
    return function


def exponent_given_to(power_of_two: Mock) -> Polynomial:
    """Return the only E, in units of 2⁻⁶², of which 2^(-E) was computed."""
    power_of_two.assert_called_once()
    xp, whole, fraction = power_of_two.call_args.args
    assert xp is INTEGERS
    return joined_with_fraction(whole, fraction)
