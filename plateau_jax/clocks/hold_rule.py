"""The base class of hold rules, and the mean of metrics that rules read."""

# For the same bits in NumPy, torch and compiled JAX:
# - No Python branch depends on a value, so that an update can be traced and captured.
# - Nothing is divided: 1/every is rounded to float32 once, on the host.
# - XLA contracts a·b + c into one fused operation that rounds only once, even across an
#   optimization barrier. A `where` between the product and the sum prevents that, unless c is a
#   constant: XLA moves the addition of a constant into the `where`, next to the product.

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.saved_states.storable import Storable


class HoldRule(Storable, ABC):
    """A rule that may hold the curve at its step after an update.

    The state of a rule is a NamedTuple of int32 and float32 scalars. A saved state has the names of
    the fields.

    In a training run, `decide` calls `_update` of each rule after every applied update, and then
    `_after_step`. Both are traced and captured: the comments at the top of this file apply.
    """

    every: int
    """Number of metrics in a reading."""

    # Rounded once, when the rule is built: plain numbers, because Dynamo cannot trace NumPy.
    _mean_factor: float
    """float32(1/`every`)."""
    _bound: float
    """The constant with which readings are compared, rounded to float32."""

    def _check_curve(self, curve: Curve) -> None:
        """Raise a ValueError if the rule cannot hold this curve."""

    @abstractmethod
    def _initial_state(self) -> Any:
        """Return the state before the first update, in NumPy scalars."""

    @abstractmethod
    def _update(
        self, xp: Any, state: Any, starts_plateau: Any, metric: Any, is_finite: Any
    ) -> tuple[Any, Any]:
        """Return the state after an update, and True if the rule holds the curve.

        Args:
            xp: As in `decide`.
            state: The state before the update.
            starts_plateau: bool: True if the step of this update is the first of a plateau.
            metric: float32, finite: 0 in place of a metric that is not.
            is_finite: bool: True if the metric of the update was finite.
        """

    def _after_step(self, xp: Any, state: Any, stays_held: Any) -> Any:
        """Return the state for the next update, after all rules have decided.

        `stays_held` is True if the step of this update is the first of a plateau, and a rule holds
        the curve there.
        """
        return state


def to_float32(number: float) -> float:
    """Round a number to float32."""
    return float(np.float32(number))


class Reading(NamedTuple):
    """The mean of `every` metrics, possibly unfinished."""

    filled: Any
    """int32: number of metrics in the unfinished mean."""
    total: Any
    """float32: sum of these metrics; undefined if there are none."""
    value: Any
    """float32: the mean; undefined unless it is complete."""
    is_complete: Any
    """bool: True if the metric of this update completes the mean."""


def add_to_reading(xp: Any, rule: HoldRule, state: Any, metric: Any, is_finite: Any) -> Reading:
    """Return the reading with the metric of this update, if that is finite.

    The rule's state has the fields `filled` and `total` of a `Reading`.
    """
    if rule.every == 1:
        return Reading(state.filled, state.total, metric, is_finite)
    total = xp.where(state.filled == 0, metric, state.total + metric)
    mean = total * rule._mean_factor
    is_complete = is_finite & (state.filled == rule.every - 1)
    filled = xp.where(is_finite, state.filled + 1, state.filled)
    filled = xp.where(is_complete, 0, filled)
    return Reading(filled, total, mean, is_complete)
