"""Messages of curves, and the place of each on the design page."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.serialization import NESTED
from plateau_jax.design.questions import record_warnings
from plateau_jax.validation.checks import Message, Path

_CELLS = {"start": 0, "steps": 0, "duration": 1, "length": 1, "to": 1, "shape": 2}
"""The position of each part in a pair or a stage."""


@dataclass(frozen=True)
class PlacedMessage:
    """A message, and the path of the field where the page shows it; () for the whole curve."""

    message: str
    path: Path = ()


def placed_message(message: Message, path: Path = ()) -> PlacedMessage:
    """Return a message about an argument of the curve, or of the question, at a path."""
    keys = list(message.path)
    if len(keys) > 1 and isinstance(keys[-2], int):
        keys[-1] = _CELLS.get(str(keys[-1]), keys[-1])
    return PlacedMessage(message, (*path, *keys))


def advice_about(curve: Curve, path: Path = ()) -> Iterator[PlacedMessage]:
    """Yield the constructors' warnings about a curve and, recursively, the curves it is derived from."""
    with record_warnings() as messages:
        replace(cast("Any", curve))  # runs the constructor again
    for message in messages:
        yield placed_message(message, path)
    for name in NESTED:
        if isinstance(inner := getattr(curve, name, None), Curve):
            yield from advice_about(inner, (*path, name))
