"""The first and the last number that an argument may be, found by bisection.

Integers are searched up to 2⁸⁰. Floats are searched by their bits, so that the number next to a
limit is rejected.
"""

import math
import struct
import warnings
from collections.abc import Callable

from support.surface.shown import public_class

Number = int | float

_LARGEST: dict[type, Number] = {int: 2**80, float: math.nextafter(math.inf, 0)}


class Varied:
    """`varied(10)` in a call is 10 at first, and later the number to try."""

    def __init__(self) -> None:
        self.number: Number | None = None

    def __call__(self, accepted: Number) -> Number:
        """Return the number. If what is accepted is an integer, only integers are tried."""
        if self.number is None:
            self.number = accepted
        return self.number


varied = Varied()


def limits(call: Callable[[], object]) -> str:
    """Return the limits of the numbers that a call accepts, and the error beyond them."""
    accepted = varied.number
    assert accepted is not None
    kind = type(accepted)

    def error_at(index: int) -> str:
        varied.number = _number_at(index, kind)
        return _error_of(call)

    start = _index_of(accepted)
    assert not error_at(start), f"{accepted} is rejected"
    largest = _LARGEST[kind]
    first, error_below = _limit(error_at, start, _index_of(-largest))
    last, error_above = _limit(error_at, start, _index_of(largest))
    text = f"{_shown_limit(first, kind)} … {_shown_limit(last, kind)}".strip()
    errors = sorted({error_below, error_above} - {""})
    if errors:
        text += f", else {' or '.join(errors)}"
    return text


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


def _error_of(call: Callable[[], object]) -> str:
    """Return the type of the error with which a number is rejected, or an empty string."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
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
