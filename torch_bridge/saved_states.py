"""Read saved states: the clock, the rules and the curves in them, and errors from a malformed state."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, TypedDict

import numpy as np

from torch_bridge.curve_api import (
    Curve,
    Rule,
    checks,
    describe_difference,
    initial_state,
    read_saved_curve,
    warn,
)

MAX_CONSUMED = 2**62
"""The largest unit, and the largest sum of samples or tokens: `TrainStep` counts in int64 on the device."""

States = tuple[Any, ...]
"""The state of each rule: a named tuple of NumPy's int32 and float32."""


class HoldState(TypedDict):
    """A rule and its state, in plain values."""

    rule: dict[str, Any]
    state: dict[str, int | float]


@contextmanager
def reading_state_of(owner: str, state_dict: Any) -> Generator[None]:
    """Turn errors from a malformed state into a ValueError that says it is not the state of `owner`."""
    if isinstance(state_dict, str | bytes | PathLike):
        raise ValueError(
            f"state_dict = {checks.short_repr(state_dict)} is a path, not a state: load the file first, "
            "load_state_dict(torch.load(path, weights_only=True)). Checkpoints(directory).load(...) loads "
            "what Checkpoints saved"
        )
    try:
        yield
    except ValueError:
        raise
    except KeyError as error:
        advice = f"it has no {error}"
        # The most likely mistake, so the message says more than which entry is missing.
        if error.args == ("last_epoch",) and "applied" in state_dict:
            advice = (
                "it is the state of a TrainStep. Load its 'model' and 'optimizer', then build lambda_lr("
                "optimizer, curve, last_epoch=state['applied'] - 1); with unit= or hold=, see "
                "docs/training_step.md, From a TrainStep to a scheduler"
            )
        raise ValueError(f"state_dict is not the state of {owner}: {advice}") from None
    except Exception as error:  # a wrong type can raise anything: a tensor in place of a number, for example
        raise ValueError(f"state_dict is not the state of {owner}: {error}") from None


def read_saved_clock(
    state_dict: Mapping[str, Any], updates: int, unit: int | None, rules: Sequence[Rule], builder: str
) -> tuple[int, int, States]:
    """Return the clock of a state that was saved after `updates` updates, consumed, and the rules' states.

    A clock of a different unit or different rules is rejected, with a message that says how `builder`, the
    function or class that the user called, starts the curve at the saved step instead.
    """
    saved_unit, consumed = state_dict.get("unit"), 0
    if saved_unit is None:
        clock = checks.at_least("clock", state_dict["clock"], min(updates, 0))
        if clock > max(updates, 0):
            raise ValueError(
                f"state_dict has clock = {clock} after {updates} updates, which move it by at most one each"
            )
    else:
        saved_unit = checks.at_least("unit", saved_unit, 1)
        consumed = checks.at_least("consumed", state_dict["consumed"], 0)
        clock = checks.integer("clock", state_dict["clock"])
        if consumed > MAX_CONSUMED or clock != consumed // saved_unit:
            raise ValueError(
                f"state_dict has clock = {clock}, consumed = {consumed} and unit = {saved_unit}; the clock "
                "must be consumed // unit, of at most 2**62 consumed"
            )
    holds: list[Any] = list(state_dict.get("hold") or ())
    saved_rules, rules_here = [hold["rule"] for hold in holds], [rule.to_dict() for rule in rules]
    for name, saved, here in (("unit", saved_unit, unit), ("hold", saved_rules or None, rules_here or None)):
        if saved != here:
            raise ValueError(
                f"state_dict was saved with {name} = {checks.short_repr(saved)}, but here it is "
                f"{checks.short_repr(here)}. To continue from step {max(clock, 0)} of the curve, "
                f"{_how_to_start(builder, max(clock, 0), unit, bool(rules))}"
            )
    # A TrainStep that has dropped its hold goes on counting updates and clock apart.
    if unit is None and not rules and clock != updates and builder != "TrainStep":
        raise ValueError(f"state_dict has clock = {clock} after {updates} updates, without a hold")
    pairs = zip(holds, rules, strict=True)
    return clock, consumed, tuple(_read_rule_state(hold["state"], rule) for hold, rule in pairs)


def _how_to_start(builder: str, clock: int, unit: int | None, has_rules: bool) -> str:
    if builder == "TrainStep":
        count = f"'applied': {clock}" if unit is None else f"'consumed': {clock * unit}"
        hold = "step.state_dict()['hold']" if has_rules else None
        return f"load state_dict | {{'unit': {unit}, {count}, 'hold': {hold}}}"
    if unit is not None:
        counts = f"'clock': {clock}, 'consumed': {clock * unit}"
        return f"load state_dict | {{'unit': {unit}, {counts}, 'hold': None}}"
    return f"do not load this state: build it with last_epoch={clock - 1}"


def _read_rule_state(saved: Any, rule: Rule) -> Any:
    """Check a rule's saved state against its initial one: same names, and no count below its start."""
    initial = initial_state(rule)
    if set(saved) != set(initial._fields):
        raise ValueError(f"a hold's state has the entries {sorted(saved)}; they must be {initial._fields}")
    values: dict[str, Any] = {}
    for name, start_value in zip(initial._fields, initial, strict=True):
        value = saved[name]
        if start_value.dtype == np.int32:
            if not start_value <= checks.integer(name, value) <= checks.MAX_STEP:
                raise ValueError(f"state_dict has {name} = {value!r} in a hold's state; it must be a count")
        elif type(value) is not float:
            raise TypeError(f"{name} = {value!r} must be a float")
        values[name] = type(start_value)(value)
    return type(initial)(**values)


def initial_states(rules: Sequence[Rule]) -> States:
    return tuple(map(initial_state, rules))


def dump_hold_states(rules: Sequence[Rule], states: States) -> list[HoldState] | None:
    """Return the rules and their states as plain values for a checkpoint; None if there are no rules."""
    return [
        {
            "rule": rule.to_dict(),
            "state": {
                name: type(initial.item())(value)
                for name, initial, value in zip(state._fields, initial_state(rule), state, strict=True)
            },
        }
        for rule, state in zip(rules, states, strict=True)
    ] or None


def read_scheduler_state(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a `CurveLR`, or the step, peaks and learning rates of a state without curves."""
    # LambdaLR saves its whole __dict__, and with it the entries of a CurveLR's state that it once loaded.
    # Those are out of date, so `curves` does not show that a CurveLR saved the state.
    is_torchs = "_get_lr_called_within_step" in state_dict or "_schedulers" in state_dict
    if "rates" in state_dict and not is_torchs:
        raise ValueError(
            "state_dict was saved by an earlier version, whose states are not read: load the optimizer's "
            "state, and continue at the saved step, lambda_lr(optimizer, curve, "
            "last_epoch=state['clock'] - 1)"
        )
    if "curves" in state_dict and not is_torchs:
        return state_dict
    first, updates = state_dict, state_dict.get("last_epoch")
    while "_schedulers" in first:  # a SequentialLR, or a ChainedScheduler, which saves no last_epoch
        first = first["_schedulers"][0]
        if updates is None:
            updates = first.get("last_epoch")
    if "max_lrs" in first or "_schedule_phases" in first:
        raise ValueError(
            "state_dict was saved by a CyclicLR or OneCycleLR, whose base_lrs are not the peaks. Do not load "
            f"it: build lambda_lr(optimizer, curve, last_epoch={first['last_epoch'] - 1}), and then call "
            "scheduler.set_peak(peak)"
        )
    updates = first["last_epoch"] if updates is None else updates
    entries = {"last_epoch": updates, "clock": updates, "base_lrs": first["base_lrs"]}
    entries["_last_lr"] = state_dict["_last_lr"]
    entries["_step_count"] = state_dict.get("_step_count", updates + 1)
    return entries


def read_bases(name: str, saved: Any, group_count: int) -> list[float]:
    """Check the bases in a state's entry `name`, one for each of the first parameter groups."""
    bases = [float(checks.peak(f"{name}[{index}]", base)) for index, base in enumerate(saved)]
    if not 1 <= len(bases) <= group_count:
        raise ValueError(f"state_dict has {len(bases)} {name} for {group_count} parameter groups")
    return bases


def read_last_lrs(state: Mapping[str, Any], group_count: int) -> list[float]:
    """Check the learning rates that were written last, one for each group."""
    lrs = [float(checks.number(f"_last_lr[{index}]", lr)) for index, lr in enumerate(state["_last_lr"])]
    if len(lrs) != group_count or min(lrs, default=0.0) < 0:
        raise ValueError(
            f"state_dict has _last_lr = {checks.short_repr(lrs)} for {group_count} parameter groups"
        )
    return lrs


def read_curves(saved: Any, current: Sequence[Curve]) -> list[Curve]:
    """Return the curves in a state, one for each parameter group; the groups now follow `current`."""
    saved = list(saved)
    if len(saved) != len(current):
        raise ValueError(f"state_dict has {len(saved)} curves for {len(current)} parameter groups")
    return [read_saved_curve(arguments) for arguments in saved]


def compare_curves(
    state: Mapping[str, Any],
    current: Sequence[Curve],
    clock: int,
    is_clock_used: bool,
    builder: str,
    *,
    strict: bool,
) -> str:
    """Return a warning about curves that differ from the saved ones at a step so far, if one is due.

    Args:
        state: A state; without the entry `curves`, another scheduler has saved it.
        current: The curve that each parameter group follows now.
        clock: The step to continue at.
        is_clock_used: As in `describe_difference`.
        builder: The function or class whose argument `strict` is the default of `load_state_dict`.
        strict: True to raise an error if curves differ.

    Raises:
        ValueError: The curves differ, or cannot be read, and `strict` is True.
    """
    if "curves" not in state:
        return (
            f"state_dict was saved by a scheduler without a curve: this curve continues at step {clock}, and "
            "nothing shows whether the learning rates so far were its own"
        )
    driven = "values" if builder == "follow" else "learning rates"
    try:
        saved = read_curves(state["curves"], current)
    except Exception as error:
        if strict:
            raise
        return f"the {driven} so far are not compared, since the saved curves cannot be read: {error}"
    for index, (old, new) in enumerate(zip(saved, current, strict=True)):
        group = f" of param_groups[{index}]" if len(current) > 1 else ""
        difference = describe_difference(old, new, clock, is_clock_used, driven + group)
        if difference and strict:
            raise ValueError(
                f"state_dict cannot resume at step {clock}: {difference}; resume with the old curve, or pass "
                f"strict=False to load_state_dict, or to {builder} if Checkpoints or a trainer loads"
            )
        if difference:
            return (
                f"state_dict belongs to a different curve: {difference}. The run continues at step {clock} "
                "of this curve"
            )
    return ""


def warn_of_other_peaks(saved: Sequence[float], current: Sequence[float], owner: str) -> None:
    """Warn if the saved peaks, which a load uses, differ from those of the program."""
    if list(saved) == list(current):
        return
    old, new = shown_peaks(saved), shown_peaks(current)
    warn(
        f"state_dict has the peak {old}, but the program gives {new}: the run continues with {old}. To "
        f"change it, call {owner}.set_peak({new}) after the load"
    )


def shown_peaks(peaks: Sequence[float]) -> str:
    """Return the peaks of the groups for a message, or the one that all have."""
    numbers = [float(f"{peak:.7g}") for peak in peaks]
    return repr(numbers[0]) if len(set(numbers)) == 1 else checks.short_repr(numbers)
