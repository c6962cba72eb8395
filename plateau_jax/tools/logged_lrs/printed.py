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

_KNOWN_DIGITS = 3
"""Numbers with fewer digits do not show their precision."""

_MANY_NUMBERS = 5
"""By chance, the third digit of one number in ten is 0, but hardly that of five numbers."""

_MAX_LAST_PLACE = -4
"""Loggers that round a bare number keep at least four decimals: 0.0 is at most 0.00005."""

_TRAILING_ZERO = re.compile(r"\.\d\d+0$|\.\d*0e")
"""As in 0.010 or 1.0e-03: a bare number such as 0.001 or 1.0 has none."""


@dataclass(frozen=True)
class PrintedLrs:
    """Learning rates of a log, each with the interval of the numbers that print like it.

    The interval goes from `low` to `high`: half a unit of the last digit to each side, plus the
    rounding to float32. The arrays have one item per row; `steps` increase. `digits` is the largest
    number of significant digits; None if the numbers may have further ones.
    """

    steps: Steps
    values: Floats
    low: Floats
    high: Floats
    digits: int | None

    @classmethod
    def from_cells(cls, cells: Sequence[Cell]) -> Self:
        """Find the intervals: each number may be rounded as far as it is printed."""
        texts = [(cell.text or repr(cell.value).removesuffix(".0")).lower() for cell in cells]
        precisions = np.array([_precision(text) for text in texts])
        digits: Floats = precisions[:, 0]
        is_zero = digits == 0
        is_bare = np.array([cell.text is None for cell in cells])
        has_exponent = np.array(["e" in text for text in texts])
        places = _places_without_zeros(digits, precisions[:, 1], has_exponent & ~is_bare)
        if not is_zero.all():
            # 0.0 among 0.0003 and 0.0002 is not a rounded number.
            places = np.where(is_zero, places[~is_zero].min(), places)

        is_known = (
            digits.max() >= _KNOWN_DIGITS
            or len(set(texts)) >= _MANY_NUMBERS
            or any(map(_TRAILING_ZERO.search, texts))
        )
        if not is_known:
            places = np.where(is_bare, np.minimum(places, _MAX_LAST_PLACE), places)
        values = np.array([cell.value for cell in cells], np.float64)
        margin = 0.5 * 10.0**places + _ROUNDED * values + _IN_FLOAT32 * values.max()
        steps = np.array([cell.step for cell in cells], np.int64)
        shown = int(digits.max()) if is_known else None
        return cls(steps, values, values - margin, values + margin, shown)

    def __len__(self) -> int:
        return len(self.steps)

    def contain(self, values: Floats) -> Mask:
        """Return True for each value that lies in the interval of its row."""
        return (self.low <= values) & (values <= self.high)


def _places_without_zeros(digits: Floats, places: Floats, has_exponent: Mask) -> Floats:
    """Return the place of the last digit of each number, of which trailing zeros are missing.

    It is that of the most digits or of the most decimals in the log, whichever is coarser. A tool
    may print the numbers with an exponent in a different format.

    >>> _places_without_zeros(np.array([3, 1]), np.array([-5, -6]), np.array([False, False]))
    array([-5., -6.])
    """
    result = places.astype(np.float64)
    for style in (has_exponent, ~has_exponent):
        rows = style & (digits > 0)
        if rows.any():
            of_most_digits = places[rows] + digits[rows] - digits[rows].max()
            result[rows] = np.maximum(of_most_digits, places[rows].min())
    return result


def _precision(text: str) -> tuple[int, float]:
    """Return the number of significant digits of a number, and the place of the last one.

    >>> _precision("2.50e-04"), _precision("0.000250"), _precision("0.0000")
    ((3, -6), (3, -6), (0, -4))
    """
    mantissa, is_exponential, exponent = text.partition("e")
    whole, _, decimals = mantissa.lstrip("+-").replace("_", "").partition(".")
    digits = (whole + decimals).lstrip("0")
    if digits:
        return len(digits), int(exponent or 0) - len(decimals)
    if is_exponential:
        return 0, -math.inf  # 0.00e+00 is 0 exactly
    if len(decimals) > 1:
        return 0, -len(decimals)
    return 0, _MAX_LAST_PLACE
