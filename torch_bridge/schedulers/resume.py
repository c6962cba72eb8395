"""Read saved curves and bases, and refuse to resume under curves with another past."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, cast

from torch_bridge.curve_api import Curve, checks, suppress_warnings


@contextmanager
def reading_state_of(owner: str, state_dict: Any) -> Generator[None]:
    """Turn errors from a malformed state into a ValueError that says it is not the state of `owner`."""
    refuse_path(state_dict)
    try:
        yield
    except ValueError:
        raise
    except KeyError as error:
        raise ValueError(f"state_dict is not the state of {owner}: it has no {error}") from None
    except Exception as error:  # a wrong type can raise anything: a tensor in place of a number, for example
        raise ValueError(f"state_dict is not the state of {owner}: {error}") from None


def refuse_path(state_dict: Any) -> None:
    """Refuse the path of a saved state given in place of the state."""
    if isinstance(state_dict, str | bytes | PathLike):
        raise ValueError(
            f"state_dict = {checks.short_repr(state_dict)} is a path, not a state: load the file first, "
            "load_state_dict(torch.load(path, weights_only=True)). Checkpoints(folder).load(...) loads what "
            "Checkpoints saved"
        )


def read_curves(saved: Any, current: Sequence[Curve]) -> list[Curve]:
    """Return the curves in a state, one for each parameter group; the groups now follow `current`.

    A saved curve is read with the class of its group's current curve, which may have its own `from_dict`.
    """
    saved = list(saved)
    if len(saved) != len(current):
        raise ValueError(f"state_dict has {len(saved)} curves for {len(current)} parameter groups")
    with suppress_warnings():  # the run that saved them has warned about them
        return [_read_curve(type(curve), arguments) for curve, arguments in zip(current, saved, strict=True)]


def _read_curve(cls: type[Curve], arguments: Any) -> Curve:
    try:
        return cls.from_dict(arguments)
    except Exception:  # the curve may be of another class, and a user's `from_dict` may raise anything
        return Curve.from_dict(arguments)


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


def check_same_past(saved: Sequence[Curve], current: Sequence[Curve], clock: int, builder: str) -> None:
    """Refuse curves that differ from the saved ones at a step before `clock`."""
    driven = "values" if builder == "follow" else "learning rates"
    for index, (old, new) in enumerate(zip(saved, current, strict=True)):
        step = new.first_difference(old)
        if step is not None and clock > step:
            group = f" of param_groups[{index}]" if len(current) > 1 else ""
            raise ValueError(
                f"state_dict was saved at step {clock} with {_difference(old, new)}: the {driven}{group} "
                f"differ from step {step} on; resume with the old curve, or {how_to_override(builder)}"
            )


def _difference(old: Curve, new: Curve) -> str:
    """Return the saved arguments that differ, with the current ones; both curves if their kinds differ."""
    differing = list(_differing_arguments(old.to_dict(), new.to_dict()))
    if not differing or differing[0][0] in ("", "kind"):
        differing = [("", old, new)]
    shown = [
        f"{name}{name and '='}{checks.short_repr(before)}, now {checks.short_repr(now)}"
        for name, before, now in differing[:2]
    ]
    return "; ".join([*shown, "…"] if len(differing) > 2 else shown)


def _differing_arguments(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield name, old and new value of each argument that differs, also in curves within a curve."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        items = cast("dict[str, Any]", old)
        for key, value in items.items():
            yield from _differing_arguments(value, new[key], f"{name}.{key}" if name else key)
    elif old != new:
        yield name, old, new
