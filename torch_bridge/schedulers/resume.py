"""Whether a run may go on under other curves than those that it was saved under."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from torch_bridge.core import Curve, checks, silent


def check_no_path(state_dict: Any) -> None:
    """Refuse the path of a file in place of the state in it.

    Raises:
        ValueError: It is a path.
    """
    if isinstance(state_dict, str | bytes | PathLike):
        raise ValueError(
            f"state_dict = {checks.shown(state_dict)} is a path, and not a state: load the file first, "
            "load_state_dict(torch.load(path, weights_only=True)). Checkpoints(folder).load(...) loads what "
            "Checkpoints saved"
        )


def curves_in(saved: Any, own: Sequence[Curve]) -> list[Curve]:
    """The curves in a state, one for each parameter group.

    Args:
        saved: What each curve's `to_dict` gave.
        own: The curve that each group follows now. The saved one is first read as one of its class, which may
            have a `to_dict` and `from_dict` of its own.

    Raises:
        TypeError, ValueError: They are no curves, or another number of them.
    """
    saved = list(saved)
    if len(saved) != len(own):
        raise ValueError(f"state_dict has {len(saved)} curves for {len(own)} parameter groups")
    with silent():
        return [_read(type(curve), arguments) for curve, arguments in zip(own, saved, strict=True)]


def _read(cls: type[Curve], arguments: Any) -> Curve:
    try:
        return cls.from_dict(arguments)
    except Exception:  # a `from_dict` of the user's may raise anything
        return Curve.from_dict(arguments)


def bases_in(name: str, saved: Any, count: int) -> list[float]:
    """The bases (see `base_of`) that a state has under this name, one for each parameter group.

    Raises:
        TypeError, ValueError: They are no bases, or another number of them.
    """
    bases = [float(checks.peak(f"{name}[{index}]", base)) for index, base in enumerate(saved)]
    if len(bases) != count:
        raise ValueError(f"state_dict has {len(bases)} {name} for {count} parameter groups")
    return bases


def clock_in(state_dict: Mapping[str, Any], updates: int) -> int:
    """The clock in a state that was saved after so many updates.

    A state without rules may lack it: then it is the number of updates.

    Raises:
        KeyError: A state with rules lacks it.
        TypeError, ValueError: It is no count, or greater than the number of updates.
    """
    clock = state_dict["clock"] if state_dict.get("hold") else state_dict.get("clock", updates)
    found = checks.at_least("clock", clock, min(updates, 0))
    if found > max(updates, 0):
        raise ValueError(f"state_dict has clock = {found} after {updates} updates, which move it one each")
    return found


def way_out(builder: str) -> str:
    """The words that say how to load the state of another plan."""
    return f"pass strict=False to load_state_dict, or to {builder} if Checkpoints or a trainer loads"


def check_past(saved: Sequence[Curve], own: Sequence[Curve], clock: int, builder: str) -> None:
    """Refuse curves that differ from the saved ones at a step before `clock`.

    Raises:
        ValueError: It names the first group whose curves differ, and the step.
    """
    for index, (before, now) in enumerate(zip(saved, own, strict=True)):
        same = now.first_difference(before)
        if same is not None and clock > same:
            raise ValueError(
                f"state_dict was saved under {checks.shown(before)} at step {clock}, but "
                f"param_groups[{index}] now follows {checks.shown(now)}; the curves differ from step {same} "
                f"on: resume with the old curve, or {way_out(builder)}"
            )
