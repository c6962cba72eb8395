"""Curves as plain JSON values: `{"kind": "plateau", "total_steps": 1000, …}`.

A description has the kind of the curve and its arguments. A subclass of `Curve` registers itself
under its kind: `class Cooldown(Curve, kind="cooldown")`.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Message, Path
from plateau_jax.saved_states.formats import DIFFERENT_VERSION

CURVE_CLASSES: dict[str, type[Any]] = {}
"""The class of each kind."""

NESTED = "curve", "other"
"""The arguments that are curves."""


def curve_from_dict(cls: type[Any], description: Any, path: Path = ()) -> Any:
    """Build the curve that `Curve.to_dict` or a configuration file describes.

    Args:
        cls: The class that the curve must have; `Curve` accepts any.
        description: The kind and the arguments of the curve.
        path: The path of this curve, for messages.
    """
    if not isinstance(description, Mapping):
        requirement = "be a mapping, as to_dict returns it"
        raise TypeError(checks.must(path or "arguments", description, requirement))

    values = dict(cast("Mapping[str, Any]", description))
    curve_class = _class_of_kind(values, path)
    if not issubclass(curve_class, cls):
        mismatch = f"these are the arguments of a {curve_class.__name__}, not of a {cls.__name__}"
        raise ValueError(Message((), mismatch).within(path))
    for name in NESTED:
        if name in values and type(values[name]) not in CURVE_CLASSES.values():
            values[name] = curve_from_dict(object, values[name], (*path, name))
    return build(curve_class, values, path, f"; or the curve was {DIFFERENT_VERSION}")


def _class_of_kind(values: dict[str, Any], path: Path) -> type[Any]:
    """Remove the kind, and return its class."""
    kinds = ", ".join(map(repr, CURVE_CLASSES))
    path = (*path, "kind")
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in CURVE_CLASSES:
        choices = f"be one of {kinds}; or the curve was {DIFFERENT_VERSION}"
        raise ValueError(checks.must(path, kind, choices))
    return CURVE_CLASSES[kind]


def build(
    constructor: Callable[..., Any],
    arguments: Mapping[str, Any],
    path: Path = (),
    hint: str = "",
) -> Any:
    """Call a constructor with arguments by name; errors name the argument by its path.

    The hint is added to the error of an unknown or missing argument.
    """
    signature = inspect.signature(constructor)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        known = ", ".join(signature.parameters)
        problem = f"{constructor.__qualname__}: {error}; its arguments are {known}{hint}"
        raise TypeError(Message((), problem).within(path)) from None
    try:
        return constructor(**arguments)
    except (TypeError, ValueError) as error:
        error.args = (checks.message_of(error).within(path),)
        raise
