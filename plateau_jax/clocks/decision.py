"""The decision of hold rules: one function of comparisons and `where` for every framework.

The state of a rule is a NamedTuple of int32 and float32 scalars. A framework starts with

    rules = check_clock(clock, [curve]).rules
    states = tuple(rule._initial_state() for rule in rules)

and calls after every applied update

    states, is_held = decide(xp, rules, states, starts_plateau, metric)

The run then moves to the next step of the curve unless `is_held`. After a skipped update, do not
call `decide`, or discard its result. States keep their structure and dtypes.
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from plateau_jax.clocks.hold_rule import HoldRule


def _choose(condition: bool, if_true: Any, if_false: Any) -> Any:
    return if_true if condition else if_false


HOST = SimpleNamespace(where=_choose)
"""The namespace for NumPy scalars and Python numbers; several times faster than `numpy` on them."""


def decide(
    xp: Any, rules: Sequence[HoldRule], states: Sequence[Any], starts_plateau: Any, metric: Any
) -> tuple[tuple[Any, ...], Any]:
    """Return the rules' states after an update, and True if any rule holds the curve at its step.

    Every rule sees every update and counts independently of the others.

    Args:
        xp: `jax.numpy` or `torch`, for arrays that have no dimensions or all the same shape; `HOST`
            or `numpy`, under `numpy.errstate(all="ignore")`.
        rules: At least one.
        states: One state per rule.
        starts_plateau: bool: True if the step of this update is one of `curve.flat_starts`.
        metric: float32, already rounded; `checks.metric` rounds numbers that are not framework
            arrays.

    Returns:
        (states, is_held), where `is_held` is a bool.
    """
    is_finite = abs(metric) < math.inf
    # Zero adds nothing to a sum. The metric may itself be a product, so this `where` is needed even
    # for finite metrics: it keeps XLA from contracting that product with the sum in
    # `add_to_reading`.
    metric = xp.where(is_finite, metric, 0.0)
    updated: list[Any] = []
    holds: list[Any] = []
    for rule, state in zip(rules, states, strict=True):
        state, is_holding = rule._update(xp, state, starts_plateau, metric, is_finite)
        updated.append(state)
        holds.append(is_holding)
    is_held = holds[0]
    for is_holding in holds[1:]:
        is_held = is_held | is_holding
    stays_held = starts_plateau & is_held
    finished = [
        rule._after_step(xp, state, stays_held) for rule, state in zip(rules, updated, strict=True)
    ]
    return tuple(finished), is_held
