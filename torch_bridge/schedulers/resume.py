"""Reads saved curves and bases, and decides whether a run may resume under other curves."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

from torch_bridge.curve_api import Curve, checks, suppress_warnings


@contextmanager
def reading_state_of(what: str, state_dict: Any) -> Generator[None]:
    """Turn the errors of something that is not the state of `what` into a ValueError that says so."""
    refuse_path(state_dict)
    try:
        yield
    except KeyError as error:
        raise ValueError(f"state_dict is not the state of {what}: it has no {error}") from None
    except (OverflowError, TypeError) as error:
        raise ValueError(f"state_dict is not the state of {what}: {error}") from None


def refuse_path(state_dict: Any) -> None:
    """Refuse the path of a file in place of the state in it."""
    if isinstance(state_dict, str | bytes | PathLike):
        raise ValueError(
            f"state_dict = {checks.short_repr(state_dict)} is a path, and not a state: load the file first, "
            "load_state_dict(torch.load(path, weights_only=True)). Checkpoints(folder).load(...) loads what "
            "Checkpoints saved"
        )


def read_curves(saved: Any, own: Sequence[Curve]) -> list[Curve]:
    """The curves in a state, one for each parameter group, which now follow the curves `own`.

    A saved curve is first read as one of its group's class, which may have its own `to_dict` and `from_dict`.
    """
    saved = list(saved)
    if len(saved) != len(own):
        raise ValueError(f"state_dict has {len(saved)} curves for {len(own)} parameter groups")
    with suppress_warnings():
        return [_read_curve(type(curve), arguments) for curve, arguments in zip(own, saved, strict=True)]


def _read_curve(cls: type[Curve], arguments: Any) -> Curve:
    try:
        return cls.from_dict(arguments)
    except Exception:  # a `from_dict` of the user's may raise anything
        return Curve.from_dict(arguments)


def read_bases(name: str, saved: Any, count: int) -> list[float]:
    """The bases that a state has under this name, one for each parameter group."""
    bases = [float(checks.peak(f"{name}[{index}]", base)) for index, base in enumerate(saved)]
    if len(bases) != count:
        raise ValueError(f"state_dict has {len(bases)} {name} for {count} parameter groups")
    return bases


def how_to_override(builder: str) -> str:
    """The part of a message that says how to load the state of another plan."""
    return f"pass strict=False to load_state_dict, or to {builder} if Checkpoints or a trainer loads"


def check_same_past(saved: Sequence[Curve], own: Sequence[Curve], clock: int, builder: str) -> None:
    """Refuse curves that differ from the saved ones at a step before `clock`."""
    for index, (before, now) in enumerate(zip(saved, own, strict=True)):
        same = now.first_difference(before)
        if same is not None and clock > same:
            raise ValueError(
                f"state_dict was saved under {checks.short_repr(before)} at step {clock}, but "
                f"param_groups[{index}] now follows {checks.short_repr(now)}; the curves differ from step "
                f"{same} on: resume with the old curve, or {how_to_override(builder)}"
            )
