"""Conversion of curves to plain JSON values and back.

A curve is a frozen dataclass whose fields are its arguments: `class Cooldown(Curve,
kind="cooldown")`.
"""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from decimal import Decimal
from typing import Any, cast

from plateau_jax.validation.checks import Message, Path, is_ordered, message_of, must, short_repr
from plateau_jax.validation.curve_warning import suppress_warnings

MAX_DEPTH = 64
"""The greatest nesting depth of derived curves."""

KINDS: dict[str | None, type[Any]] = {}
"""The class of each `"kind"`; None for mappings without this key."""

NESTED = "curve", "other"
"""The arguments that are curves."""


def arguments_of(curve: Any) -> dict[str, Any]:
    """Return the values of the fields of a curve."""
    return {field.name: getattr(curve, field.name) for field in fields(curve)}


def curve_to_dict(curve: Any) -> dict[str, Any]:
    """Return the kind and all arguments of a curve."""
    kind = {} if curve._kind is None else {"kind": curve._kind}
    return kind | {name: _to_plain_value(value) for name, value in arguments_of(curve).items()}


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain_value(item) for item in cast("tuple[Any, ...]", value)]
    return value.to_dict() if hasattr(value, "to_dict") else value


def curve_from_dict(cls: type[Any], arguments: Any, path: Path = ()) -> Any:
    """Build the curve that `curve_to_dict` or a configuration file describes, of the kind `cls` or any.

    `path` is that of a curve within another one, for messages.
    """
    if not isinstance(arguments, Mapping):
        raise TypeError(must(path or "arguments", arguments, "be a mapping, as to_dict returns it"))
    if len(path) > MAX_DEPTH:
        raise ValueError(f"derived curves are nested more than {MAX_DEPTH} deep")
    values = dict(cast("Mapping[str, Any]", arguments))
    kind = "staged" if "stages" in values else None
    if "kind" in values:
        kind = values.pop("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            known = ", ".join(repr(name) for name in KINDS if name)
            raise ValueError(must((*path, "kind"), kind, f"be one of {known}, or left out"))
    if not issubclass(KINDS[kind], cls):
        raise ValueError(
            f"these are the arguments of a {KINDS[kind].__name__}, not of a {cls.__name__}"
        )
    cls = KINDS[kind]
    names = list(inspect.signature(cls).parameters)
    for name, value in values.items():
        if name not in names:
            problem = f"{short_repr(name)} is not an argument of {cls.__name__}, which has {', '.join(names)}"
            raise ValueError(Message((), problem).within(path))
        values[name] = (
            curve_from_dict(object, value, (*path, name))
            if name in NESTED
            else parse_numbers(value)
        )
    # `to_dict` writes all fields and nothing else: such a curve has warned already.
    is_saved = values.keys() == {field.name for field in fields(cls)}
    try:
        with suppress_warnings() if is_saved else nullcontext():
            return cls(**values)
    except (TypeError, ValueError) as error:
        error.args = (message_of(error).within(path),)
        raise


def parse_numbers(value: Any, depth: int = 2) -> Any:
    """Return the numbers that strings say, also in a sequence of pairs; YAML reads 1e-4 as a string.

    >>> parse_numbers([["1e4", "2%"], ["1e-4", "linear"]])
    [[10000, '2%'], [0.0001, 'linear']]
    """
    if isinstance(value, str):
        try:
            number = Decimal(value)
        except ArithmeticError:
            return value
        if not number.is_finite() or number.adjusted() >= 100:  # no endless digits
            return value
        is_integer = "." not in value and number == number.to_integral_value()
        return int(number) if is_integer else float(number)
    if depth and is_ordered(value):
        return [parse_numbers(item, depth - 1) for item in cast("Iterable[Any]", value)]
    return value


def rebuild_curve(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """Rebuild a copied or pickled curve from its fields, without warnings."""
    with suppress_warnings():
        return cls(**values)
