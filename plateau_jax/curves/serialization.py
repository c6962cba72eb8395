"""Conversion of curves to plain JSON values and back.

A curve is a frozen dataclass whose fields are its arguments. A subclass of `Curve` registers itself
under its kind: `class Cooldown(Curve, kind="cooldown")`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, cast

from plateau_jax.arguments.checks import (
    Message,
    Path,
    at_least,
    is_ordered,
    message_of,
    must,
    parse_number,
    short_repr,
    unwrap_config,
)
from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.saved_states.formats import DIFFERENT_VERSION, arguments_of

FORMAT = 1
"""The current format. A description may state it as "format"; `to_dict` leaves it out.

The entries are the fields of the dataclass.
"""

MAX_DEPTH = 64
"""The greatest nesting depth of derived curves."""

CURVE_CLASSES: dict[str | None, type[Any]] = {}
"""The class for each `"kind"` that `to_dict` writes, and for None: a mapping without this key."""

CONSTRUCTORS: dict[str, Callable[..., Any]] = {}
"""The class method that builds the curve, for each further value of `"kind"`."""

NESTED = "curve", "other"
"""The arguments that are curves."""


def plain_arguments_of(curve: Any) -> dict[str, Any]:
    """Return the values of the fields of a curve as plain JSON values."""
    return {name: _to_plain_value(value) for name, value in arguments_of(curve).items()}


def curve_to_dict(curve: Any) -> dict[str, Any]:
    """Return the kind and the arguments of a curve."""
    plain = {name: _to_plain_value(value) for name, value in arguments_of(curve).items()}
    if curve._kind is None:
        return plain
    return {"kind": curve._kind, **plain}


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain_value(item) for item in cast("tuple[Any, ...]", value)]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return value


def describes_curve(value: Mapping[Any, Any]) -> bool:
    """Return True for the arguments of one curve, False for a mapping from names to curves."""
    arguments = {"kind", "format"}
    for build in (*CURVE_CLASSES.values(), *CONSTRUCTORS.values()):
        arguments.update(inspect.signature(build).parameters)
    for name, item in value.items():
        is_mapping = isinstance(unwrap_config(item), Mapping)
        is_curve = is_mapping or type(item) in CURVE_CLASSES.values()
        if name in arguments and not is_curve:
            return True
    return False


def curve_from_dict(cls: type[Any], arguments: Any, path: Path = (), depth: int = 0) -> Any:
    """Build the curve that `curve_to_dict` or a configuration file describes.

    Args:
        cls: The class that the curve must have; `Curve` accepts any.
        arguments: The kind and the arguments of the curve. One that is None counts as left out.
        path: The path of this curve, for messages.
        depth: The number of curves that this one is nested in.
    """
    arguments = unwrap_config(arguments)
    if not isinstance(arguments, Mapping):
        raise TypeError(must(path or "arguments", arguments, "be a mapping, as to_dict returns it"))
    if depth > MAX_DEPTH:
        raise ValueError(f"derived curves are nested more than {MAX_DEPTH} deep")

    given = dict(cast("Mapping[str, Any]", arguments))
    _pop_format(given, path)
    curve_class, build = _pop_kind(given, path)
    # gin's subclass builds the original class.
    if not issubclass(curve_class, cls) and not issubclass(cls, curve_class):
        mismatch = f"these are the arguments of a {curve_class.__name__}, not of a {cls.__name__}"
        raise ValueError(Message((), mismatch).within(path))
    parameters = inspect.signature(build).parameters
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in parameters:
            known = f"{build.__qualname__}, which has {', '.join(parameters)}"
            problem = (
                f"{short_repr(name)} is not an argument of {known}; or it was {DIFFERENT_VERSION}"
            )
            raise ValueError(Message((), problem).within(path))
        if value is None:
            continue
        if name not in NESTED:
            values[name] = parse_numbers(value)
        elif type(value) in CURVE_CLASSES.values():
            values[name] = value
        else:
            values[name] = curve_from_dict(object, value, (*path, name), depth + 1)
    _check_complete(build, values, path)

    try:
        # `to_dict` writes all fields: such a curve has warned already.
        if _are_all_fields(values, curve_class):
            return rebuild_curve(curve_class, values)
        return build(**values)
    except (TypeError, ValueError) as error:
        error.args = (message_of(error).within(path),)
        raise


def _pop_format(given: dict[str, Any], path: Path) -> None:
    number = given.pop("format", None)
    if number is not None and at_least((*path, "format"), number, 1) != FORMAT:
        problem = f"the curve has format {number}, so it was {DIFFERENT_VERSION}"
        raise ValueError(Message((), problem).within(path))


def _pop_kind(given: dict[str, Any], path: Path) -> tuple[type[Any], Callable[..., Any]]:
    """Remove the key "kind", if there is one; return the class of the curve and its constructor."""
    kind = given.pop("kind", None)
    if kind is None:
        curve_class = _class_without_kind(given)
        return curve_class, curve_class
    if isinstance(kind, str) and kind in CURVE_CLASSES:
        return CURVE_CLASSES[kind], CURVE_CLASSES[kind]
    if isinstance(kind, str) and kind in CONSTRUCTORS:
        build = CONSTRUCTORS[kind]
        return cast("Any", build).__self__, build
    known = ", ".join(repr(name) for name in (*CURVE_CLASSES, *CONSTRUCTORS) if name)
    choices = f"be one of {known}, or left out; or the curve was {DIFFERENT_VERSION}"
    raise ValueError(must((*path, "kind"), kind, choices))


def _class_without_kind(given: Mapping[str, Any]) -> type[Any]:
    if "stages" in given:
        return CURVE_CLASSES["staged"]
    # `dataclasses.asdict`, and OmegaConf for a curve in a list, write the fields without the kind.
    for curve_class in CURVE_CLASSES.values():
        if _are_all_fields(given, curve_class):
            return curve_class
    return CURVE_CLASSES[None]


def _are_all_fields(given: Mapping[str, Any], curve_class: type[Any]) -> bool:
    """Return True if these are the fields of a curve."""
    return set(given) == {field.name for field in fields(curve_class)}


def _check_complete(build: Callable[..., Any], values: Mapping[str, Any], path: Path) -> None:
    """Raise a TypeError that names the first missing argument, if there is one."""
    required: list[str] = []
    for name, parameter in inspect.signature(build).parameters.items():
        if parameter.default is parameter.empty:
            required.append(name)
    for name in required:
        if name not in values:
            needed = f"{build.__qualname__} needs {', '.join(required)}"
            raise TypeError(Message((*path, name), f" is missing: {needed}"))


def parse_numbers(value: Any, depth: int = 2) -> Any:
    """Replace strings that are numbers: the value itself, or items of sequences.

    Sequences may be nested `depth` deep.

    >>> parse_numbers([["1e4", "2%"], ["1e-4", "linear"]])
    [[10000, '2%'], [0.0001, 'linear']]
    """
    if isinstance(value, str):
        return parse_number(value)
    if depth and is_ordered(value):
        return [parse_numbers(item, depth - 1) for item in cast("Iterable[Any]", value)]
    return value


def rebuild_curve(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """Build a curve from the fields of an earlier one, which has warned already."""
    with suppress_warnings():
        return cls(**values)
