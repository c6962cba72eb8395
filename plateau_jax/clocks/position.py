"""Where a run is on its curve, and the function that moves it there.

    clock          a Position says where the next update is        advance
    updates        step = updates, unless the run began elsewhere   step + 1
    hold rules     step, lower than updates if a rule has held it   step + 1, or the same step
    DataClock      step · unit + rest = samples or tokens consumed  rest + count, in whole units

A position is a value. The host and JAX move it with `advance`: on the host a step is an int, in JAX
an array that may be traced. A `TrainStep` counts on the device instead, with the same `decide`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.clocks.clock import MAX_CONSUMED, CheckedClock
from plateau_jax.clocks.decision import HOST, decide
from plateau_jax.clocks.rules import AnyHoldRule
from plateau_jax.saved_states.formats import check_entries


class Position(NamedTuple):
    """All that changes while a run moves along its curve."""

    updates: Any = 0
    """The number of updates so far. With a clock, the step does not follow from it."""
    step: Any = 0
    """The step of the curve that gives the next learning rate."""
    rest: Any = 0
    """With a unit, the samples or tokens consumed since that step began; else 0."""
    rule_states: tuple[Any, ...] = ()
    """The state of each hold rule."""

    def consumed(self, clock: CheckedClock) -> int:
        """Return the samples or tokens of all updates; without a unit, the number of updates."""
        if clock.unit is None:
            return max(self.updates, 0)
        return self.step * clock.unit + self.rest


def advance(
    xp: Any,
    clock: CheckedClock,
    position: Position,
    *,
    count: Any = None,
    metric: Any = None,
    starts_plateau: Any = None,
) -> Position:
    """Return the position after one more update. All arguments are checked.

    Args:
        xp: As in `decide`; not used without rules.
        clock: The clock of the run.
        position: The position before the update.
        count: With a unit, the samples or tokens of the update.
        metric: With rules, the metric that they read, in float32.
        starts_plateau: With rules, True if the step is the first of a plateau.
    """
    updates, step, rest, rule_states = position
    if clock.unit is not None:
        total = rest + count
        return Position(updates + 1, step + total // clock.unit, total % clock.unit)
    if clock.rules:
        rule_states, is_held = decide(xp, clock.rules, rule_states, starts_plateau, metric)
        return Position(updates + 1, step + xp.where(is_held, 0, 1), 0, rule_states)
    return Position(updates + 1, step + 1)


def start_position(clock: CheckedClock, updates: int = 0, step: int = 0) -> Position:
    """Return the position of a run that begins at a step, with fresh rules."""
    return Position(updates, step, 0, tuple(rule._initial_state() for rule in clock.rules))


def position_after(clock: CheckedClock, updates: int, argument: str) -> Position:
    """Return the position of a run of which only the number of updates is known.

    The error names the `argument` with this number.
    """
    if clock.unit is None:
        return start_position(clock, updates, updates)
    if updates and clock.count is None:
        raise ValueError(
            f"{argument} with DataClock({clock.unit}): the number of updates does not say how much "
            f"they consumed. Write DataClock({clock.unit}, count=n) if each consumed n; or leave "
            "this argument out, and call load_state_dict"
        )
    step, rest = divmod(updates * (clock.count or 0), clock.unit)
    return Position(updates, step, rest)


# The host.


def advance_on_host(clock: CheckedClock, position: Position, count: Any, metric: Any) -> Position:
    """Check what a program passes for an update, and return the position after it."""
    if count is not None and clock.unit is None:
        raise TypeError(
            f"count = {checks.short_repr(count)} needs a DataClock: write step(), or build the "
            "scheduler with clock=DataClock(unit)"
        )
    if metric is not None and not clock.rules:
        raise TypeError(
            f"step(metric={checks.short_repr(metric)}) needs a hold rule: build the "
            "scheduler with clock=rule"
        )
    if clock.unit is not None:
        count = _check_count(clock.unit, clock.count if count is None else count)
    if not clock.rules:
        return advance(HOST, clock, position, count=count)
    if metric is None:
        raise TypeError(
            "with a hold rule, step() needs the metric of the update: step(metric=loss)"
        )
    metric = checks.metric("metric", metric)
    with np.errstate(all="ignore"):
        starts_plateau = position.step in clock.flat_starts
        return advance(HOST, clock, position, metric=metric, starts_plateau=starts_plateau)


def _check_count(unit: int, count: Any) -> int:
    if count is None:
        raise TypeError(
            f"with DataClock({unit}), step() needs what the update consumed: write "
            "step(count=n); if a trainer steps a lambda_lr, set scheduler.count = n before it, "
            "on the lambda_lr itself and not on its wrapper; or, if it is always n, write "
            f"DataClock({unit}, count=n)"
        )
    return checks.at_least("count", count, 0)


# Saved positions.
#
# Each number is saved once, so that none can contradict another. A program that edits the number of
# updates in a state moves the run along its curve, as in a state of torch, unless it counts data.


def dump_position(clock: CheckedClock, position: Position) -> dict[str, Any]:
    """Return a position as entries of a state, in plain values, without the number of updates.

    The entries are `offset`, the step of the curve minus the number of updates, or with a unit
    `consumed`, the samples or tokens of all updates; the other of the two is None; and `hold`, the
    states of the rules.
    """
    hold: list[dict[str, int | float]] = [
        {name: np.asarray(value).item() for name, value in state._asdict().items()}
        for state in position.rule_states
    ]
    if clock.unit is not None:
        return {"offset": None, "consumed": position.consumed(clock), "hold": hold}
    return {"offset": position.step - max(position.updates, 0), "consumed": None, "hold": hold}


def read_position(state: Mapping[str, Any], updates: int, unit: int | None) -> Position:
    """Read the position in a state, without the states of its rules.

    Args:
        state: Has the entries of `dump_position`.
        updates: The number of updates, at least -1.
        unit: The unit of the clock that the state was saved with.

    Raises:
        TypeError, ValueError: A number is impossible.
    """
    unused = "consumed" if unit is None else "offset"
    if state.get(unused) is not None:
        raise ValueError(f"state_dict has {unused} = {checks.short_repr(state[unused])}, not None")
    if unit is None:
        begun = max(updates, 0)
        return Position(updates, begun + checks.at_least("offset", state["offset"], -begun))
    consumed = checks.in_range("consumed", state["consumed"], 0, MAX_CONSUMED)
    step, rest = divmod(consumed, checks.at_least("unit", unit, 1))
    return Position(updates, step, rest)


def read_rule_states(saved: Any, rules: Sequence[AnyHoldRule]) -> tuple[Any, ...]:
    """Read the entry `hold` of a state: the state of each rule."""
    states = cast("list[Any]", saved)
    if not isinstance(saved, list) or len(states) != len(rules):
        must_be = f"must be a list with the state of each of {len(rules)} hold rules"
        raise ValueError(f"state_dict has hold = {checks.short_repr(saved)}, which {must_be}")
    return tuple(map(_read_rule_state, states, rules))


def _read_rule_state(saved: Any, rule: AnyHoldRule) -> Any:
    initial = rule._initial_state()
    check_entries("hold", saved, initial._fields)
    values: dict[str, Any] = {}
    for name, first in initial._asdict().items():
        value = saved[name]
        if first.dtype == np.int32:
            value = checks.in_range(("hold", name), value, first.item(), checks.MAX_STEP)
        elif type(value) is not float or math.isnan(value):
            raise ValueError(checks.must(("hold", name), value, "be a number"))
        values[name] = type(first)(value)
    return type(initial)(**values)
