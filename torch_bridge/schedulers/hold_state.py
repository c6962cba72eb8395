"""Rules that hold the clock: their check against the curves, and their states as plain values."""

from collections.abc import Sequence
from typing import Any, TypedDict, cast

import numpy as np

from torch_bridge.curve_api import Curve, Rule, check_rules, checks, initial_state
from torch_bridge.schedulers.resume import how_to_override

States = tuple[Any, ...]
"""The state of each rule: a named tuple of NumPy's int32 and float32."""


class HoldState(TypedDict):
    """A rule and its state, in plain values."""

    rule: dict[str, Any]
    state: dict[str, int | float]


def rules_for(hold: Any, curves: Sequence[Curve]) -> tuple[Rule, ...]:
    """The rules in the user's `hold`, after a check that all parameter groups have the same curve."""
    rules = check_rules(hold, curves[0])
    if rules and any(curve != curves[0] for curve in curves):
        raise ValueError("with hold, all parameter groups must follow the same curve")
    return rules


def initial_states(rules: Sequence[Rule]) -> States:
    return tuple(map(initial_state, rules))


def dump_hold_states(rules: Sequence[Rule], states: States) -> list[HoldState] | None:
    """For a checkpoint; None without rules."""
    return [
        {
            "rule": rule.to_dict(),
            "state": {
                name: type(like.item())(value)
                for name, like, value in zip(state._fields, initial_state(rule), state, strict=True)
            },
        }
        for rule, state in zip(rules, states, strict=True)
    ] or None


def load_hold_states(saved: Any, rules: Sequence[Rule], strict: bool, builder: str) -> States:
    """The states of these rules from what `dump_hold_states` wrote.

    Without `strict`, the rules start anew if the states are damaged, or those of other rules.
    """
    try:
        saved = [] if saved is None else saved
        if not isinstance(saved, list | tuple):
            raise TypeError(f"hold = {checks.short_repr(saved)} must be a list")
        items = cast("Sequence[Any]", saved)
        own, other = [rule.to_dict() for rule in rules], [item["rule"] for item in items]
        if own != other:
            raise ValueError(
                f"state_dict was saved with hold = {checks.short_repr(other or None)}, but here it is "
                f"{checks.short_repr(own or None)}; to keep the clock and drop what the rule remembers, "
                f"{how_to_override(builder)}"
            )
        return tuple(
            _read(item["state"], initial_state(rule)) for item, rule in zip(items, rules, strict=True)
        )
    except (KeyError, TypeError, ValueError) as error:
        if not strict:
            return initial_states(rules)
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"state_dict has no state of a hold: {type(error).__name__}: {error}") from None


def _read(saved: Any, like: Any) -> Any:
    """A rule's state, checked against the rule's start `like`: no count may be below its start."""
    if set(saved) != set(like._fields):
        raise ValueError(f"state_dict has a hold's state of {sorted(saved)}; it must be of {like._fields}")
    values: dict[str, Any] = {}
    for name, least in zip(like._fields, like, strict=True):
        value = saved[name]
        if least.dtype == np.int32:
            if not least <= checks.integer(name, value) <= checks.MAX_STEP:
                raise ValueError(f"state_dict has {name} = {value!r} in a hold's state; it must be a count")
        elif type(value) is not float or not _is_float32(value):
            raise TypeError(f"{name} = {value!r} must be a float that float32 holds")
        values[name] = type(least)(value)
    return type(like)(**values)


def _is_float32(value: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float32(value)) == value
