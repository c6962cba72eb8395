"""Checks of arguments: each error names the argument, shows its value, and says what is right.

A message is text with the path of its argument, the same in Python, on the command line and on the
page. This raises "stages[0].to = 5 must lie in [0, 1]":

    raise ValueError(must(("stages", 0, "to"), 5, "lie in [0, 1]"))
"""

import json
import math
import operator
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from decimal import Decimal
from typing import Any, TypeVar, cast

import numpy as np

MAX_STEP = 2**31 - 1
"""The largest step, and the largest int32: tables and traced steps are int32."""

# The limits of normal float32: XLA flushes smaller numbers to 0.
_SMALLEST = 2.0**-126
_LARGEST = float(np.finfo(np.float32).max)

COUNT_DATA = (
    "To count samples or tokens, train with clock=DataClock(unit): a step is then `unit` of them"
)
"""Advice for a number of steps above `MAX_STEP`."""

_POWERS = {"k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}

_COUNT = re.compile(r"([0-9]{1,20})(\.[0-9]{1,20})?\s*([kMBT])")
"""A number with the letter of a power of 1000. K, m and b may mean 1024, a thousandth, a byte."""

Count = int | str
"""The type of a number of steps, samples or tokens: an integer, or text such as "10k"."""

A_COUNT = "be an integer or text such as '10k', '5M' or '2B'"

_Choice = TypeVar("_Choice", bound=str)

Path = tuple[str | int, ...]
"""An argument, or an item or a part of it, such as `("plateaus", 1, "start")`."""


class Message(str):
    """A message that begins with an argument; by its path the design page finds the field.

    >>> Message(("plateaus", 1, "start"), " = 'x' must be a number")
    "plateaus[1].start = 'x' must be a number"
    """

    path: Path
    text: str
    """The text after the path."""

    def __new__(cls, path: Path | str, text: str) -> "Message":
        if isinstance(path, str):
            path = (path,)
        message = super().__new__(cls, _spell(path) + text)
        message.path = path
        message.text = text
        return message

    def __getnewargs__(self) -> Any:
        return self.path, self.text

    def within(self, path: Path) -> "Message":
        """Return the same message about an argument of the curve at this path."""
        text = self.text
        if path and not self.path:
            text = f": {text}"
        return Message((*path, *self.path), text)


def _spell(path: Path) -> str:
    spelled = ""
    for key in path:
        if isinstance(key, int):
            spelled += f"[{key}]"
        else:
            spelled += f".{key}"
    return spelled.removeprefix(".")


def message_of(error: BaseException) -> Message:
    """Return the message of an error or a warning; those of other libraries have no path."""
    if error.args and isinstance(error.args[0], Message):
        return error.args[0]
    return Message((), str(error))


def must(path: Path | str, value: Any, requirement: str) -> Message:
    """Return the message that an argument must be something."""
    return Message(path, f" = {short_repr(value)} must {requirement}")


def plural(number: int, noun: str) -> str:
    """Return a number with a noun, such as "1 update" or "2 updates"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def short_repr(value: Any) -> str:
    """Return the repr of a value for an error message, on one line and cut to 200 characters."""
    return short_text(repr(value))


def short_text(text: str, most: int = 200) -> str:
    """Return a text for an error message, on one line and cut to `most` characters."""
    line = " ".join(text.split())
    if len(line) > most:
        return f"{line[: most - 3]}..."
    return line


def integer(path: Path | str, value: Any, requirement: str = "be an integer") -> int:
    """Return the value as a Python int; reject bool, float and str."""
    if not is_not_real(value):  # operator.index accepts bools, also those of torch
        with suppress(TypeError):
            return operator.index(value)
    raise TypeError(must(path, value, requirement))


def at_least(path: Path | str, value: Any, least: int, requirement: str = "be an integer") -> int:
    """Return the value as a Python int that is at least `least`."""
    value = integer(path, value, requirement)
    if value < least:
        raise ValueError(must(path, value, f"be at least {least}"))
    return value


def count(
    path: Path | str, value: Any, least: int, most: int | None = None, requirement: str = A_COUNT
) -> int:
    """Return a number of steps, samples or tokens as a Python int in `least` … `most`.

    >>> count("count", "1.5M", 1), count("count", "1e4", 1), count("count", 5, 1)
    (1500000, 10000, 5)
    """
    if isinstance(value, str):
        value = _parse_count(path, value)
    value = integer(path, value, requirement)
    if most is None:
        return at_least(path, value, least)
    if most == MAX_STEP and value > most:
        raise ValueError(must(path, value, f"be at most {most}. {COUNT_DATA}"))
    return in_range(path, value, least, most)


def _parse_count(path: Path | str, text: str) -> int | float | str:
    """Return the number in a text, also with a letter; else the text."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return parse_number(text)
    digits, decimals, letter = match.groups("")
    numerator = int(digits + decimals[1:]) * _POWERS[letter]
    number, rest = divmod(numerator, 10 ** len(decimals[1:]))
    if rest:
        raise ValueError(must(path, text, f"be a whole number; {letter} is {_POWERS[letter]}"))
    return number


def parse_json(text: str | bytes) -> Any:
    """Return the value of a text in JSON; say of an empty or incomplete text what it is."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        length = len(error.doc.rstrip())
        if length == 0:
            raise ValueError("the file is empty") from None
        if error.msg.startswith("Unterminated") or error.pos >= length:
            raise ValueError(f"the file ends too early: {error}") from None
        raise ValueError(f"this is not JSON: {error}") from None


def parse_number(text: str) -> int | float | str:
    """Return the number in a text, or else the text. YAML reads 1e4 as a string."""
    try:
        number = Decimal(text)
    except ArithmeticError:
        return text
    if not number.is_finite() or not -400 < number.adjusted() < 100:  # no endless digits
        return text
    if "." in text or number != number.to_integral_value():
        return float(number)
    return int(number)


def in_range(path: Path | str, value: Any, least: int, most: int) -> int:
    """Return the value as a Python int in `least` … `most`."""
    value = integer(path, value)
    if not least <= value <= most:
        raise ValueError(must(path, value, f"lie in {least} … {most}"))
    return value


def positive_int(path: Path | str, value: Any) -> int:
    """Return the value as a Python int in 1 … 2³¹ - 1."""
    return in_range(path, value, 1, MAX_STEP)


def number(path: Path | str, value: Any, requirement: str = "be a number") -> int | float:
    """Return the value as a Python int or float; a NumPy float as the decimal that it prints as."""
    if type(value) not in (int, float):
        if _is_scalar_array(value):
            value = np.asarray(value)[()]
        if isinstance(value, np.integer | np.floating):
            # Through str, because float(np.float32(0.1)) is 0.10000000149011612.
            plain = int if isinstance(value, np.integer) else float
            value = plain(str(cast("Any", value)))
    if isinstance(value, str) and not isinstance(parse_number(value), str):
        # YAML reads 1e-4 as text, and 0.0001 as a number.
        requirement = f"{requirement}, not text: write {Decimal(value):f}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(must(path, value, requirement))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(must(path, value, "be finite"))
    # Never a subclass, whose arithmetic may differ.
    if isinstance(value, int):
        return int(value)
    return float(value) + 0.0  # turns -0.0 into 0.0


def float32(path: Path | str, value: Any) -> int | float:
    """Return the value as `number` does, if float32 can hold it."""
    value = number(path, value)
    if abs(value) > _LARGEST:
        raise ValueError(must(path, value, "not exceed what float32 can hold"))
    return value


def ratio(path: Path | str, value: Any, requirement: str = "lie in [0, 1]") -> int | float:
    """Return the value as `number` does, if it lies in [0, 1]."""
    value = number(path, value)
    if not 0 <= value <= 1:
        raise ValueError(must(path, value, requirement))
    return value


def one_of(path: Path | str, value: Any, allowed: tuple[_Choice, ...]) -> _Choice:
    """Return the choice that the value equals, as a plain string."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(must(path, value, f"be one of {', '.join(map(repr, allowed))}"))
    return allowed[allowed.index(value)]


def boolean(path: Path | str, value: Any, requirement: str = "be a bool") -> bool:
    """Return the value if it is True or False."""
    if type(value) is not bool:
        raise TypeError(must(path, value, requirement))
    return value


def pairs(name: str, value: Any, meaning: str) -> Iterator[tuple[Path, Any, Any]]:
    """Yield (path, first, second) for each pair in a sequence; the errors say what a pair means."""
    if not is_ordered(value):
        raise TypeError(must(name, value, f"be a sequence of pairs {meaning}"))
    for index, pair in enumerate(value):
        path = name, index
        items = tuple(pair) if is_ordered(pair) else ()
        if len(items) != 2:
            raise TypeError(must(path, pair, f"be a pair {meaning}"))
        yield path, *items


def is_ordered(value: Any) -> bool:
    """Return True if the value has items in an order that the user may have chosen."""
    if getattr(value, "ndim", 1) == 0:  # an array without dimensions counts as `Iterable` too
        return False
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Set | Mapping)


def peak(path: Path | str, value: Any) -> np.float32:
    """Return a peak learning rate, rounded to float32: 0, or at least 2⁻¹²⁶ and finite."""
    jax_core = getattr(sys.modules.get("jax"), "core", None)  # without importing it
    if isinstance(value, getattr(jax_core, "Tracer", ())):
        advice = "call optax_schedule(curve, peak_value), or multiply multiplier(curve.table, step)"
        raise TypeError(
            Message(path, f" is traced by JAX, but a curve computes on the host: {advice}")
        )
    scalar = _unwrap_scalar(value)
    lr = None
    if not is_not_real(scalar):
        with suppress(TypeError, ValueError):
            lr = float(scalar)
    if lr is None:
        raise TypeError(must(path, value, "be a number"))
    with np.errstate(over="ignore"):
        rounded = np.float32(lr)
    # A saved peak is a decimal: that of the largest float32 may be a little above it.
    is_normal = lr >= _SMALLEST and rounded <= _LARGEST
    if lr != 0 and not is_normal:
        raise ValueError(must(path, value, "be 0, or a finite float32 of at least 2**-126"))
    return abs(rounded)  # -0.0 is accepted too


def metric(name: str, value: Any) -> np.float32:
    """Return a real number or scalar array, rounded to float32; infinite if it is too large."""
    scalar = _unwrap_scalar(value)
    if isinstance(scalar, bool) or not isinstance(scalar, int | float):
        raise TypeError(must(name, value, "be a real scalar"))
    with np.errstate(over="ignore"):
        return np.float32(scalar)


def _unwrap_scalar(value: Any) -> Any:
    """Return the Python number in an array without dimensions; any other value unchanged."""
    if _is_scalar_array(value):
        return value.item()
    return value


def _is_scalar_array(value: Any) -> bool:
    """Return True for an array or tensor without dimensions; not if masked, since it becomes 0."""
    return getattr(value, "ndim", None) == 0 and not hasattr(value, "mask")


def is_not_real(value: Any) -> bool:
    """Return True for a bool, a complex number or text, or such a scalar of NumPy, JAX or torch."""
    if isinstance(value, (bool, complex, str, bytes)):
        return True
    dtype = str(getattr(value, "dtype", ""))
    return "bool" in dtype or "complex" in dtype


def clamp_steps(step: Any) -> np.ndarray:
    """Return integers of any size as int32, clamped to 0 … 2³¹ - 1."""
    jax = sys.modules.get("jax")  # without importing it
    if isinstance(step, getattr(jax, "Array", ())) or hasattr(step, "__jax_array__"):
        raise TypeError(
            "step is a JAX array, which a curve does not accept: write optax_schedule(curve, "
            "peak_value), or multiplier(curve.table, step) in your own function; on the host, as "
            "in jax.debug.callback, pass int(step); under optax.inject_hyperparams, write "
            'optax.inject_hyperparams(scale_by_curve, static_args=("curve", "clock"))'
        )
    if hasattr(step, "dtype") or isinstance(step, range):
        array = np.asarray(step)
    else:
        # As objects: NumPy turns [True, 2] into integers, but [-1, 2**63] and [] into floats.
        array = np.asarray(step, object)
    # By name, because the 4-bit integers that JAX adds are not of NumPy's integer kinds.
    if not array.dtype.name.removeprefix("u").startswith("int"):
        try:
            clamped = [min(max(integer("step", item), 0), MAX_STEP) for item in array.flat]
        except TypeError:
            message = f"step must be an integer or an array of integers, not {short_repr(step)}"
            raise TypeError(message) from None
        return np.array(clamped, np.int32).reshape(array.shape)
    if array.dtype != np.uint64:
        array = array.astype(np.int64)
    return np.clip(array, 0, MAX_STEP).astype(np.int32)
