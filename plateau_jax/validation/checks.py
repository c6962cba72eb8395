"""Checks of arguments: each error names the argument, shows its value, and says what would be right."""

import math
import operator
import re
import reprlib
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, MappingView, Sequence, Set
from contextlib import contextmanager
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, TypeVar, cast

import numpy as np

from plateau_jax.validation.messages import (
    INTEGER,
    MAX_INT32,
    WRITE,
    Message,
    Part,
    Place,
    Setting,
    Subject,
    Wording,
    Words,
    choices,
    code,
    message_of,
    short_repr,
    shown,
    within,
)

MAX_STEP = 2**31 - 1
"""The largest int32: tables and traced steps are int32."""

SMALLEST_PEAK = 2.0**-126
"""The smallest normal float32: XLA flushes smaller numbers to 0."""

SEQUENCE = Wording("a sequence", "a list")

_LEAST_PEAK = Wording("finite and at least 2**-126", "at least 1.2e-38")
_TOO_LARGE = Wording(" is more than float32 can hold", " is too large")

_Choice = TypeVar("_Choice", bound=str)


def must(place: Place | str, value: Any, *requirement: Part, advice: Part = "") -> Message:
    """Return the message that a value must be something, with advice on what to write, if there is some."""
    if advice:
        # Readers of plain words do not see advice in code; they do not see its colon either.
        is_code = isinstance(advice, Wording) and not advice.plain
        advice = code(": ", advice) if is_code else Message(": ", advice)
    return Message(Subject(place, value), " must ", *requirement, advice)


@contextmanager
def renamed_arguments(**names: str) -> Generator[None]:
    """Name the arguments in errors as the calling function does.

    >>> with renamed_arguments(total_steps="decay_steps"):
    ...     positive_int("total_steps", 10.5)
    Traceback (most recent call last):
        ...
    TypeError: decay_steps = 10.5 must be an integer: write // in place of /
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(Words(names).text(message_of(error))) from None


def integer(name: Place | str, value: Any, advice: Part = "") -> int:
    """Return the value as a Python int; reject bool, float and str, with advice on what to write."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        advice = advice or _advice_for_float(value)
        raise TypeError(must(name, value, "be ", INTEGER, advice=advice)) from None


def _advice_for_float(value: Any) -> Part:
    """Suggest what to write if a number of steps is a float; "" if it is not a finite one."""
    steps = float(cast("Any", value)) if isinstance(value, float | np.floating) else math.nan
    if not math.isfinite(steps):
        return ""
    if steps.is_integer():
        return Message(WRITE, " ", int(steps), code(", or // in place of /"))
    return code("write // in place of /")


def at_least(name: Place | str, value: Any, least: int, advice: Part = "") -> int:
    """Return the value as a Python int that is at least `least`."""
    value = integer(name, value, advice)
    if value < least:
        raise ValueError(must(name, value, "be at least ", least))
    return value


def positive_int(name: Place | str, value: Any, advice: Part = "") -> int:
    """Return the value as a Python int in 1 … 2³¹ - 1."""
    value = integer(name, value, advice)
    if not 1 <= value <= MAX_STEP:
        raise ValueError(must(name, value, within(1, MAX_INT32)))
    return value


def _unwrap_scalar(value: Any) -> Any:
    """Return the NumPy scalar in an array without dimensions, NumPy's or JAX's; any other value unchanged."""
    return np.asarray(value)[()] if getattr(value, "ndim", None) == 0 else value


def number(name: Place | str, value: Any, advice: Part = "") -> int | float:
    """Return the value as a Python int or float; a NumPy float becomes the decimal that it prints as."""
    value = _unwrap_scalar(value)
    if isinstance(value, np.integer | np.floating):
        # Through str, because float(np.float32(0.1)) is 0.10000000149011612.
        value = (int if isinstance(value, np.integer) else float)(str(cast("Any", value)))
    if isinstance(value, bool) or not isinstance(value, int | float):
        if isinstance(value, str) and re.fullmatch(r"[-+]?\d{1,9},\d{1,9}(e[-+]?\d{1,3})?", value.strip()):
            advice = Message(WRITE, " ", value.strip().replace(",", "."))
        if isinstance(value, Fraction | Decimal):
            advice = code(f"write float({short_repr(value)})")
        raise TypeError(must(name, value, "be a number", advice=advice))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(must(name, value, "be finite"))
    return value + 0  # no -0.0, no subclass


def float32(name: Place | str, value: Any) -> int | float:
    """Return the value as `number` does, if float32 can hold it."""
    value = number(name, value)
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise ValueError(Message(Subject(name, value), _TOO_LARGE))
    return value


def ratio(name: Place | str, value: Any) -> int | float:
    """Return the value as `number` does, if it lies in [0, 1]."""
    value = number(name, value, _advice_for_percentage(value))
    if not 0 <= value <= 1:
        raise ValueError(must(name, value, within(0, 1, "[]")))
    return value


def _advice_for_percentage(value: Any) -> str:
    """Suggest the fraction if a percentage was written, as in "10%"; "" otherwise."""
    written = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,20})?)\s*%\s*", value) if isinstance(value, str) else None
    if not written or Decimal(written[1]) > 100:
        return ""
    return Message(WRITE, " ", float(Decimal(written[1]) / 100))


def one_of(name: Place | str, value: Any, allowed: tuple[_Choice, ...], advice: Part = "") -> _Choice:
    """Return the choice that the value equals, as a plain string."""
    if not isinstance(value, str) or value not in allowed:
        advice = Message("; ", advice) if advice else did_you_mean(value, allowed)
        raise ValueError(Message(must(name, value, "be one of ", *choices(allowed)), advice))
    return allowed[allowed.index(value)]


def did_you_mean(written: Any, allowed: Sequence[str], show: Callable[[str], Part] = shown) -> str:
    """Suggest the choices that are similar to what was written; "" if none is."""
    if not isinstance(written, str) or not written:
        return ""
    folded = written.casefold()
    completed = [choice for choice in allowed if choice.startswith(folded)]
    likely = completed[:1] or get_close_matches(folded, allowed, n=2)
    return Message(": did you mean ", *choices(likely, " or ", show), "?") if likely else ""


def pairs(name: str, value: Any, meaning: str) -> list[tuple[Place, Any, Any]]:
    """Return (place, first, second) for each pair in a sequence; the errors say what a pair means."""
    if not is_ordered(value):
        raise TypeError(must(name, value, "be ", SEQUENCE, " of pairs", code(f" {meaning}")))
    value = list(value)
    placed: list[tuple[Place, Any, Any]] = []
    for index, pair in enumerate(value):
        place = Place(name, index, item=pair)
        try:
            if not is_ordered(pair):
                raise TypeError
            first, second = pair
        except (TypeError, ValueError):
            advice = _advice_for_flat(name, value)
            a_pair = Wording(f"be a pair {meaning}", "have a start and a length")
            raise TypeError(must(Place(name, index), pair, a_pair, advice)) from None
        placed.append((place, first, second))
    return placed


def _advice_for_flat(name: str, values: list[Any]) -> str:
    """Suggest pairs if the parentheses are missing, as in [50, 30] for [(50, 30)]; "" otherwise."""
    try:
        numbers = [number(name, value) for value in values]
    except (TypeError, ValueError):
        return ""
    if len(numbers) % 2:
        return ""
    meant = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    return Message(": did you mean ", Setting(name, pairs=meant), "?")


def is_ordered(value: Any) -> bool:
    """Return True if the value has items in an order that the user can have meant."""
    if getattr(value, "ndim", 1) == 0:  # an array without dimensions counts as `Iterable` too
        return False
    return isinstance(value, Iterable) and not isinstance(
        value, str | bytes | bytearray | Set | Mapping | MappingView
    )


def peak(name: Place | str, value: Any) -> np.float32:
    """Return a peak learning rate, rounded to float32: 0, or from 2⁻¹²⁶ to float32's largest number."""
    value = _unwrap_scalar(value)
    try:
        if is_not_real(value):
            raise TypeError
        lr = float(value)
    except (TypeError, ValueError):
        raise TypeError(must(name, value, "be a number")) from None
    except OverflowError:  # from an int
        lr = math.inf
    if lr < 0:
        raise ValueError(must(name, value, "not be negative"))
    if not (lr == 0 or SMALLEST_PEAK <= lr < math.inf):
        raise ValueError(must(name, value, "be 0, or ", _LEAST_PEAK))
    with np.errstate(over="ignore"):
        rounded = np.float32(abs(lr))  # abs, because -0.0 is accepted too
    if np.isinf(rounded):
        raise ValueError(Message(Subject(name, value), _TOO_LARGE))
    return rounded


def metric(name: str, value: Any) -> np.float32:
    """Return a real number or scalar array, rounded to float32; infinite if it is too large."""
    try:
        array: Any = np.asarray(value)
        # V stands for bfloat16 and other types that JAX adds, and for records, which would read as 0.
        if array.ndim or array.dtype.kind not in "iufV" or array.dtype.names:
            raise TypeError
        with np.errstate(over="ignore"):
            return array.astype(np.float32)[()]
    except (TypeError, ValueError):
        raise TypeError(f"{name} = {reprlib.repr(value)} must be a real scalar") from None


def is_not_real(value: Any) -> bool:
    """Return True for a bool, a complex number or text, also as a scalar of NumPy, JAX or torch."""
    if type(value) in (int, float):
        return False
    if isinstance(value, bool | complex | str | bytes):
        return True
    return re.search("bool|complex", str(getattr(value, "dtype", ""))) is not None


def ratio_to_peak(name: str, value: Any, peak: Any) -> float:
    """Return value/peak, for a learning rate in [0, peak]."""
    value, peak = number(name, value), number("peak", peak)
    if not 0 <= value <= peak:
        raise ValueError(f"{name} = {short_repr(value)} must lie between 0 and the peak, {short_repr(peak)}")
    return value / peak if peak else 0.0


def steps(step: Any) -> np.ndarray:
    """Return integers of any size as int32, clamped to 0 … 2³¹ - 1."""
    if type(step) is int:
        return np.array(min(max(step, 0), MAX_STEP), np.int32)
    jax = sys.modules.get("jax")
    if isinstance(step, getattr(jax, "Array", ())) or hasattr(step, "__jax_array__"):
        raise TypeError(
            "step is a JAX array, which a curve does not accept: write optax_schedule(curve, peak_value), or "
            "multiplier(curve.segments, step) in your own function"
        )
    # As objects, because NumPy turns [True, 2] into integers, and [-1, 2**63] and [] into floats.
    array = np.asarray(step, None if hasattr(step, "dtype") or isinstance(step, range) else object)
    if not array.size and array.dtype.kind == "f":  # NumPy makes float64 of range(0), and of [] in np.array
        array = array.astype(np.int32)
    wrong = "step must be an integer or an array of integers, not"
    if array.dtype == object:
        try:
            clamped = [min(max(integer("step", item), 0), MAX_STEP) for item in array.flat]
        except TypeError:
            raise TypeError(f"{wrong} {reprlib.repr(step)}") from None
        return np.array(clamped, np.int32).reshape(array.shape)
    # By name, because the 4-bit integers that JAX adds are not of NumPy's integer kinds.
    if not array.dtype.name.removeprefix("u").startswith("int"):
        raise TypeError(f"{wrong} {array.dtype}")
    if array.dtype != np.uint64:
        array = array.astype(np.int64)
    return np.clip(array, 0, MAX_STEP).astype(np.int32)
