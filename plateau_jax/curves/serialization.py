"""Conversion of curves to plain JSON values and back.

A curve is a frozen dataclass whose fields are its arguments. A subclass of `Curve` registers itself
under its kind: `class Cooldown(Curve, kind="cooldown")`.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any, cast

from plateau_jax.validation.checks import Message, Path, is_ordered, message_of, must, short_repr
from plateau_jax.validation.curve_warning import suppress_warnings

MAX_DEPTH = 64
"""The greatest nesting depth of derived curves."""

CURVE_CLASSES: dict[str | None, type[Any]] = {}
"""The class for each value of `"kind"`; None is for mappings without this key."""

NESTED = "curve", "other"
"""The arguments that are curves."""


def arguments_of(curve: Any) -> dict[str, Any]:
    """Return the values of the fields of a curve."""
    return {field.name: getattr(curve, field.name) for field in fields(curve)}


def curve_to_dict(curve: Any) -> dict[str, Any]:
    """Return the kind and all arguments of a curve."""
    written: dict[str, Any] = {}
    if curve._kind is not None:
        written["kind"] = curve._kind
    for name, value in arguments_of(curve).items():
        written[name] = _to_plain_value(value)
    return written


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain_value(item) for item in cast("tuple[Any, ...]", value)]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return value


def curve_from_dict(cls: type[Any], arguments: Any, path: Path = ()) -> Any:
    """Build the curve that `curve_to_dict` or a configuration file describes.

    Args:
        cls: The class that the curve must have; `Curve` accepts any.
        arguments: The kind and the arguments of the curve.
        path: The path of this curve within the outermost one, for messages.
    """
    if not isinstance(arguments, Mapping):
        raise TypeError(must(path or "arguments", arguments, "be a mapping, as to_dict returns it"))
    if len(path) > MAX_DEPTH:
        raise ValueError(f"derived curves are nested more than {MAX_DEPTH} deep")

    values = dict(cast("Mapping[str, Any]", arguments))
    curve_class = _pop_class(values, path)
    class_name = curve_class.__name__
    if not issubclass(curve_class, cls):
        raise ValueError(f"these are the arguments of a {class_name}, not of a {cls.__name__}")
    names = list(inspect.signature(curve_class).parameters)
    for name, value in values.items():
        if name not in names:
            known = f"{class_name}, which has {', '.join(names)}"
            problem = f"{short_repr(name)} is not an argument of {known}"
            raise ValueError(Message((), problem).within(path))
        if name in NESTED:
            values[name] = curve_from_dict(object, value, (*path, name))
        else:
            values[name] = parse_numbers(value)

    try:
        # `to_dict` writes exactly the fields: such a curve has warned already.
        if values.keys() == {field.name for field in fields(curve_class)}:
            return rebuild_curve(curve_class, values)
        return curve_class(**values)
    except (TypeError, ValueError) as error:
        error.args = (message_of(error).within(path),)
        raise


def _pop_class(values: dict[str, Any], path: Path) -> type[Any]:
    """Remove the key "kind", if there is one, and return the class of the curve."""
    if "kind" not in values:
        if "stages" in values:
            return CURVE_CLASSES["staged"]
        return CURVE_CLASSES[None]
    kind = values.pop("kind")
    if not isinstance(kind, str) or kind not in CURVE_CLASSES:
        known = ", ".join(repr(name) for name in CURVE_CLASSES if name)
        raise ValueError(must((*path, "kind"), kind, f"be one of {known}, or left out"))
    return CURVE_CLASSES[kind]


def parse_numbers(value: Any, depth: int = 2) -> Any:
    """Replace strings that are numbers: the value itself, or items of sequences.

    Sequences may be nested `depth` deep.

    >>> parse_numbers([["1e4", "2%"], ["1e-4", "linear"]])
    [[10000, '2%'], [0.0001, 'linear']]
    """
    if isinstance(value, str):
        return _parse_number(value)
    if depth and is_ordered(value):
        return [parse_numbers(item, depth - 1) for item in cast("Iterable[Any]", value)]
    return value


def _parse_number(text: str) -> int | float | str:
    """Return the number in a text, or else the text: YAML reads 1e-4 as a string."""
    try:
        number = Decimal(text)
    except ArithmeticError:
        return text
    if not number.is_finite() or number.adjusted() >= 100:  # no endless digits
        return text
    if "." in text or number != number.to_integral_value():
        return float(number)
    return int(number)


def rebuild_curve(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """Build a curve from the fields of an earlier one, which has warned already."""
    with suppress_warnings():
        return cls(**values)
