"""Checks of arguments: each error names the argument, its value and what would be right."""

import math
import operator
import reprlib
import sys
from collections.abc import Iterable, Mapping, MappingView, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar, cast

import numpy as np

MAX_STEP = 2**31 - 1
SMALLEST_PEAK = 2.0**-126

_Choice = TypeVar("_Choice", bound=str)


def integer(name: str, value: Any, advice: str = "") -> int:
    """The value as a Python int; bool, float and str are refused, with advice on what to write."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        advice = advice or _in_place_of(value)
        raise TypeError(f"{name} = {value!r} must be an integer{advice and f': {advice}'}") from None


def _in_place_of(value: Any) -> str:
    """What to write where a number of steps came out as a float."""
    found = float(cast("Any", value)) if isinstance(value, float | np.floating) else math.nan
    if not math.isfinite(found):
        return ""
    return (f"write {int(found)}, or " if found.is_integer() else "write ") + "// in place of /"


def at_least(name: str, value: Any, least: int) -> int:
    """An integer that is not below `least`."""
    found = integer(name, value)
    if found < least:
        raise ValueError(f"{name} = {found} must be at least {least}")
    return found


def positive_int(name: str, value: Any, advice: str = "") -> int:
    """An integer in 1 … 2³¹ - 1."""
    found = integer(name, value, advice)
    if not 1 <= found <= MAX_STEP:
        raise ValueError(f"{name} = {found} must lie in 1 … 2**31 - 1 = {MAX_STEP}")
    return found


def _scalar(value: Any) -> Any:
    """The NumPy scalar in an array of no dimensions, NumPy's or JAX's; any other value as it is."""
    return np.asarray(value)[()] if getattr(value, "ndim", None) == 0 else value


def number(name: str, value: Any) -> int | float:
    """The value as a Python int or float; a float of NumPy as the decimal that it prints as."""
    value = _scalar(value)
    if isinstance(value, np.integer | np.floating):
        # By way of str: float32's 0.1 itself would become 0.10000000149011612.
        value = (int if isinstance(value, np.integer) else float)(str(cast("Any", value)))
    if isinstance(value, bool) or not isinstance(value, int | float):
        advice = f": write float({value!r})" if isinstance(value, Fraction | Decimal) else ""
        raise TypeError(f"{name} = {value!r} must be a number{advice}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} = {value!r} must be finite")
    return value + 0  # no -0.0, no subclass


def float32(name: str, value: Any) -> int | float:
    """A number that float32 can hold, as `number` returns it."""
    value = number(name, value)
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise ValueError(f"{name} = {value!r} is more than float32 can hold")
    return value


def ratio(name: str, value: Any) -> int | float:
    """A number in [0, 1]."""
    value = number(name, value)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value!r} must lie in [0, 1]")
    return value


def one_of(name: str, value: Any, choices: tuple[_Choice, ...], advice: str = "") -> _Choice:
    if not isinstance(value, str) or value not in choices:
        advice = advice and f"; {advice}"
        raise ValueError(
            f"{name} = {short_repr(value)} must be one of {', '.join(map(repr, choices))}{advice}"
        )
    return choices[choices.index(value)]


def pairs(name: str, value: Any, meaning: str) -> list[tuple[str, Any, Any]]:
    """(name of the pair, first, second) for each; `meaning` says what a pair is."""
    if not is_ordered(value):
        raise TypeError(f"{name} = {value!r} must be a sequence of pairs {meaning}")
    value = list(value)
    found: list[tuple[str, Any, Any]] = []
    for index, pair in enumerate(value):
        label = f"{name}[{index}] = {pair!r}"
        try:
            if not is_ordered(pair):
                raise TypeError
            first, second = pair
        except (TypeError, ValueError):
            raise TypeError(f"{label} must be a pair {meaning}{_as_pairs(name, value)}") from None
        found.append((label, first, second))
    return found


def _as_pairs(name: str, values: list[Any]) -> str:
    """What to write in place of numbers that stand without the parentheses of their pairs."""
    try:
        numbers = [number(name, value) for value in values]
    except (TypeError, ValueError):
        return ""
    if len(numbers) % 2:
        return ""
    return f": did you mean {name}={reprlib.repr(list(zip(numbers[::2], numbers[1::2], strict=True)))}"


def short_repr(value: Any) -> str:
    """The value as an error shows it: what is long is cut."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def is_ordered(value: Any) -> bool:
    """Whether the value has items in an order that the user can have meant."""
    if getattr(value, "ndim", 1) == 0:  # an array of no dimensions counts as `Iterable` too
        return False
    return isinstance(value, Iterable) and not isinstance(
        value, str | bytes | bytearray | Set | Mapping | MappingView
    )


def peak(name: str, value: Any) -> np.float32:
    """A peak learning rate, rounded to float32: zero, or from 2⁻¹²⁶ up to float32's largest."""
    value = _scalar(value)
    try:
        if isinstance(value, bool | np.bool_ | str | bytes):
            raise TypeError
        rate = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} = {value!r} must be a number") from None
    except OverflowError:  # from an int
        rate = math.inf
    if not (rate == 0 or SMALLEST_PEAK <= rate < math.inf):
        raise ValueError(f"{name} = {value!r} must be 0, or finite and at least 2**-126")
    with np.errstate(over="ignore"):
        rounded = np.float32(abs(rate))
    if np.isinf(rounded):
        raise ValueError(f"{name} = {value!r} is more than float32 can hold")
    return rounded


def metric(name: str, value: Any) -> np.float32:
    """A real number, or an array of no dimensions, rounded to float32; infinite where it is too large."""
    try:
        array: Any = np.asarray(value)
        # V: bfloat16 and other types that JAX brings, but for records, which would read as 0.
        if array.ndim or array.dtype.kind not in "iufV" or array.dtype.names:
            raise TypeError
        with np.errstate(over="ignore"):
            return array.astype(np.float32)[()]
    except (TypeError, ValueError):
        raise TypeError(f"{name} = {reprlib.repr(value)} must be a real scalar") from None


def ratio_to_peak(name: str, value: Any, peak: Any) -> float:
    """value/peak, for a rate in [0, peak]."""
    value, peak = number(name, value), number("peak", peak)
    if not 0 <= value <= peak:
        raise ValueError(f"{name} = {value!r} must lie between 0 and the peak, {peak!r}")
    return value / peak if peak else 0.0


def steps(step: Any) -> np.ndarray:
    """Any integers, clamped to 0 … 2³¹ - 1, as int32."""
    if type(step) is int:
        return np.array(min(max(step, 0), MAX_STEP), np.int32)
    jax = sys.modules.get("jax")
    if isinstance(step, getattr(jax, "Array", ())) or hasattr(step, "__jax_array__"):
        raise TypeError(
            "step is a JAX array, which a curve does not take: write optax_schedule(curve, peak_value), or "
            "multiplier(curve.segments, step) in your own function"
        )
    # As objects, since NumPy makes integers of [True, 2], and floats of [-1, 2**63] and of [].
    array = np.asarray(step, None if hasattr(step, "dtype") or isinstance(step, range) else object)
    wrong = "step must be an integer or an array of integers, not"
    if array.dtype == object:
        try:
            clamped = [min(max(integer("step", item), 0), MAX_STEP) for item in array.flat]
        except TypeError:
            raise TypeError(f"{wrong} {reprlib.repr(step)}") from None
        return np.array(clamped, np.int32).reshape(array.shape)
    # By name, since the 4-bit integers that JAX brings are not of NumPy's integer kinds.
    if not array.dtype.name.removeprefix("u").startswith("int"):
        raise TypeError(f"{wrong} {array.dtype}")
    if array.dtype != np.uint64:
        array = array.astype(np.int64)
    return np.clip(array, 0, MAX_STEP).astype(np.int32)
