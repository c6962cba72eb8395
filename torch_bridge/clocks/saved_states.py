"""Read saved states: the position and the records in them, and errors from a malformed state."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
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


@contextmanager
def reading_state_of(owner: str, state_dict: Any) -> Generator[None]:
    """Raise errors from a malformed state as a ValueError: it is not the state of `owner`."""
    if isinstance(state_dict, str | bytes | PathLike):
        raise ValueError(
            f"state_dict = {checks.short_repr(state_dict)} is a path, not a state: load the file "
            "first, load_state_dict(torch.load(path, weights_only=True)). "
            "Checkpoints(directory).load(...) loads what Checkpoints saved"
        )
    try:
        yield
    except ValueError:
        raise
    # A wrong type, such as a tensor in place of a number, can raise any error.
    except Exception as error:
        problem = _problem_of(state_dict, error)
        raise ValueError(f"state_dict is not the state of {owner}: {problem}") from None


def _problem_of(state_dict: Any, error: Exception) -> str:
    if not isinstance(error, KeyError):
        return str(error)
    # The most likely mistake gets a message that says more than which entry is missing.
    if error.args == ("last_epoch",) and "applied" in state_dict:
        return (
            "it is the state of a TrainStep. Load its 'model' and 'optimizer', then build "
            "lambda_lr(optimizer, curve, last_epoch=state['curve_step'] - 1); with clock=, see "
            "docs/training_step.md, From a TrainStep to a scheduler"
        )
    return f"it has no {error}"


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
        ValueError: Its names differ from those of the rule's initial state, or a value has a
            different type or is a count below the initial one.
    """
    initial = initial_state(rule)
    initial_values = initial._asdict()
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


def read_scheduler_state(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a `lambda_lr`, or the step, peaks and lrs of a different scheduler."""
    # Torch's LambdaLR saves its whole __dict__, including outdated entries of a `lambda_lr`'s state
    # that it once loaded. So `records` alone does not show that `lambda_lr` saved the state.
    is_torchs = "_get_lr_called_within_step" in state_dict or "_schedulers" in state_dict
    if "records" in state_dict and not is_torchs:
        return state_dict
    return _read_foreign_state(state_dict)


def _read_foreign_state(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    first = state_dict
    updates = state_dict.get("last_epoch")
    while "_schedulers" in first:  # a SequentialLR, or a ChainedScheduler
        first = first["_schedulers"][0]
        if updates is None:  # a ChainedScheduler saves none
            updates = first.get("last_epoch")
    if "max_lrs" in first or "_schedule_phases" in first:
        raise ValueError(
            "state_dict was saved by a CyclicLR or OneCycleLR, whose base_lrs are not the peaks. "
            "Do not load it: build lambda_lr(optimizer, curve, "
            f"last_epoch={first['last_epoch'] - 1}), and then call scheduler.set_peak(peak)"
        )
    if updates is None:
        updates = first["last_epoch"]  # a KeyError that names what the state lacks
    return {
        "last_epoch": updates,
        "curve_step": updates,
        "base_lrs": first["base_lrs"],
        "_last_lr": state_dict["_last_lr"],
        "in_charge": updates >= 0,  # this scheduler takes over from that one
        "_step_count": state_dict.get("_step_count", updates + 1),
    }


def read_bases(name: str, saved: Any, group_count: int) -> list[float]:
    """Check the bases in a state's entry `name`, one for each of the first parameter groups."""
    bases = [float(checks.peak(f"{name}[{index}]", base)) for index, base in enumerate(saved)]
    if not 1 <= len(bases) <= group_count:
        raise ValueError(f"state_dict has {len(bases)} {name} for {group_count} parameter groups")
    return bases


def read_flag(state: Mapping[str, Any], name: str) -> bool:
    """Check an entry of a state that is True or False."""
    flag = state[name]
    if not isinstance(flag, bool):
        raise ValueError(f"state_dict has {name} = {checks.short_repr(flag)}, not True or False")
    return flag


def read_last_lrs(state: Mapping[str, Any], group_count: int) -> list[float]:
    """Check the learning rates that were written last, one for each group."""
    lrs: list[float] = []
    for index, lr in enumerate(state["_last_lr"]):
        lrs.append(float(checks.number(f"_last_lr[{index}]", lr)))
    if len(lrs) != group_count or min(lrs, default=0.0) < 0:
        raise ValueError(
            f"state_dict has _last_lr = {checks.short_repr(lrs)} for {group_count} parameter groups"
        )
    return lrs


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
