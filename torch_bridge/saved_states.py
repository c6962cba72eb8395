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
    start = f"build it with last_epoch={clock - 1}"
    if unit is not None:
        start = f"call step(count={clock * unit}) once"
    elif builder == "follow":
        start = f"call step() {clock} times"
    return f"do not load this state: {start}"


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


def read_bases(name: str, saved: Any, group_count: int) -> list[float]:
    """Check the bases in a state's entry `name`, one for each parameter group."""
    bases = [float(checks.peak(f"{name}[{index}]", base)) for index, base in enumerate(saved)]
    if len(bases) != group_count:
        raise ValueError(f"state_dict has {len(bases)} {name} for {group_count} parameter groups")
    return bases


def read_values(name: str, saved: Any, least: int, most: int) -> list[float]:
    """Check the values in a state's entry `name`, of `least` to `most` parameter groups."""
    values = [float(checks.number(f"{name}[{index}]", value)) for index, value in enumerate(saved)]
    if not least <= len(values) <= most or min(values, default=0.0) < 0:
        raise ValueError(f"state_dict has {name} = {checks.short_repr(values)} for {most} parameter groups")
    return values


def read_curves(saved: Any, current: Sequence[Curve]) -> list[Curve]:
    """Return the curves in a state, one for each parameter group; the groups now follow `current`."""
    saved = list(saved)
    if len(saved) != len(current):
        raise ValueError(f"state_dict has {len(saved)} curves for {len(current)} parameter groups")
    return [read_saved_curve(arguments) for arguments in saved]


def check_same_past(
    saved: Sequence[Curve], current: Sequence[Curve], clock: int, is_clock_used: bool, builder: str
) -> None:
    """Reject curves that differ from the saved ones at a step so far, as `describe_difference` says."""
    driven = "values" if builder == "follow" else "learning rates"
    for index, (old, new) in enumerate(zip(saved, current, strict=True)):
        group = f" of param_groups[{index}]" if len(current) > 1 else ""
        difference = describe_difference(old, new, clock, is_clock_used, driven + group)
        if difference:
            raise ValueError(f"state_dict {difference}, or {how_to_override(builder)}")


def how_to_override(builder: str) -> str:
    """Return the part of a message that says how to load the state anyway.

    `builder` is the function or class whose argument `strict` is the default of `load_state_dict`.
    """
    return f"pass strict=False to load_state_dict, or to {builder} if Checkpoints or a trainer loads"
