"""Whether the clock is held: one body of comparisons and `where` for every framework.

What a rule remembers is a tuple of scalars, int32 and float32. A framework's side begins with

    rules = check_rules(hold, curve)
    states = tuple(map(initial_state, rules))

and calls, after every update that took place,

    states, held = decide(xp, rules, states, flat, metric)

The clock then goes one step on, unless `held`. For a skipped update it does not call `decide`, or drops the
result: nothing else has changed. `states` keep their structure and dtypes. `type(state)` and `state._fields`
name their numbers, the integers first.

No branch of Python depends on a value, and nothing is divided. Between a product and a sum or difference that
it goes into there is a `where`, and the other operand is not a constant. Else XLA contracts the two, even
across an optimization barrier, and its decision would differ from that of the other frameworks.
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from plateau_jax.holds.rules import HoldBelow, HoldUntilFlat, Rule


def _where(condition: Any, first: Any, second: Any) -> Any:
    return first if condition else second


HOST = SimpleNamespace(where=_where, maximum=max)
"""The namespace for single numbers of NumPy and Python: several times faster there than `numpy`."""


class FlatState(NamedTuple):
    """What a `HoldUntilFlat` remembers; when it holds nothing, its state at the start."""

    updates: Any
    """int32: updates at this clock so far; the rule's `limit` once it has released the part."""
    stale: Any
    """int32: readings in a row without improvement; -1 before the first reading."""
    filled: Any
    """int32: metrics in the mean that is under way."""
    total: Any
    """float32: their sum; without meaning where there are none."""
    best: Any
    """float32: the last reading that improved; without meaning where there was none."""


class BelowState(NamedTuple):
    """What a `HoldBelow` remembers."""

    left: Any
    """int32: advances of the clock still to be left out."""
    promised: Any
    """int32: all advances to be left out up to now, which tells the values that were reached."""
    filled: Any
    """int32: metrics in the mean that is under way."""
    total: Any
    """float32: their sum; without meaning where there are none."""


def initial_state(rule: Rule) -> FlatState | BelowState:
    """The rule's state before any update, of NumPy's scalars."""
    zero, nothing = np.int32(0), np.float32(0)
    if isinstance(rule, HoldUntilFlat):
        return FlatState(zero, np.int32(-1), zero, nothing, nothing)
    return BelowState(zero, zero, zero, nothing)


def decide(
    xp: Any, rules: Sequence[Rule], states: Sequence[Any], flat: Any, metric: Any
) -> tuple[tuple[Any, ...], Any]:
    """What each rule remembers after an update, and whether one of them holds the clock.

    Every rule sees every update and counts alone, whether others hold the clock or not.

    Args:
        xp: `jax.numpy` or `torch`, for arrays of no dimensions, or all of one shape; `HOST` or `numpy`,
            under `numpy.errstate(all="ignore")`.
        rules: At least one.
        states: One of each rule.
        flat: bool: whether the clock that gave this update's rate is one of `curve.flat_starts`.
        metric: float32, already rounded: `checks.metric` rounds what is not an array of a framework.

    Returns:
        (states, held), `held` a bool.

    >>> from plateau_jax import HoldBelow
    >>> rule = HoldBelow(0.5, 2)
    >>> states, clock = (initial_state(rule),), 0
    >>> for metric in (0.9, 0.4, 0.3, 0.2):
    ...     states, held = decide(HOST, (rule,), states, False, np.float32(metric))
    ...     clock += not held
    >>> clock
    2
    """
    finite = abs(metric) < math.inf
    # Zero in place of what is not finite changes no sum. And this `where` keeps a sum from being contracted
    # with a product that the metric may be.
    metric = xp.where(finite, metric, 0.0)
    found = [
        _until_flat(xp, rule, state, flat, metric, finite)
        if isinstance(rule, HoldUntilFlat)
        else _below(xp, rule, state, metric, finite)
        for rule, state in zip(rules, states, strict=True)
    ]
    held = found[0][1]
    for _, holds in found[1:]:
        held = held | holds
    stays = flat & held
    return tuple(
        _kept(xp, state, stays) if isinstance(state, FlatState) else state for state, _ in found
    ), held


def _until_flat(
    xp: Any, rule: HoldUntilFlat, state: FlatState, flat: Any, metric: Any, finite: Any
) -> tuple[FlatState, Any]:
    filled, total, reading, whole = _mean(xp, rule.every, state, metric, finite)
    if rule.threshold_mode == "rel":
        bound = state.best * float(np.float32(1 - rule.threshold))
    else:
        # Not a constant: XLA would subtract it before the `where` that stands behind the product in `best`.
        bound = state.best - xp.where(finite, float(np.float32(rule.threshold)), metric)
    better = whole & ((state.stale < 0) | (reading < bound))
    stale = xp.where(better, 0, xp.where(whole, state.stale + 1, state.stale))
    running = (state.updates < rule.limit) & (stale < rule.patience)
    updates = xp.where(running, state.updates + 1, rule.limit)
    best = xp.where(better, reading, state.best)
    return FlatState(updates, stale, filled, total, best), flat & (updates < rule.limit)


def _kept(xp: Any, state: FlatState, stays: Any) -> FlatState:
    """The state, if the clock stays where a part begins; else the state at the start."""
    return state._replace(
        updates=xp.where(stays, state.updates, 0),
        stale=xp.where(stays, state.stale, -1),
        filled=xp.where(stays, state.filled, 0),
    )


def _below(xp: Any, rule: HoldBelow, state: BelowState, metric: Any, finite: Any) -> tuple[BelowState, Any]:
    filled, total, reading, whole = _mean(xp, rule.every, state, metric, finite)
    promised, steps_so_far = state.promised, 0
    for value, steps in rule.pairs:
        steps_so_far += steps
        promised = xp.where(reading <= float(np.float32(value)), steps_so_far, promised)
    promised = xp.where(whole, xp.maximum(promised, state.promised), state.promised)
    left = state.left + (promised - state.promised)
    holds = left > 0
    return BelowState(xp.where(holds, left - 1, left), promised, filled, total), holds


def _mean(xp: Any, every: int, state: FlatState | BelowState, metric: Any, finite: Any) -> tuple[Any, ...]:
    """(filled, total, reading, whether the reading is there) after one more metric."""
    if every == 1:
        return state.filled, state.total, metric, finite
    total = xp.where(state.filled == 0, metric, state.total + metric)
    whole = finite & (state.filled == every - 1)
    filled = xp.where(whole, 0, xp.where(finite, state.filled + 1, state.filled))
    return filled, total, total * float(np.float32(1 / every)), whole
