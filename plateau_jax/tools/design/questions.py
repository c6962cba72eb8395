"""Check parts of questions to the design page; relate messages to the fields of the page."""

import json
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass, replace
from threading import Lock
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Message, Path, message_of
from plateau_jax.arguments.curve_warning import CurveWarning
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.serialization import NESTED
from plateau_jax.tools.configuration import parse_numbers

MAX_CURVES = 12
MAX_RUNS = 64
MAX_ITEMS = 5000

_MAX_DEPTH = 100
"""The greatest nesting depth of a question; that of derived curves is 64."""

_Fields = TypeVar("_Fields")

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
    _check_depth(value)
    return cast("Mapping[str, Any]", value)


def _check_depth(value: Any) -> None:
    # Python would raise a RecursionError somewhere later, depending on its version.
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = list(_items_of(level))
        if not level:
            return
    raise ValueError(f"this is nested more than {_MAX_DEPTH} deep")


def _items_of(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from cast("dict[str, Any]", value).values()
        elif isinstance(value, list):
            yield from cast("list[Any]", value)


def parse_fields(cls: type[_Fields], value: Any, path: Path = ()) -> _Fields:
    """Build a dataclass from an object with its fields, after checking their types.

    A field has the type bool, int, str, dict or Any, a list of a type, or a dataclass; or one of
    these and None. A value that is None counts as left out. Other keys are ignored.

    Raises:
        TypeError: A value has a wrong type, or a field without a default is missing; the message
            begins with its path.
    """
    if not isinstance(value, Mapping):
        raise TypeError(checks.must(path, value, "be an object"))
    given = cast("Mapping[str, Any]", value)
    types = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in fields(cast("Any", cls)):
        place = (*path, field.name)
        if given.get(field.name) is not None:
            values[field.name] = _parse_field(types[field.name], given[field.name], place)
        elif field.default is MISSING:
            raise TypeError(Message(place, " is missing"))
    return cls(**values)


_REQUIREMENTS = {
    bool: "be true or false",
    str: "be a string",
    list: "be a list",
    dict: "be an object",
}


def _parse_field(annotation: Any, value: Any, path: Path) -> Any:
    """Check a value that is not None, and build the dataclasses in it."""
    if isinstance(annotation, UnionType):
        annotation, _ = get_args(annotation)  # the type, and None
    if annotation is Any:
        return value
    if is_dataclass(annotation):
        return parse_fields(cast("type[Any]", annotation), value, path)
    if annotation is int:
        return checks.integer(path, value)
    container = get_origin(annotation) or annotation
    if not isinstance(value, container):
        raise TypeError(checks.must(path, value, _REQUIREMENTS[container]))
    if container is not list:
        return value
    (item_annotation,) = get_args(annotation)
    return [_parse_field(item_annotation, item, (*path, index)) for index, item in enumerate(value)]


@contextmanager
def errors_within(path: Path) -> Generator[None]:
    """Prefix the messages of errors with the path of a part of the question."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error.args = (message_of(error).within(path),)
        raise


def check_size(arguments: Any, most: int = MAX_ITEMS) -> None:
    """Reject a curve with so many stages, plateaus or batches that the page would wait for seconds.

    A derived curve has the segments of the curves within it. So each item also counts once for each
    curve that is derived from its curve; the limit of this sum is twice as high.

    Raises:
        ValueError: The curve has more than `most` of them, or they are nested too deeply.
    """
    items = 0
    segments = 0
    curves = [(arguments, 1)]
    while curves:
        curve, times = curves.pop()
        if isinstance(curve, Mapping):
            values = cast("Mapping[str, Any]", curve)
            count = _count_items(values)
            items += count
            segments += times * count
            curves += [(values.get(name), times + 1) for name in NESTED]
    if items > most:
        raise ValueError(
            f"this curve has {items} stages, plateaus and batches; this page takes at most {most}"
        )
    if segments > 2 * most:
        raise ValueError(
            f"this curve has {items} stages, plateaus and batches, and they are nested so deeply "
            f"that they count as {segments}; this page takes at most {2 * most}"
        )


def _count_items(arguments: Mapping[str, Any]) -> int:
    """Count the stages, plateaus and batches of a curve, but not those of curves within it."""
    count = 0
    for name in _LISTS:
        value = arguments.get(name)
        if isinstance(value, list):
            count += len(cast("list[Any]", value))
    return count


def check_count(name: str, values: Sequence[Any], most: int) -> None:
    """Raise a ValueError if the question has more than `most` curves or runs."""
    if len(values) > most:
        raise ValueError(Message(name, f" has {len(values)} items; the page takes at most {most}"))


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
    messages.extend(message_of(cast("Warning", warning.message)) for warning in caught)


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
