"""The position of a run: in a saved state, and where the run resumes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.clocks.clock import MAX_CONSUMED, CheckedClock, check_consumed
from plateau_jax.clocks.decision import initial_state
from plateau_jax.clocks.known_rules import Rule
from plateau_jax.runs.record import Record, read_records
from plateau_jax.saved_states.formats import check_known

States = tuple[Any, ...]
"""The state of each rule: a named tuple of NumPy's int32 and float32."""


@dataclass(frozen=True)
class SavedRun:
    """What a saved state says about its run: the schedule of each group, and the position."""

    records: list[Record] | None
    """The record of each parameter group; None if a scheduler without a curve has saved the
    state."""
    peaks: list[float | None]
    """The peak of each group; None if it is not known."""
    curve_step: int
    """The step of the curve that gives the next learning rates."""
    is_step_used: bool = False
    """True if an update may have used the learning rates of `curve_step` already."""
    updates: int = 0
    """The number of updates so far; -1 if the scheduler waits for its turn in a `SequentialLR`."""
    consumed: int = 0
    """The sum of the counts of all updates; 0 without a unit."""
    hold: Any = None
    """The states of the rules, in plain values."""

    @property
    def clocks(self) -> list[Any]:
        """The clock of each group, in plain values."""
        if self.records is None:
            return [None] * len(self.peaks)
        return [record.clock for record in self.records]


def read_saved_run(
    state: Mapping[str, Any], updates: int, peaks: Sequence[float | None], *, step_offset: int = 0
) -> SavedRun:
    """Read what a state says about its run.

    Args:
        state: A state with the entries `curve_step`, `consumed` and `hold`; and with `records`,
            unless a scheduler without a curve has saved it.
        updates: The number of updates in the state.
        peaks: The shortest decimal of the peak of each parameter group in the state.
        step_offset: The step of the curve minus the number of updates, unless a rule has held the
            curve. Nonzero only for a `TrainStep` that has changed its clock.

    Raises:
        ValueError: The state contradicts itself.
    """
    records = None
    clock = None
    if "records" in state:
        records = read_records("records", state["records"])
        check_length("state_dict['records']", records, len(peaks))
        clock = records[0].clock
    if isinstance(clock, dict):
        unit = cast("dict[str, Any]", clock)["unit"]
        consumed, curve_step = _read_data_counters(state, unit)
        is_step_used = consumed % unit > 0
    else:
        has_rules = clock is not None
        consumed = 0
        last_step = updates + step_offset
        curve_step = _read_curve_step(state, updates, last_step, may_be_held=has_rules)
        is_step_used = has_rules and curve_step != last_step
        if records is not None:
            _check_consumed_updates(state, updates)
    hold = state.get("hold")
    return SavedRun(records, [*peaks], curve_step, is_step_used, updates, consumed, hold)


def check_length(
    name: str, values: Sequence[Any], group_count: int, groups: str = "parameter groups"
) -> None:
    """Raise a ValueError unless there is a value for each of the groups."""
    if len(values) != group_count:
        raise ValueError(f"{name} has {len(values)} items; the number of {groups} is {group_count}")


def check_peaks(name: str, saved: SavedRun, change_peak: str) -> None:
    """Raise a ValueError unless a state's peaks are those of its records.

    Args:
        name: The entry with the peaks.
        saved: The saved run.
        change_peak: The method that changes the peaks.
    """
    for index, (peak, record) in enumerate(zip(saved.peaks, saved.records or (), strict=False)):
        if record.peak_value != peak:
            raise ValueError(
                f"state_dict has {name} = {peak} in group {index}, but its record has peak_value = "
                f"{record.peak_value}: to change a peak, load the state as it was saved, and then "
                f"call {change_peak}"
            )


@dataclass(frozen=True)
class Position:
    """The position at which a run resumes, on its present clock."""

    updates: int
    """As in `SavedRun`."""
    curve_step: int
    """As in `SavedRun`."""
    consumed: int = 0
    """As in `SavedRun`."""
    hold_states: States = ()
    """The states of the rules."""
    skipped: int = 0
    """The number of updates that a `TrainStep` has skipped."""
    step_offset: int = 0
    """As in the state of a `TrainStep`."""


def position_on(clock: CheckedClock, saved: SavedRun, *, is_new_clock: bool) -> Position:
    """Return the position at which a run resumes on this clock.

    Args:
        clock: The clock of the run.
        saved: The saved run.
        is_new_clock: True if its clock was a different one, so that this one starts afresh.

    Raises:
        ValueError: The saved states of the rules are not those of this clock's rules.
    """
    if is_new_clock:
        return _on_new_clock(clock, saved)
    hold_states: States = ()
    if clock.rules:
        hold_states = _read_hold_states(saved.hold, clock.rules)
    return Position(saved.updates, saved.curve_step, saved.consumed, hold_states)


def _on_new_clock(clock: CheckedClock, saved: SavedRun) -> Position:
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


def position_after(clock: CheckedClock, updates: int, argument: str, alternative: str) -> Position:
    """Return the position of a run of which only the number of updates is known.

    Args:
        clock: The clock of the run.
        updates: The number of updates so far.
        argument: The argument with this number and its value, for the message of an error.
        alternative: The end of this message: what else the user can do, after a semicolon.

    Raises:
        ValueError: It is not known what the updates consumed.
    """
    if clock.unit is None:
        return Position(updates, updates, hold_states=initial_states(clock.rules))
    if updates and not clock.counts_are_known:
        raise ValueError(
            f"{argument} with DataClock({clock.unit}): the number of updates does not say how much "
            f"they consumed. Write DataClock({clock.unit}, count=n) if each consumed n{alternative}"
        )
    consumed = check_consumed(updates * (clock.count or 0))
    return Position(updates, consumed // clock.unit, consumed)


def _read_curve_step(
    state: Mapping[str, Any], updates: int, last_step: int, *, may_be_held: bool
) -> int:
    """Return the step of a curve that counts updates: `last_step`, or before it if it was held."""
    curve_step = checks.at_least("curve_step", state["curve_step"], min(updates, 0))
    if curve_step == last_step or (may_be_held and curve_step < last_step):
        return curve_step
    advice = ""
    if "last_epoch" in state:
        advice = ", and set scheduler.last_epoch"
    raise ValueError(
        f"state_dict has curve_step = {curve_step} after {updates} updates: if the program has "
        f"changed one of the two, load the state as it was saved{advice}"
    )


def _check_consumed_updates(state: Mapping[str, Any], updates: int) -> None:
    """Check the entry `consumed` of a run without a unit."""
    consumed = checks.integer("consumed", state["consumed"])
    if consumed != max(updates, 0):
        raise ValueError(
            f"state_dict has consumed = {consumed} after {updates} updates; without a DataClock "
            "both must be equal"
        )


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
        ValueError: A newer version saved it; it lacks a field; or a value has a different type, is
            a count below the initial one, or is not a number.
    """
    initial = initial_state(rule)
    values: dict[str, Any] = {}
    for name, initial_value in initial._asdict().items():
        value = saved.get(name)
        if not _is_possible_value(initial_value, value):
            raise ValueError(
                f"state_dict has {saved} in hold, which is not a state of the rule {rule}"
            )
        values[name] = type(initial_value)(value)
    check_known("hold", saved, initial._fields)
    return type(initial)(**values)


def _is_possible_value(initial: Any, value: Any) -> bool:
    """Return True if a field of a rule's state may change from its initial value to this one."""
    if initial.dtype == np.int32:
        return type(value) is int and initial <= value <= checks.MAX_STEP
    return type(value) is float and not math.isnan(value)


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
