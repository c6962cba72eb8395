"""A call as a line of text: its arguments, and what comes of it."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from support.surface.shown import argument_text, public_class, with_shape

Function = Callable[..., Any]

_PROMISED_WARNINGS = ("CurveWarning", "UserWarning")
"""Others come from libraries: they warn of what they will change."""


def outcome(function: Function, *arguments: Any, **options: Any) -> str:
    """Return the type of a call's result or of its error, and the types of its warnings."""
    return outcome_of(call_text(function, arguments, options), function, *arguments, **options)


def outcome_of(text: str, function: Function, *arguments: Any, **options: Any) -> str:
    """Return the same of a function without a public name, which `text` describes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            line = f"{text} -> {with_shape(function(*arguments, **options))}"
        except Exception as error:
            line = f"{text} raises {public_class(type(error))}"
    for category in sorted({warning.category.__name__ for warning in caught}):
        if category in _PROMISED_WARNINGS:
            line += f" and warns {category}"
    return line


def noting(note: str, line: str) -> str:
    """Return a line with what its text does not show."""
    return f"{line}, {note}"


def attribute_of(name: str, function: Function, *arguments: Any, **options: Any) -> str:
    """Return an attribute of what a call returns."""
    result = function(*arguments, **options)
    return f"{call_text(function, arguments, options)}.{name} = {getattr(result, name)!r}"


def entry_of(name: str, function: Function, *arguments: Any, **options: Any) -> str:
    """Return an entry of the dictionary that a call returns."""
    result = function(*arguments, **options)
    return f"{call_text(function, arguments, options)}[{name!r}] = {result[name]!r}"


def call_text(function: Function, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """Return a call as a program writes it."""
    items = [argument_text(argument) for argument in arguments]
    items += [f"{name}={argument_text(option)}" for name, option in options.items()]
    return f"{_public_name(function)}({', '.join(items)})"


def _public_name(function: Any) -> str:
    """Return the name of a class, a function or a method; of an object, that of its class."""
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    package = function.__module__.partition(".")[0]
    return f"{package}.{function.__qualname__}"
