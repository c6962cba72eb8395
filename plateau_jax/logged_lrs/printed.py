"""Printed learning rates as intervals: all numbers that a log would print like this."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from plateau_jax.logged_lrs.logs import Cell

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

_ROUNDED = 3 * 2.0**-24
"""Relative: the peak, the multiplier and their product are rounded to float32."""

_IN_FLOAT32 = 4 * 2.0**-24
"""As a fraction of the peak: the error of libraries that compute a schedule in float32."""

_FEWEST_DIGITS = 3
"""A constant column with fewer digits may stand for learning rates that move."""


@dataclass(frozen=True)
class PrintedLrs:
    """Learning rates of a log, each with the interval of the numbers that print like it.

    A column has a number of significant digits, as with `%.3g`, or a last decimal, as with `%.6f`.
    Trailing zeros may be missing, so the cell with the most digits and the cell with the last
    decimal tell both. An interval is the wider one of the two, plus what float32 rounds.

    Attributes:
        steps: The steps of the log, shape (n,), increasing.
        values: The learning rates, shape (n,).
        low, high: The ends of the intervals, shape (n,).
        digits: The most significant digits of a cell.
    """

    steps: Steps
    values: Floats
    low: Floats
    high: Floats
    digits: int

    @classmethod
    def from_cells(cls, cells: Sequence[Cell]) -> Self:
        steps = np.array([cell.step for cell in cells], np.int64)
        values = np.array([cell.value for cell in cells], np.float64)
        digits, last_place = _precision_of_column({cell.text for cell in cells})
        with np.errstate(divide="ignore"):
            first_places = np.floor(np.log10(values))  # -inf for 0
        places = np.maximum(first_places + 1 - digits, last_place)
        margin = 0.5 * 10.0**places + _ROUNDED * values + _IN_FLOAT32 * values.max()
        return cls(steps, values, values - margin, values + margin, digits)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def are_too_coarse(self) -> bool:
        """True for a constant column such as 0.001 or 0.0, which shows no precision."""
        is_constant = len(self) > 1 and self.values.min() == self.values.max()
        return bool(is_constant) and self.digits < _FEWEST_DIGITS

    def contain(self, values: Floats | float) -> NDArray[np.bool_]:
        """Return True for each value that lies in the interval of its row."""
        return (self.low <= values) & (values <= self.high)

    def excess(self, values: Floats) -> Floats:
        """Return how far each value lies outside of the interval of its row; within, below 0."""
        return np.maximum(self.low - values, values - self.high)

    def part(self, rows: slice | NDArray[np.integer | np.bool_]) -> Self:
        return type(self)(
            self.steps[rows], self.values[rows], self.low[rows], self.high[rows], self.digits
        )


def _precision_of_column(texts: Collection[str]) -> tuple[int, float]:
    """Return the most significant digits of a cell, and the place of the last one."""
    places: list[int] = []
    most = 0
    for text in texts:
        digits, place = _precision(text)
        if digits:
            places.append(place)
        most = max(most, digits)
    if places:
        return most, min(places)
    # All are 0. Decimals as in 0.000 show where digits end; 0.000e+00 is 0 exactly.
    most = max(_zeros_after_the_point(text) for text in texts)
    if any("e" in text.lower() for text in texts):
        return most, -math.inf
    return most, -most


def _zeros_after_the_point(text: str) -> int:
    return text.lower().partition("e")[0].partition(".")[2].count("0")


def _precision(text: str) -> tuple[int, int]:
    """Return the number of significant digits of a number, and the place of the last one.

    >>> _precision("2.50e-04"), _precision("0.000250"), _precision("0.0")
    ((3, -6), (3, -6), (0, -1))
    """
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, decimals = mantissa.lstrip("+-").replace("_", "").partition(".")
    digits = (whole + decimals).lstrip("0")
    return len(digits), int(exponent or 0) - len(decimals)


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
