"""Rules that hold the clock: checked against the curves, and saved as plain values."""

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
    """Return the rules in the user's `hold`; with rules, all parameter groups must have the same curve."""
    rules = check_rules(hold, curves[0])
    if rules and any(curve != curves[0] for curve in curves):
        raise ValueError("with hold, all parameter groups must follow the same curve")
    return rules


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


def load_hold_states(saved: Any, rules: Sequence[Rule], strict: bool, builder: str) -> States:
    """Return the states of these rules from what `dump_hold_states` returned.

    Without `strict`, the rules start afresh if the saved states are damaged or belong to different rules.
    """
    try:
        saved = [] if saved is None else saved
        if not isinstance(saved, list | tuple):
            raise TypeError(f"hold = {checks.short_repr(saved)} must be a list")
        items = cast("Sequence[Any]", saved)
        expected, saved_rules = [rule.to_dict() for rule in rules], [item["rule"] for item in items]
        if saved_rules != expected:
            raise ValueError(
                f"state_dict was saved with hold = {checks.short_repr(saved_rules or None)}, but here it is "
                f"{checks.short_repr(expected or None)}; to keep the clock and drop what the rule remembers, "
                f"{how_to_override(builder)}"
            )
        return tuple(
            _read_rule_state(item["state"], initial_state(rule))
            for item, rule in zip(items, rules, strict=True)
        )
    except Exception as error:  # a wrong type can raise anything: a tensor in place of a list, for example
        if not strict:
            return initial_states(rules)
        if isinstance(error, ValueError):
            raise
        raise ValueError(
            f"state_dict has no valid state of a hold: {type(error).__name__}: {error}"
        ) from None


def _read_rule_state(saved: Any, initial: Any) -> Any:
    """Check a rule's saved state against its initial one: same names, and no count below its start."""
    if set(saved) != set(initial._fields):
        raise ValueError(f"a hold's state has the entries {sorted(saved)}; they must be {initial._fields}")
    values: dict[str, Any] = {}
    for name, start_value in zip(initial._fields, initial, strict=True):
        value = saved[name]
        if start_value.dtype == np.int32:
            if not start_value <= checks.integer(name, value) <= checks.MAX_STEP:
                raise ValueError(f"state_dict has {name} = {value!r} in a hold's state; it must be a count")
        elif type(value) is not float or not _is_float32(value):
            raise TypeError(f"{name} = {value!r} must be a float that float32 holds")
        values[name] = type(start_value)(value)
    return type(initial)(**values)


def _is_float32(value: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float32(value)) == value
