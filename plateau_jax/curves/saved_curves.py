"""Compare the curve of a saved run with the curve that the run is to resume under."""

import math
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.validation.checks import short_repr
from plateau_jax.validation.curve_warning import suppress_warnings


def read_saved_curve(arguments: Any) -> Curve:
    """Return the curve that a run was saved with."""
    with suppress_warnings():  # that run has warned about it
        return Curve.from_dict(arguments)


def describe_difference(
    saved: Curve, current: Curve, clock: int, is_clock_used: bool, driven: str = "learning rates"
) -> str:
    """Return how the curves differ at the steps of a run, as a part of a sentence; "" if nowhere.

    Args:
        saved: The curve of the run so far.
        current: The curve to resume under.
        clock: The clock to resume at; all steps below it are compared.
        is_clock_used: True if an update may have used the step `clock` too, because a clock with a unit or
            under a rule can stand still. It is compared too, except at or past the end of the saved curve,
            where the next phase of `saved.then(...)` may have another level.
        driven: The values that follow the curve.
    """
    step = current.first_difference(saved)
    if step is None or clock < step:
        return ""
    # Only nearly equal, because a cooldown rounds the level at which it begins.
    is_same = math.isclose(saved(clock), current(clock), rel_tol=2**-22, abs_tol=2**-57)
    if clock == step and (is_same or not is_clock_used or clock >= saved.total_steps):
        return ""
    return f"it was saved with {_difference(saved, current)}, and the {driven} differ from step {step} on"


def _difference(old: Curve, new: Curve) -> str:
    """Return the saved arguments that differ, with the current ones."""
    differing = list(_differing_arguments(old, new))
    shown = [f"{name}{name and '='}{before}, now {now}" for name, before, now in differing[:2]]
    return "; ".join([*shown, "…"] if len(differing) > 2 else shown)


def _differing_arguments(old: Curve, new: Curve, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, old and new value of each argument that differs, also in curves within a curve.

    Of curves of two kinds, only kind and length are shown; of a list, only the first item that differs.
    """
    before, now = old.to_dict(), new.to_dict()
    if before.keys() != now.keys() or before.get("kind") != now.get("kind"):
        yield name, _kind_and_length(old), _kind_and_length(new)
        return
    key: str
    value: Any
    for key, value in before.items():
        label = f"{name}.{key}" if name else key
        inner = [getattr(curve, key, None) for curve in (old, new)]
        if isinstance(inner[0], Curve) and isinstance(inner[1], Curve):
            yield from _differing_arguments(inner[0], inner[1], label)
        elif isinstance(value, list) and isinstance(now[key], list):
            pairs: Iterator[tuple[Any, Any]] = zip_longest(cast("list[Any]", value), now[key])
            for index, (first, second) in enumerate(pairs):  # None after the end of the shorter list
                if first != second:
                    yield f"{label}[{index}]", short_repr(first), short_repr(second)
                    break
        elif value != now[key]:
            yield label, short_repr(value), short_repr(now[key])


def _kind_and_length(curve: Curve) -> str:
    return f"a {type(curve).__name__} of {curve.total_steps} steps"
