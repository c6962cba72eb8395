"""Write and read what the states of schedules have in common: the position and the records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from torch_bridge.curve_api import (
    MAX_CONSUMED,
    CheckedClock,
    Curve,
    Record,
    Rule,
    check_consumed,
    checks,
    describe_clock_difference,
    describe_peak_difference,
    describe_unknown,
    dump_record,
    initial_state,
    read_record,
    shortest_decimal,
    warn,
)
from torch_bridge.param_groups import check_length, one_if_equal

States = tuple[Any, ...]
"""The state of each rule: a named tuple of NumPy's int32 and float32."""


@dataclass(frozen=True)
class Saved:
    """The position, the clock and the records in a saved state."""

    updates: int
    """The number of updates so far; -1 if the scheduler waits for its turn in a `SequentialLR`."""
    curve_step: int
    """The step of the curve that gives the next learning rates."""
    consumed: int
    """The sum of the counts of all updates; 0 without a unit."""
    is_step_used: bool
    """True if an update may have used the learning rates of `curve_step` already."""
    records: list[Record] | None
    """The record of each parameter group; None if a scheduler without a curve has saved the
    state."""
    clock: Any
    """The clock in the records, in plain values."""
    hold: Any
    """The states of the rules, in plain values."""


def read_saved(
    state: Mapping[str, Any], updates: int, group_count: int, *, counts_all_updates: bool
) -> Saved:
    """Read what a state says about its run.

    Args:
        state: A state with the entries `curve_step`, `consumed` and `hold`; and with `records`,
            unless a scheduler without a curve has saved it.
        updates: The number of updates in the state.
        group_count: The number of parameter groups.
        counts_all_updates: True if `updates` counts all updates of a run, even after it has changed
            its clock, so that the step of the curve may differ. Otherwise it must be the step,
            unless a rule may have held the curve.

    Raises:
        ValueError: The state contradicts itself.
    """
    records = None
    clock = None
    if "records" in state:
        records = read_records(state["records"], group_count)
        clock = records[0].clock
    if isinstance(clock, dict):
        unit = cast("dict[str, Any]", clock)["unit"]
        consumed, curve_step = _read_data_counters(state, unit)
        is_step_used = consumed % unit > 0
    else:
        has_rules = clock is not None
        consumed = 0
        curve_step = _read_curve_step(
            state, updates, may_be_held=has_rules, may_differ=counts_all_updates
        )
        is_step_used = has_rules and curve_step != updates
    hold = state.get("hold")
    return Saved(updates, curve_step, consumed, is_step_used, records, clock, hold)


@dataclass(frozen=True)
class Position:
    """The position at which a run resumes, on its present clock."""

    updates: int
    """As in `Saved`."""
    curve_step: int
    """As in `Saved`."""
    consumed: int = 0
    """As in `Saved`."""
    hold_states: States = ()
    """The states of the rules."""


def position_on(clock: CheckedClock, saved: Saved) -> Position:
    """Return the position at which a run resumes on this clock. A different one starts afresh.

    Raises:
        ValueError: The states of the rules are not those of this clock's rules.
    """
    if describe_clock_difference(saved.clock, clock.to_plain()):
        return _on_fresh_clock(saved, clock)
    hold_states: States = ()
    if clock.rules:
        hold_states = _read_hold_states(saved.hold, clock.rules)
    return Position(saved.updates, saved.curve_step, saved.consumed, hold_states)


def _on_fresh_clock(saved: Saved, clock: CheckedClock) -> Position:
    """Return a position at the saved step of the curve, on a clock that begins there."""
    updates = saved.updates
    step = saved.curve_step
    states = initial_states(clock.rules)
    if clock.unit is not None:
        consumed = check_consumed(max(step, 0) * clock.unit)
        return Position(updates, step, consumed, states)
    if updates >= 0:  # else the scheduler waits for its turn in a `SequentialLR`
        updates = step
    return Position(updates, step, hold_states=states)


def read_records(saved: Any, group_count: int) -> list[Record]:
    """Return the record of each parameter group."""
    records = [read_record(f"records[{index}]", record) for index, record in enumerate(saved)]
    check_length("state_dict['records']", records, group_count)
    return records


def _read_curve_step(
    state: Mapping[str, Any], updates: int, *, may_be_held: bool, may_differ: bool
) -> int:
    """Return the step of a curve that counts updates."""
    curve_step = checks.at_least("curve_step", state["curve_step"], min(updates, 0))
    is_possible = curve_step == updates or (may_be_held and curve_step < updates)
    if not is_possible and not may_differ:
        raise ValueError(
            f"state_dict has curve_step = {curve_step} after {updates} updates: if the program has "
            "changed one of the two, load the state as it was saved, and set scheduler.last_epoch"
        )
    return curve_step


def _read_data_counters(state: Mapping[str, Any], unit: Any) -> tuple[int, int]:
    """Return the number of samples or tokens consumed, and the step of the curve."""
    unit = checks.at_least("unit", unit, 1)
    consumed = checks.in_range("consumed", state["consumed"], 0, MAX_CONSUMED)
    curve_step = checks.integer("curve_step", state["curve_step"])
    if curve_step != consumed // unit:
        raise ValueError(
            f"state_dict has curve_step = {curve_step}, consumed = {consumed} and unit = {unit}; "
            "the step must be consumed // unit"
        )
    return consumed, curve_step


def _read_hold_states(saved: Any, rules: Sequence[Rule]) -> States:
    states = cast("list[Any]", saved)
    if not isinstance(saved, list) or len(states) != len(rules):
        raise ValueError(f"state_dict has hold = {checks.short_repr(saved)} for {len(rules)} rules")
    return tuple(map(_read_rule_state, states, rules))


def _read_rule_state(saved: Any, rule: Rule) -> Any:
    """Return a rule's saved state.

    Raises:
        ValueError: A newer version saved it; it lacks an entry; or a value has a different type or
            is a count below the initial one.
    """
    initial = initial_state(rule)
    initial_values = initial._asdict()
    newer = describe_unknown("hold", saved, initial_values)
    if newer:
        raise ValueError(newer)
    complete = {**initial._field_defaults, **saved}  # a field that was added later has a default
    is_possible = complete.keys() == initial_values.keys() and all(
        _is_possible_value(initial_values[name], value) for name, value in complete.items()
    )
    if not is_possible:
        raise ValueError(f"state_dict has {saved} in hold, which is not a state of the rule {rule}")
    values: dict[str, Any] = {}
    for name, initial_value in initial_values.items():
        values[name] = type(initial_value)(complete[name])
    return type(initial)(**values)


def _is_possible_value(initial: Any, value: Any) -> bool:
    """Return True if a field of a rule's state may change from its initial value to this one."""
    if initial.dtype == np.int32:
        return type(value) is int and initial <= value <= checks.MAX_STEP
    return type(value) is float


def initial_states(rules: Sequence[Rule]) -> States:
    return tuple(map(initial_state, rules))


def dump_hold_states(rules: Sequence[Rule], states: States) -> list[dict[str, int | float]]:
    """Return the states of the rules as plain values for a checkpoint."""
    dumped: list[dict[str, int | float]] = []
    for rule, state in zip(rules, states, strict=True):
        values: dict[str, int | float] = {}
        for name, initial in initial_state(rule)._asdict().items():
            values[name] = type(initial.item())(getattr(state, name))  # an int or a float
        dumped.append(values)
    return dumped


def dump_records(
    curves: Sequence[Curve], peaks: Sequence[Any], clock: CheckedClock
) -> list[dict[str, Any]]:
    """Return the record of each parameter group, as `resume_record` does."""
    return [dump_record(curve, peak, clock) for curve, peak in zip(curves, peaks, strict=True)]


def warn_of_different_peaks(saved: Sequence[float], current: Sequence[float], owner: str) -> None:
    """Warn if the saved peaks, with which the run continues, differ from the program's."""
    old = shown_peaks(saved)
    new = shown_peaks(current)
    problem = describe_peak_difference(old, new)
    if problem:
        warn(
            f"state_dict has a different peak: {problem}. The run continues with {old}; to change "
            f"it, call {owner}.set_peak({new}) after the load"
        )


def shown_peaks(peaks: Sequence[float]) -> float | Sequence[float]:
    """Return the peaks of the groups as short decimals, or the one that all have."""
    return one_if_equal([shortest_decimal(peak) for peak in peaks])
