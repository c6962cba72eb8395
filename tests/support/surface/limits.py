"""The numbers that an argument may be: the first and the last one, found by bisection.

Integers are searched up to 2⁸⁰. Floats are searched by their bits, so that the number next to a
limit is rejected.
"""

import math
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from support.surface.outcomes import Function, call_text
from support.surface.shown import public_class

Number = int | float

_LARGEST: dict[type, Number] = {int: 2**80, float: math.nextafter(math.inf, 0)}


@dataclass(frozen=True)
class Varied:
    """Stands for an argument that is varied."""

    accepted: Number
    """A number that is accepted. If it is an integer, only integers are tried."""
    template: str = ""
    """The text with the number, for one within a string, such as "1-x^{}"."""


def accepted(function: Function, *arguments: Any, **options: Any) -> str:
    """Return a call, with the limits of what it accepts in place of its `Varied` argument."""
    varied_arguments: list[Varied] = []

    def call(number: Number) -> object:
        def fill_in(varied: Varied) -> object:
            if varied.template:
                return varied.template.format(number)
            return number

        return function(*_replace(arguments, fill_in), **_replace(options, fill_in))

    def name_limits(varied: Varied) -> object:
        varied_arguments.append(varied)
        if varied.template:
            return _Name(repr(varied.template))
        return _Name("{}")

    shown_arguments = _replace(arguments, name_limits)
    shown_options = _replace(options, name_limits)
    [varied] = varied_arguments
    text = call_text(function, shown_arguments, shown_options)
    return accepted_by(text, call, varied.accepted)


class _Name:
    """An argument that is shown as this text, as a function is by its name."""

    def __init__(self, text: str) -> None:
        self.__name__ = text


def _replace(argument: Any, replacement: Callable[[Varied], object]) -> Any:
    """Replace the varied argument, also within lists, tuples and dictionaries."""
    if isinstance(argument, Varied):
        return replacement(argument)
    if isinstance(argument, dict):
        options = cast("dict[str, Any]", argument)
        return {name: _replace(option, replacement) for name, option in options.items()}
    if type(argument) in (list, tuple):
        return type(argument)([_replace(item, replacement) for item in argument])
    return argument


def accepted_by(text: str, call: Callable[[Any], object], accepted_number: Number) -> str:
    """Return a text with the limits of the numbers that a function accepts in place of "{}"."""
    kind = type(accepted_number)

    def error_at(index: int) -> str:
        return _error_of(call, _number_at(index, kind))

    largest = _LARGEST[kind]
    start = _index_of(accepted_number)
    assert not error_at(start), text
    first, error_below = _limit(error_at, start, _index_of(-largest))
    last, error_above = _limit(error_at, start, _index_of(largest))
    limits = f"{_shown_limit(first, kind)} … {_shown_limit(last, kind)}".strip()
    errors = sorted({error_below, error_above} - {""})
    line = text.replace("{}", limits)
    if errors:
        line += f", else {' or '.join(errors)}"
    return line


def _limit(error_at: Callable[[int], str], start: int, end: int) -> tuple[int | None, str]:
    """Return the last index without an error on the way to the end, and the error after it."""
    if not error_at(end):
        return None, ""
    without_error = start
    with_error = end
    while abs(with_error - without_error) > 1:
        middle = (without_error + with_error) // 2
        if error_at(middle):
            with_error = middle
        else:
            without_error = middle
    return without_error, error_at(with_error)


def _error_of(call: Callable[[Any], object], number: Number) -> str:
    """Return the type of the error with which a number is rejected, or an empty string."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(number)
        except Exception as error:
            return public_class(type(error))
    return ""


def _shown_limit(index: int | None, kind: type) -> str:
    if index is None:
        return ""
    return repr(_number_at(index, kind))


def _index_of(number: Number) -> int:
    """Return an integer that grows with the number, by one to the next float."""
    if isinstance(number, int):
        return number
    [bits] = struct.unpack("<q", struct.pack("<d", abs(number)))
    return int(math.copysign(1, number)) * bits


def _number_at(index: int, kind: type) -> Number:
    if kind is int:
        return index
    [number] = struct.unpack("<d", struct.pack("<q", abs(index)))
    if index < 0:
        return -number
    return number
