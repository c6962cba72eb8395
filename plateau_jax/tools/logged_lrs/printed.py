"""Printed learning rates as intervals: all numbers that a log would print like this."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from plateau_jax.tools.logged_lrs.log_table import Cell

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Mask = NDArray[np.bool_]

_ROUNDED = 3 * 2.0**-24
"""Relative: the peak, the multiplier and their product are rounded to float32."""

_IN_FLOAT32 = 4 * 2.0**-24
"""As a fraction of the peak: the error of libraries that compute a schedule in float32."""

KNOWN_DIGITS = 3
"""Bare numbers with fewer digits do not show their precision. Then this many are assumed."""

_MAX_LAST_PLACE = -4
"""Loggers that round a bare number keep at least four decimals."""

_SIMILAR_CELLS = 6
"""A format shows in this many different cells: by chance, so many do not end at one decimal."""

_SHORTER_CELLS = 4
"""By chance, a digit is 0 in one of ten cells."""

_TRAILING_ZERO = re.compile(r"\.\d+0$|\.\d*0e", re.IGNORECASE)
"""As in 0.0010 or 1.0e-03: a bare number such as 0.001 or 1.0 has none."""


@dataclass(frozen=True)
class PrintedLrs:
    """Learning rates of a log, each with the interval of the numbers that print like it.

    Attributes:
        steps: The steps of the log, shape (n,), increasing.
        values: The learning rates, shape (n,).
        low, high: The ends of the intervals, shape (n,): half a unit of the last digit, plus the
            rounding to float32.
        digits: The most significant digits of a cell; None if the log does not show them.
    """

    steps: Steps
    values: Floats
    low: Floats
    high: Floats
    digits: int | None

    @classmethod
    def from_cells(cls, cells: Sequence[Cell], *, are_formatted: bool = False) -> Self:
        """Find the intervals.

        Args:
            cells: The cells, at least one.
            are_formatted: Take each cell as it stands, whether the log shows its digits or not.
        """
        values = np.array([cell.value for cell in cells], np.float64)
        places, digits = _last_places(cells, are_formatted=are_formatted)
        margin = 0.5 * 10.0**places + _ROUNDED * values + _IN_FLOAT32 * values.max()
        steps = np.array([cell.step for cell in cells], np.int64)
        return cls(steps, values, values - margin, values + margin, digits)

    def __len__(self) -> int:
        return len(self.steps)

    def contain(self, values: Floats) -> Mask:
        """Return True for each value that lies in the interval of its row."""
        return (self.low <= values) & (values <= self.high)


def _last_places(cells: Sequence[Cell], *, are_formatted: bool) -> tuple[Floats, int | None]:
    """Return the power of ten of the last digit of each cell, and the most digits if known."""
    texts = [cell.text or repr(cell.value).removesuffix(".0") for cell in cells]
    precisions = np.array([_precision(text) for text in texts])
    digits: Floats = precisions[:, 0]
    places: Floats = precisions[:, 1]
    is_zero = digits == 0
    different = dict(zip(texts, precisions.tolist(), strict=True))
    if not is_zero.all():
        different = {text: shown for text, shown in different.items() if shown[0]}
    finest = min(place for _, place in different.values())
    most = max(2, int(digits.max()))
    shows_zeros = not is_zero.all() or finest <= -KNOWN_DIGITS  # 0.00 may be any small number
    is_text = all(cell.text for cell in cells)
    if are_formatted or (is_text and shows_zeros and _show_digits(texts, list(different))):
        is_bare = np.array([cell.text in (None, "0", "0.0") for cell in cells])
        places = np.where(is_bare, np.minimum(places, _MAX_LAST_PLACE), places)
        # 0.0 among 0.0003 and 0.0002 is not a rounded number.
        return np.where(is_zero, np.minimum(places, finest), places), int(digits.max())

    # Bare numbers lack their trailing zeros. The column has a number of significant digits. It also
    # has a last decimal if many numbers end there, or several that would else have another digit.
    bare = places + digits - most
    num_finest = sum(place == finest for _, place in different.values())
    num_shorter = sum(place + shown - most < finest for shown, place in different.values())
    ends_alike = num_finest >= max(_SIMILAR_CELLS, len(different) / 2)
    is_rounded = ends_alike or num_shorter >= _SHORTER_CELLS
    num_most = sum(shown == most for shown, _ in different.values())
    if most < KNOWN_DIGITS and not is_rounded and num_most < _SIMILAR_CELLS:
        return np.where(is_zero, -np.inf, places + digits - KNOWN_DIGITS), None
    if is_rounded:
        bare = np.maximum(bare, finest)
    return np.where(is_zero, finest, bare), most


def _precision(text: str) -> tuple[int, float]:
    """Return the number of significant digits of a number, and the place of the last one.

    >>> _precision("2.50e-04"), _precision("0.000250"), _precision("0.0")
    ((3, -6), (3, -6), (0, -1))
    """
    mantissa, is_exponential, exponent = text.lower().partition("e")
    whole, _, decimals = mantissa.lstrip("+-").replace("_", "").partition(".")
    digits = (whole + decimals).lstrip("0")
    if is_exponential and not digits:
        return 0, -math.inf  # 0.00e+00 is 0 exactly
    return len(digits), int(exponent or 0) - len(decimals)


def _show_digits(texts: Sequence[str], different: Sequence[str]) -> bool:
    """Return True if texts show their digits: one has a trailing zero, or many end alike."""
    if any(map(_TRAILING_ZERO.search, texts)):
        return True
    endings: set[tuple[str, int]] = set()
    for text in different:
        mantissa, exponential, _ = text.lower().partition("e")
        endings.add((exponential, len(mantissa.partition(".")[2])))
    styles = {exponential for exponential, _ in endings}
    return len(endings) == len(styles) and len(different) >= _SIMILAR_CELLS


def simplest_between(low: float, high: float) -> float:
    """Return the number with the fewest digits from `low` to `high`, both positive.

    Of several, it is the one nearest to the middle.

    >>> simplest_between(2.96e-4, 3.04e-4), simplest_between(0.123, 0.1249)
    (0.0003, 0.124)
    """
    middle = (low + high) / 2
    for digits in range(1, 17):
        candidate = float(f"{middle:.{digits - 1}e}")
        if low <= candidate <= high:
            return candidate
    return middle
