"""Faults of a curve and warnings about it, each with the path of its field on the page."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from threading import Lock
from typing import Any, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Message, Path
from plateau_jax.arguments.curve_warning import CurveWarning
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.serialization import NESTED

_CELLS = {"start": 0, "steps": 0, "duration": 1, "length": 1, "to": 1, "shape": 2}
"""The index of each part in a pair or a stage."""

_warnings_lock = Lock()
"""Held while warnings are recorded: `catch_warnings` replaces the filters of the whole process."""


def placed_message(message: Message, place: Path = ()) -> dict[str, Any]:
    """Return a message about an argument of the curve at `place`, with the path of its field.

    A message without an argument has the path `place`.
    """
    keys = list(message.path)
    is_cell = len(keys) > 1 and isinstance(keys[-2], int)  # as in ("stages", 1, "to")
    if is_cell:
        keys[-1] = _CELLS.get(str(keys[-1]), keys[-1])
    return {"message": message, "path": (*place, *keys)}


def advice_about(curve: Curve, place: Path) -> Iterator[dict[str, Any]]:
    """Yield the constructors' warnings about a curve and the curves it is derived from."""
    with _warnings_lock, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        replace(cast("Any", curve))  # runs the constructor again
    for warning in caught:
        yield placed_message(checks.message_of(cast("Warning", warning.message)), place)
    for name in NESTED:
        inner = getattr(curve, name, None)
        if isinstance(inner, Curve):
            yield from advice_about(inner, (*place, name))
