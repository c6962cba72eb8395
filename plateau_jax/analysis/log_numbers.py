"""Numbers in the cells of a log: numbers, or text with decimal points or decimal commas."""

import math
import re
from collections.abc import Sequence
from typing import Any

from plateau_jax.validation import checks

# Not `float`, which also reads 1_000 and the digits of other scripts.
_WITH_POINT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_WITH_COMMA = re.compile(r"[+-]?(\d*|[1-9]\d{0,2}(\.\d{3})+),\d+(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}((,\d{3})+|(\.\d{3})+)", re.ASCII)
"""Also decimals, if there are three of them: 1,000 and 1.000 are 1 or 1000."""


_MISSING = {"", "-", "na", "n/a", "<na>", "null", "none"}


def is_filled(value: Any) -> bool:
    return value is not None and (not isinstance(value, str) or value.strip().lower() not in _MISSING)


def is_finite(value: Any) -> bool:
    """Return True for a cell that is filled, but not with NaN or an infinity."""
    return is_filled(value) and not _NOT_FINITE.fullmatch(str(value).strip())


def has_decimal_commas(steps: Sequence[Any], *columns: Sequence[Any]) -> bool:
    """Return True if commas are decimal.

    Some number has a comma that cannot separate thousands, or every number of a column other than `steps` has
    one.
    """
    if not any(isinstance(cell, str) and "," in cell for cells in (steps, *columns) for cell in cells):
        return False
    numbers = [
        [cell.strip() for cell in cells if isinstance(cell, str) and is_finite(cell)]
        for cells in (steps, *columns)
    ]
    return any(
        _WITH_COMMA.fullmatch(text) and not _THOUSANDS.fullmatch(text)
        for column in numbers
        for text in column
    ) or any(column and all(map(_WITH_COMMA.fullmatch, column)) for column in numbers[1:])


def read_number(value: Any, *, decimal_commas: bool, is_step: bool = False) -> float:
    """Return the number in a cell, which may be NaN or infinite.

    Raises:
        ValueError: The cell is not a number, or may be two of them; the message begins with "must be".
    """
    try:
        if isinstance(value, str):
            return _read_text(value.strip(), decimal_commas, is_step)
        if checks.is_not_real(value):  # `float` would take True, and drop an imaginary part
            raise TypeError
        number = float(value)
    except (TypeError, OverflowError):
        raise ValueError("must be a number") from None
    if number == 0 and value != 0:  # such as a Decimal
        raise ValueError("must be a number that float64 can hold")
    return number


def parse_float(text: str) -> float | str:
    """Return a number of a JSON file, or its text if float64 cannot hold it: `read_number` rejects that."""
    number = float(text)
    return number if _is_held(number, text) else text


def _read_text(text: str, decimal_commas: bool, is_step: bool) -> float:
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    if _THOUSANDS.fullmatch(text):
        has_comma = "," in text
        if is_step and decimal_commas and not has_comma:  # steps have no decimals
            text = text.replace(".", "")
        elif is_step or has_comma != decimal_commas:
            raise ValueError(f"must be written without a {'comma' if has_comma else 'point'}")
    if decimal_commas and _WITH_COMMA.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    if not _WITH_POINT.fullmatch(text):
        raise ValueError("must be a number")
    number = float(text)
    if not _is_held(number, text):
        raise ValueError("must be a number that float64 can hold")
    return number


def _is_held(number: float, text: str) -> bool:
    """Return True unless the number of the text became 0 or infinite."""
    return math.isfinite(number) if number else not re.search("[1-9]", re.split("[eE]", text)[0])
