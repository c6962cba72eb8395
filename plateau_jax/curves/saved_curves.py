"""May a run that was saved under one curve resume under another?"""

from collections.abc import Iterator
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.validation.checks import short_repr
from plateau_jax.validation.curve_warning import suppress_warnings


def read_saved_curve(arguments: Any, current: Curve) -> Curve:
    """Return the curve that a run was saved with; the run is to resume under `current`.

    It is read with the class of the current curve, which may have its own `from_dict`.
    """
    with suppress_warnings():  # the run that saved the curve has warned about it
        try:
            return type(current).from_dict(arguments)
        except Exception:  # the curve may be of another class, and a user's `from_dict` may raise anything
            return Curve.from_dict(arguments)


def describe_difference(saved: Curve, current: Curve, clock: int, driven: str = "learning rates") -> str:
    """Return how the curves differ at the steps below `clock`, as the predicate of a sentence; "" if nowhere.

    `driven` names the values that follow the curve.
    """
    step = current.first_difference(saved)
    if step is None or clock <= step:
        return ""
    return (
        f"was saved at step {clock} with {_difference(saved, current)}: the {driven} differ from step {step} "
        "on; resume with the old curve"
    )


def _difference(old: Curve, new: Curve) -> str:
    """Return the saved arguments that differ, with the current ones; both curves if their kinds differ."""
    differing = list(_differing_arguments(old.to_dict(), new.to_dict()))
    if not differing or differing[0][0] in ("", "kind"):
        differing = [("", old, new)]
    shown = [
        f"{name}{name and '='}{short_repr(before)}, now {short_repr(now)}"
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
