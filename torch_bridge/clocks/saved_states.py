"""Write and read what all saved states of schedules have: the position, and the records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    describe_curve_difference,
    describe_peak_difference,
    describe_unknown,
    dump_record,
    initial_state,
    read_curve,
    read_record,
    shortest_decimal,
    warn,
)
from torch_bridge.param_groups import check_length

States = tuple[Any, ...]
"""The state of each rule: a named tuple of NumPy's int32 and float32."""


@dataclass(frozen=True)
class Position:
    """The position at which a run resumes, on its present clock."""

    updates: int
    """The number of updates so far; -1 if the scheduler waits for its turn in a `SequentialLR`."""
    curve_step: int
    """The step of the curve that gives the next learning rates."""
    consumed: int = 0
    """The sum of the counts of all updates; 0 without a unit."""
    hold_states: States = ()
    """The states of the rules."""
    messages: list[str] = field(default_factory=list[str])
    """Warnings that are due, because the clocks or the curves differ."""


@dataclass(frozen=True)
class _SavedCounters:
    """The counters in a state, on the clock of the saved run."""

    updates: int
    curve_step: int
    consumed: int
    is_step_used: bool
    """True if an update may have used the learning rates of `curve_step` already."""


def read_position(
    state: Mapping[str, Any],
    updates: int,
    curves: Sequence[Curve],
    clock: CheckedClock,
    *,
    counts_all_updates: bool,
    strict: bool,
    builder: str,
) -> Position:
    """Return the position in a state, and compare the records in it with the present run.

    Args:
        state: A state with the entries `curve_step`, `consumed` and `hold`; and with `records`,
            unless a scheduler without a curve has saved it.
        updates: The number of updates in the state.
        curves: The curve that each parameter group follows now.
        clock: The clock that the run has now.
        counts_all_updates: True if `updates` counts all updates of a run, even after it has changed
            its clock, so that the step of the curve may differ. Otherwise it must be the step,
            unless a rule may have held the curve.
        strict: True to raise an error if the clock or a curve differs. Otherwise the run continues
            at the saved step under the present ones; a different clock starts afresh there.
        builder: The function or class that takes the default of `strict`, for messages.

    Raises:
        ValueError: The state contradicts itself; or, with `strict`, the clocks or the curves
            differ.
    """
    records = None
    saved_clock = None
    if "records" in state:
        records = read_records(state["records"], len(curves))
        saved_clock = records[0].clock
    if isinstance(saved_clock, dict):
        unit = cast("dict[str, Any]", saved_clock)["unit"]
        saved = _read_data_counters(state, updates, unit)
    else:
        has_rules = saved_clock is not None
        saved = _read_update_counters(
            state, updates, has_rules=has_rules, counts_all_updates=counts_all_updates
        )
    step = saved.curve_step

    messages: list[str] = []
    clock_problem = describe_clock_difference(saved_clock, clock.to_plain())
    if clock_problem and strict:
        raise ValueError(
            f"state_dict cannot resume at step {step}: {clock_problem}; resume with the old clock, "
            f"or {_how_to_override(builder)}, to continue at this step of the curve with a fresh "
            "clock"
        )
    if clock_problem:
        messages.append(
            f"state_dict belongs to a different clock: {clock_problem}. The run continues at step "
            f"{step} of the curve, with a fresh clock"
        )
        position = _on_fresh_clock(saved, clock)
    else:
        hold_states: States = ()
        if clock.rules:
            hold_states = _read_hold_states(state["hold"], clock.rules)
        position = Position(saved.updates, step, saved.consumed, hold_states)

    message = compare_curves(
        records, curves, step, is_step_used=saved.is_step_used, strict=strict, builder=builder
    )
    if message:
        messages.append(message)
    return replace(position, messages=messages)


def _on_fresh_clock(saved: _SavedCounters, clock: CheckedClock) -> Position:
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


def _read_update_counters(
    state: Mapping[str, Any], updates: int, *, has_rules: bool, counts_all_updates: bool
) -> _SavedCounters:
    curve_step = checks.at_least("curve_step", state["curve_step"], min(updates, 0))
    is_step_used = has_rules and curve_step != updates
    is_possible = curve_step == updates or (has_rules and curve_step < updates)
    if not is_possible and not counts_all_updates:
        raise ValueError(
            f"state_dict has curve_step = {curve_step} after {updates} updates: if the program has "
            "changed one of the two, load the state as it was saved, and set scheduler.last_epoch"
        )
    return _SavedCounters(updates, curve_step, consumed=0, is_step_used=is_step_used)


def _read_data_counters(state: Mapping[str, Any], updates: int, unit: Any) -> _SavedCounters:
    unit = checks.at_least("unit", unit, 1)
    consumed = checks.in_range("consumed", state["consumed"], 0, MAX_CONSUMED)
    curve_step = checks.integer("curve_step", state["curve_step"])
    if curve_step != consumed // unit:
        raise ValueError(
            f"state_dict has curve_step = {curve_step}, consumed = {consumed} and unit = {unit}; "
            "the step must be consumed // unit"
        )
    return _SavedCounters(updates, curve_step, consumed, is_step_used=consumed % unit > 0)


def _how_to_override(builder: str) -> str:
    return (
        f"pass strict=False to load_state_dict, or to {builder} if Checkpoints or a trainer loads"
    )


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
    is_possible = saved.keys() == initial_values.keys() and all(
        _is_possible_value(initial_values[name], value) for name, value in saved.items()
    )
    if not is_possible:
        raise ValueError(f"state_dict has {saved} in hold, which is not a state of the rule {rule}")
    values: dict[str, Any] = {}
    for name, initial_value in initial_values.items():
        values[name] = type(initial_value)(saved[name])
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


def compare_curves(
    records: Sequence[Record] | None,
    current: Sequence[Curve],
    step: int,
    *,
    is_step_used: bool,
    strict: bool,
    builder: str = "",
    driven: str = "learning rates",
) -> str:
    """Return a warning about curves that differ from the saved ones before a step, or "".

    Args:
        records: The record of each parameter group; None if a scheduler without a curve has saved
            the state.
        current: The curve that each group follows now.
        step: The step to resume at.
        is_step_used: As in `describe_curve_difference`.
        strict: True to raise an error if curves differ.
        builder: As in `read_position`; only needed with `strict`.
        driven: The values that follow the curves, for messages.

    Raises:
        ValueError: The curves differ, or cannot be read, and `strict` is True.
    """
    if records is None:
        return (
            "state_dict was saved by a scheduler without a curve: this curve continues at step "
            f"{step}, and nothing shows whether the learning rates so far were its own"
        )
    for index, (record, curve) in enumerate(zip(records, current, strict=True)):
        if record.curve == curve.to_dict():
            continue  # without building it, which takes long if it has many stages
        try:
            saved = read_curve(f"records[{index}]", record)
        except ValueError as error:
            if strict:
                raise
            return f"the {driven} so far are not compared: {error}"
        driven_of_group = driven
        if len(current) > 1:
            driven_of_group += f" of param_groups[{index}]"
        difference = describe_curve_difference(
            saved, curve, step, is_step_used=is_step_used, driven=driven_of_group
        )
        if difference and strict:
            raise ValueError(
                f"state_dict cannot resume at step {step}: {difference}; resume with the old "
                f"curve, or {_how_to_override(builder)}"
            )
        if difference:
            return (
                f"state_dict belongs to a different curve: {difference}. The run continues at step "
                f"{step} of this curve"
            )
    return ""


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


def shown_peaks(peaks: Sequence[float]) -> float | list[float]:
    """Return the peaks of the groups as short decimals, or the one that all have."""
    shown = [shortest_decimal(peak) for peak in peaks]
    if len(set(shown)) == 1:
        return shown[0]
    return shown
