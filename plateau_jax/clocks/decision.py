"""The decision of hold rules: one function of comparisons and `where` for every framework.

The state of a rule is a NamedTuple of int32 and float32 scalars, the integers first. A framework
starts with

    rules = check_clock(clock, [curve]).rules
    states = tuple(map(initial_state, rules))

and calls after every applied update

    states, held = decide(xp, rules, states, flat, metric)

The run then moves to the next step of the curve unless `held`. After a skipped update, do not call
`decide`, or discard its result. States keep their structure and dtypes.
"""

# For the same bits in NumPy, torch and compiled JAX:
# - No Python branch depends on a value, so that `decide` can be traced and captured.
# - Nothing is divided: 1/every is rounded to float32 once, on the host.
# - XLA contracts a·b + c into one fused operation that rounds only once, even across an
#   optimization barrier. A `where` between the product and the sum prevents that, unless c is a
#   constant: XLA moves the addition of a constant into the `where`, next to the product.

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from plateau_jax.clocks.rules import HoldBelow, HoldUntilFlat, Rule
from plateau_jax.numerics.arithmetic import PYTHON

HOST = PYTHON
"""The namespace for NumPy scalars and Python numbers; several times faster than `numpy` on them."""


class FlatState(NamedTuple):
    """The state of a `HoldUntilFlat`.

    Its integers are initial unless the curve is held at the start of a flat part.
    """

    updates: Any
    """int32: updates at this step so far; `limit` once the rule has released the flat part."""
    stale: Any
    """int32: readings in a row without improvement; -1 before the first reading."""
    filled: Any
    """int32: number of metrics in the unfinished mean."""
    total: Any
    """float32: sum of these metrics; undefined if there are none."""
    best: Any
    """float32: the last reading that improved; undefined if there was none."""


class BelowState(NamedTuple):
    """The state of a `HoldBelow`."""

    left: Any
    """int32: updates for which the curve still has to be held."""
    promised: Any
    """int32: sum of `steps` over all values that were reached; it tells which ones were."""
    filled: Any
    """int32: number of metrics in the unfinished mean."""
    total: Any
    """float32: sum of these metrics; undefined if there are none."""


def initial_state(rule: Rule) -> FlatState | BelowState:
    """Return the rule's state before the first update, in NumPy scalars."""
    zero = np.int32(0)
    undefined = np.float32(0)
    if isinstance(rule, HoldUntilFlat):
        stale = np.int32(-1)
        return FlatState(updates=zero, stale=stale, filled=zero, total=undefined, best=undefined)
    return BelowState(left=zero, promised=zero, filled=zero, total=undefined)


def decide(
    xp: Any, rules: Sequence[Rule], states: Sequence[Any], flat: Any, metric: Any
) -> tuple[tuple[Any, ...], Any]:
    """Return the rules' states after an update, and True if any rule holds the curve at its step.

    Every rule sees every update and counts independently of the others.

    Args:
        xp: `jax.numpy` or `torch`, for arrays that have no dimensions or all the same shape; `HOST`
            or `numpy`, under `numpy.errstate(all="ignore")`.
        rules: At least one.
        states: One state per rule.
        flat: bool: True if the step of this update is one of `curve.flat_starts`.
        metric: float32, already rounded; `checks.metric` rounds numbers that are not framework
            arrays.

    Returns:
        (states, held), where `held` is a bool.

    >>> from plateau_jax import HoldBelow
    >>> rule = HoldBelow(0.5, 2)
    >>> states, step = (initial_state(rule),), 0
    >>> for metric in (0.9, 0.4, 0.3, 0.2):
    ...     states, held = decide(HOST, (rule,), states, False, np.float32(metric))
    ...     step += not held
    >>> step
    2
    """
    finite = abs(metric) < math.inf
    # Zero adds nothing to a sum. The metric may itself be a product, so this `where` is needed even
    # for finite metrics: it keeps XLA from contracting that product with the sum in
    # `_add_to_reading`.
    metric = xp.where(finite, metric, 0.0)
    updated: list[FlatState | BelowState] = []
    holds: list[Any] = []
    for rule, state in zip(rules, states, strict=True):
        if isinstance(rule, HoldUntilFlat):
            state, is_holding = _update_until_flat(xp, rule, state, flat, metric, finite)
        else:
            state, is_holding = _update_below(xp, rule, state, metric, finite)
        updated.append(state)
        holds.append(is_holding)
    held = holds[0]
    for is_holding in holds[1:]:
        held = held | is_holding
    # A rule that has released a flat part keeps its state while another rule holds the curve there,
    # so that it does not hold the same part again. It is reset at the next step.
    stays = flat & held
    return tuple(_reset_unless(xp, stays, state) for state in updated), held


def _update_until_flat(
    xp: Any, rule: HoldUntilFlat, state: FlatState, flat: Any, metric: Any, finite: Any
) -> tuple[FlatState, Any]:
    """Return the state after an update, and True if the rule holds the curve."""
    reading = _add_to_reading(xp, rule.every, state, metric, finite)
    if rule.threshold_mode == "rel":
        bound = state.best * float(np.float32(1 - rule.threshold))
    else:
        # `best` is a product behind a `where`, so a constant must not be subtracted from it (see
        # the top). This `where` yields the threshold whenever a reading is complete, but XLA cannot
        # know that.
        bound = state.best - xp.where(finite, float(np.float32(rule.threshold)), metric)
    is_first = state.stale < 0
    is_better = reading.is_complete & (is_first | (reading.value < bound))
    best = xp.where(is_better, reading.value, state.best)

    stale = xp.where(reading.is_complete, state.stale + 1, state.stale)
    stale = xp.where(is_better, 0, stale)
    is_running = (state.updates < rule.limit) & (stale < rule.patience)
    updates = xp.where(is_running, state.updates + 1, rule.limit)
    is_holding = flat & (updates < rule.limit)
    return FlatState(updates, stale, reading.filled, reading.total, best), is_holding


def _update_below(
    xp: Any, rule: HoldBelow, state: BelowState, metric: Any, finite: Any
) -> tuple[BelowState, Any]:
    """Return the state after an update, and True if the rule holds the curve."""
    reading = _add_to_reading(xp, rule.every, state, metric, finite)
    # Values fall, so a single running sum of steps records which of them were reached. With (0.5,
    # 3) and (0.2, 10), `promised` is 0, then 3 at a reading of 0.4, then 13 at 0.1; a first reading
    # of 0.1 promises 13 at once. It never decreases, so each value counts once.
    promised = state.promised
    steps_so_far = 0
    for value, steps in rule.pairs:
        steps_so_far += steps
        promised = xp.where(reading.value <= float(np.float32(value)), steps_so_far, promised)
    promised = xp.maximum(promised, state.promised)
    promised = xp.where(reading.is_complete, promised, state.promised)

    left = state.left + (promised - state.promised)
    is_holding = left > 0
    left = xp.where(is_holding, left - 1, left)
    return BelowState(left, promised, reading.filled, reading.total), is_holding


class _Reading(NamedTuple):
    """The mean of `every` metrics, possibly unfinished."""

    filled: Any
    total: Any
    value: Any
    is_complete: Any


def _add_to_reading(
    xp: Any, every: int, state: FlatState | BelowState, metric: Any, finite: Any
) -> _Reading:
    """Return the reading with the metric of this update, if that is finite."""
    if every == 1:
        return _Reading(state.filled, state.total, metric, finite)
    total = xp.where(state.filled == 0, metric, state.total + metric)
    mean = total * float(np.float32(1 / every))
    is_complete = finite & (state.filled == every - 1)
    filled = xp.where(finite, state.filled + 1, state.filled)
    filled = xp.where(is_complete, 0, filled)
    return _Reading(filled, total, mean, is_complete)


def _reset_unless(xp: Any, stays: Any, state: FlatState | BelowState) -> FlatState | BelowState:
    """Return the initial integers of a `FlatState`, unless the curve stays at a flat start."""
    if isinstance(state, BelowState):
        return state
    return state._replace(
        updates=xp.where(stays, state.updates, 0),
        stale=xp.where(stays, state.stale, -1),
        filled=xp.where(stays, state.filled, 0),
    )
