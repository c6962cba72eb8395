"""Numbers as configuration files and command lines give them: strings, and types of the parser."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any, cast


def parse_integer(text: str) -> int | None:
    """Return the integer that the text says, in any form that the design page accepts; None if it says none.

    >>> [parse_integer(text) for text in ("10000", "1e4", "10_000", "2%", "0.5")]
    [10000, 10000, 10000, None, None]
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = Decimal(text)
        if number == number.to_integral_value() and number.adjusted() < 100:  # no endless digits
            return int(number)
    except ArithmeticError:  # not a number, or not a finite one
        pass
    return None


def parse_number(text: str) -> int | float | None:
    """Return the finite number that the text says; None if it says none.

    YAML 1.1 reads 1e-4 as a string, because it has no point:

    >>> [parse_number(text) for text in ("1e-4", "1", "nan", "linear")]
    [0.0001, 1, None, None]
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def read_numbers(
    arguments: Mapping[str, Any], *, steps: Iterable[str] = (), numbers: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the arguments with Python's numbers under the keys that hold steps or numbers.

    Other values stay as they are, for the constructor to check.
    """
    values = dict(arguments)
    for names, parse in ((steps, parse_integer), (numbers, parse_number)):
        values |= {name: to_number(values[name], parse) for name in names if name in values}
    return values


def to_number(value: Any, parse: Callable[[str], Any], depth: int = 2) -> Any:
    """Parse a string, also in a sequence of pairs, and make subclasses of int and float plain."""
    if isinstance(value, str):
        number = parse(value)
        return value if number is None else number
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if isinstance(value, int) else float(value)
    if depth and isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [to_number(item, parse, depth - 1) for item in cast("Sequence[Any]", value)]
    return value
