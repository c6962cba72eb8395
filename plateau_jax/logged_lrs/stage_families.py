"""Stages that begin at a known learning rate, and the rows of a log that they explain.

After d steps, a stage that begins at v has the learning rate y with

    T(y) = T(v) + c·f(d)

where T and f follow from the shape and, if the shape has a middle, from its length. Each row of the
log limits c to an interval, so a stage explains the rows up to the first one at which the
intersection of all intervals is empty.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from plateau_jax.logged_lrs.printed import Floats, PrintedLrs

_TINY = 1e-300
"""In place of a learning rate of 0, whose logarithm is infinite."""

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class OpenFamily:
    """A shape whose first steps do not show its length: every part looks like a shorter stage.

    Attributes:
        shape: The shape.
        progress: f.
        transform, inverse: T, and the function that reverses it.
        falls: T falls.
        needs_positive: The shape cannot reach 0.
    """

    shape: str
    progress: Function
    transform: Function
    inverse: Function
    falls: bool = False
    needs_positive: bool = False

    def limits(self, rates: PrintedLrs, step: int, value: float) -> tuple[Floats, Floats]:
        """Return the limits of c, from the first row up to each row, after a step."""
        steps = self.progress((rates.steps - step).astype(np.float64))
        low = (self.transform(rates.low) - self.transform(value)) / steps
        high = (self.transform(rates.high) - self.transform(value)) / steps
        if self.falls:
            low, high = high, low
        return np.maximum.accumulate(low), np.minimum.accumulate(high)

    def ends(
        self, rates: PrintedLrs, step: int, value: float, lengths: Floats
    ) -> tuple[Floats, Floats]:
        """Return the limits of the end level for each length, by all rows.

        The limits are in the wrong order if no end level explains these rows.
        """
        low, high = self.limits(rates, step, value)
        if low[-1] > high[-1]:
            return np.full(len(lengths), np.inf), np.full(len(lengths), -np.inf)
        start = self.transform(value)
        steps = self.progress(lengths)
        ends = [self.inverse(start + c * steps) for c in (low[-1], high[-1])]
        return np.minimum(*ends), np.maximum(*ends)

    def at(self, value: float, c: float, steps: float) -> float:
        """Return the learning rate some steps after the value."""
        return float(self.inverse(self.transform(value) + c * self.progress(float(steps))))


@dataclass(frozen=True)
class ClosedFamily:
    """A shape whose rows depend on its length, and on the level at its end.

    Attributes:
        shape: The shape.
        interpolant: The fraction of the way to the end at each fraction of the length.
    """

    shape: str
    interpolant: Function

    def limits(
        self, rates: PrintedLrs, step: int, value: float, lengths: Floats
    ) -> tuple[Floats, Floats]:
        """Return the limits of the end level for each length, by the rows within the stage.

        The limits are in the wrong order if no end level explains these rows.
        """
        x = (rates.steps - step)[None, :] / lengths[:, None]
        progress = self.interpolant(np.minimum(x, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            low = value + (rates.low - value) / progress
            high = value + (rates.high - value) / progress
        is_outside = (x > 1) | (progress == 0)
        low = np.where(is_outside, -np.inf, low).max(axis=1)
        high = np.where(is_outside, np.inf, high).min(axis=1)
        return low, high


def _same(value: Any) -> Any:
    return value


def _log(value: Any) -> Any:
    return np.log(np.maximum(value, _TINY))


def _open_power(power: float, shape: str) -> OpenFamily:
    return OpenFamily(shape, lambda steps: steps**power, _same, _same)


def _inverse_power(power: float, shape: str) -> OpenFamily:
    def transform(value: Any) -> Any:
        return np.maximum(value, _TINY) ** (-1 / power)

    def inverse(value: Any) -> Any:
        return np.maximum(value, _TINY) ** -power

    return OpenFamily(shape, _same, transform, inverse, falls=True, needs_positive=True)


def _closed_power(power: float, shape: str) -> ClosedFamily:
    return ClosedFamily(shape, lambda x: 1 - (1 - x) ** power)


LINE = _open_power(1.0, "linear")

OPEN_FAMILIES = (
    _open_power(0.5, "1-sqrt"),
    OpenFamily("exponential", _same, _log, np.exp, needs_positive=True),
    _inverse_power(0.5, "t^-0.5"),
    _inverse_power(1.0, "t^-1"),
    _open_power(2.0, "1-x^2"),
)

CLOSED_FAMILIES = (
    ClosedFamily("cosine", lambda x: (1 - np.cos(np.pi * x)) / 2),
    _closed_power(2.0, "(1-x)^2"),
    _closed_power(0.5, "(1-x)^0.5"),
    _closed_power(3.0, "(1-x)^3"),
    _closed_power(1.5, "(1-x)^1.5"),
    _closed_power(2.5, "(1-x)^2.5"),
    _closed_power(0.9, "(1-x)^0.9"),
    _closed_power(4.0, "(1-x)^4"),
)
