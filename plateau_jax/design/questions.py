"""Check parts of questions to the design page; relate messages to the fields of the page."""

import json
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.serialization import NESTED, parse_numbers
from plateau_jax.validation import checks
from plateau_jax.validation.checks import Message, Path, message_of
from plateau_jax.validation.curve_warning import CurveWarning

MAX_CURVES = 12
MAX_ITEMS = 5000

_LISTS = "stages", "points", "plateaus", "absolute_plateaus", "pairs"
"""The arguments of curves that are lists of any length."""

_CELLS = {"start": 0, "steps": 0, "duration": 1, "length": 1, "to": 1, "shape": 2}
"""The index of each part in a pair or a stage."""

_warnings = Lock()
"""Held while warnings are recorded: `catch_warnings` replaces the filters of the whole process."""


def parse_object(text: str | bytes) -> Mapping[str, Any]:
    """Parse a JSON object; every error is a TypeError or ValueError with a message for the user."""
    try:
        value = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise TypeError("this must be a JSON object")
    return cast("Mapping[str, Any]", value)


def check_size(arguments: Any) -> None:
    """Reject a curve with so many stages, plateaus or batches that the page would wait for seconds.

    Raises:
        ValueError: The curve has more than `MAX_ITEMS` of them.
    """
    items = 0
    curves = [arguments]
    while curves:
        curve = curves.pop()
        if isinstance(curve, Mapping):
            values = cast("Mapping[str, Any]", curve)
            items += _count_items(values)
            curves += [values.get(name) for name in NESTED]
    if items > MAX_ITEMS:
        raise ValueError(
            f"this curve has {items} stages, plateaus and batches; this page takes at most "
            f"{MAX_ITEMS}"
        )


def _count_items(arguments: Mapping[str, Any]) -> int:
    """Count the stages, plateaus and batches of a curve, but not those of curves within it."""
    count = 0
    for name in _LISTS:
        value = arguments.get(name)
        if isinstance(value, list):
            count += len(cast("list[Any]", value))
    return count


def entries_of(question: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of a question about several curves."""
    entries = question["curves"]
    if len(entries) > MAX_CURVES:
        raise ValueError(f"there are {len(entries)} curves; the page holds at most {MAX_CURVES}")
    return entries


def typed_peak(typed: Any) -> float:
    """Return a peak as typed, not rounded to float32, because the code to copy shows it."""
    peak = checks.number("peak", parse_numbers(typed))
    checks.peak("peak", peak)
    return float(peak)


@contextmanager
def record_warnings() -> Generator[list[Message]]:
    """Collect the messages of all `CurveWarning`s; the list is filled at the end."""
    messages: list[Message] = []
    with _warnings, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        yield messages
    for warning in caught:
        messages.append(message_of(cast("Warning", warning.message)))


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
    with record_warnings() as messages:
        replace(cast("Any", curve))  # runs the constructor again
    for message in messages:
        yield placed_message(message, place)
    for name in NESTED:
        inner = getattr(curve, name, None)
        if isinstance(inner, Curve):
            yield from advice_about(inner, (*place, name))
