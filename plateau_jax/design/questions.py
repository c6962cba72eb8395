"""What the answers of the design page share: parts of questions, checked, and messages with their fields."""

import json
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.serialization import NESTED
from plateau_jax.validation import checks
from plateau_jax.validation.checks import Message, Path, message_of
from plateau_jax.validation.curve_warning import CurveWarning, suppress_warnings

MAX_CURVES = 12
MAX_ITEMS = 5000

_warnings = Lock()
"""Held while warnings are recorded: `catch_warnings` replaces the filters of the whole process."""


def parse_json(text: Any) -> Any:
    """Parse JSON; every error is a ValueError with a message for the user."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("this is nested too deep") from None
    except (TypeError, ValueError) as error:
        problem = error
        if isinstance(error, json.JSONDecodeError):
            problem = f"{error.msg}: line {error.lineno} column {error.colno}"
            if error.pos == 0:
                problem += ". Paste the text of the page’s JSON tab, or a curve that was saved as JSON"
        raise ValueError(f"this is not JSON: {problem}") from None


def check_size(arguments: Any) -> None:
    """Reject a curve for which the page would wait for seconds, because of its stages, plateaus and batches.

    Raises:
        ValueError: It has more than `MAX_ITEMS`.
    """
    items, curves = 0, [arguments]
    while curves:
        curve = curves.pop()
        if isinstance(curve, Mapping):
            values = cast("Mapping[str, Any]", curve)
            lists = (values.get(name) for name in ("stages", "plateaus", "absolute_plateaus", "pairs"))
            items += sum(len(cast("list[Any]", value)) for value in lists if isinstance(value, list))
            curves += [values.get("curve"), values.get("other")]
    if items > MAX_ITEMS:
        raise ValueError(
            f"this curve has {items} stages, plateaus and batches; this page takes at most {MAX_ITEMS}"
        )


def entries_of(question: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of a question about several curves."""
    entries = cast("list[Mapping[str, Any]]", question.get("curves"))
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise TypeError("curves must be a list of objects with the keys curve and peak")
    if len(entries) > MAX_CURVES:
        raise ValueError(f"there are {len(entries)} curves; the page holds at most {MAX_CURVES}")
    return entries


def texts_of(runs: Any) -> tuple[str, ...]:
    """Return the runs of a question, each as JSON text."""
    if not isinstance(runs, list) or not all(isinstance(run, str) for run in cast("list[Any]", runs)):
        raise TypeError("runs must be a list of strings")
    return tuple(cast("list[str]", runs))


def curve_and_peak(entry: Mapping[str, Any]) -> tuple[Curve, float]:
    """Return the curve of an entry, and its peak."""
    check_size(entry.get("curve"))
    with suppress_warnings():  # the page shows them as advice
        return Curve.from_dict(entry.get("curve", {})), typed_peak(entry)


def typed_peak(question: Mapping[str, Any]) -> float:
    """Return the peak of a question as typed, not rounded to float32: the code to copy shows it."""
    peak = checks.number("peak", question.get("peak"))
    checks.peak("peak", peak)
    return float(peak)


@contextmanager
def record_warnings() -> Generator[list[Message]]:
    """Collect the messages of all `CurveWarning`s; the list is filled at the end."""
    messages: list[Message] = []
    with _warnings, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        yield messages
    messages += [message_of(cast("Warning", warning.message)) for warning in caught]


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
