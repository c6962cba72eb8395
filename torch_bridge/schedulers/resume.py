"""Read saved curves and bases, and reject resuming under curves with a different history."""

from collections.abc import Sequence
from typing import Any

from torch_bridge.curve_api import Curve, checks, describe_difference, read_saved_curve


def read_curves(saved: Any, current: Sequence[Curve]) -> list[Curve]:
    """Return the curves in a state, one for each parameter group; the groups now follow `current`."""
    saved = list(saved)
    if len(saved) != len(current):
        raise ValueError(f"state_dict has {len(saved)} curves for {len(current)} parameter groups")
    return [read_saved_curve(arguments) for arguments in saved]


def read_bases(name: str, saved: Any, group_count: int) -> list[float]:
    """Check the bases in a state's entry `name`, one for each parameter group."""
    bases = [float(checks.peak(f"{name}[{index}]", base)) for index, base in enumerate(saved)]
    if len(bases) != group_count:
        raise ValueError(f"state_dict has {len(bases)} {name} for {group_count} parameter groups")
    return bases


def how_to_override(builder: str) -> str:
    """Return the part of a message that says how to load the state anyway.

    `builder` is the function or class whose argument `strict` is the default of `load_state_dict`.
    """
    return f"pass strict=False to load_state_dict, or to {builder} if Checkpoints or a trainer loads"


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
