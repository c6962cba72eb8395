"""Stages that begin at a known learning rate, and the rows of a log that they explain.

After d steps, a stage that begins at v has the learning rate y with

    T(y) = T(v) + c·f(d)

where T and f follow from the shape and, if the shape has a middle, from its length. Each row of the
log limits c to an interval, so a stage explains the rows up to the first one at which the
intersection of all intervals is empty.

If the stage begins at an unknown step s, two rows limit it, because c cancels: at steps m and n,

    (T(y_m) - T(v)) / (T(y_n) - T(v)) = f(m - s) / f(n - s)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.logged_lrs.printed import Floats, PrintedLrs, Steps

_TINY = 1e-300
"""In place of a learning rate of 0, whose logarithm is infinite."""

_FEWEST_PAIRS = 3
"""The step at which a stage begins is known only if this many pairs of rows agree on it."""

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class OpenFamily:
    """A shape whose first steps do not show its length: every part looks like a shorter stage.

    Attributes:
        shape: The shape.
        power: The exponent P of f(d) = d^P.
        transform, inverse: T, and the function that reverses it.
        falls: T falls.
        needs_positive: The shape cannot reach 0.
    """

    shape: str
    power: float
    transform: Function
    inverse: Function
    falls: bool = False
    needs_positive: bool = False

    def limits(self, logged: PrintedLrs, step: int, value: float) -> tuple[Floats, Floats]:
        """Return the limits of c, from the first row up to each row, after a step."""
        progress = (logged.steps - step).astype(np.float64) ** self.power
        low = (self.transform(logged.low) - self.transform(value)) / progress
        high = (self.transform(logged.high) - self.transform(value)) / progress
        if self.falls:
            low, high = high, low
        return np.maximum.accumulate(low), np.minimum.accumulate(high)

    def ends(
        self, logged: PrintedLrs, step: int, value: float, lengths: Floats
    ) -> tuple[Floats, Floats]:
        """Return the limits of the end level for each length, by all rows.

        The limits are in the wrong order if no end level explains these rows.
        """
        low, high = self.limits(logged, step, value)
        if low[-1] > high[-1]:
            return np.full(len(lengths), np.inf), np.full(len(lengths), -np.inf)
        start = self.transform(value)
        progress = lengths**self.power
        ends = [self.inverse(start + c * progress) for c in (low[-1], high[-1])]
        return np.minimum(*ends), np.maximum(*ends)

    def begins(self, logged: PrintedLrs, value: float) -> tuple[int, int]:
        """Return the first and the last step at which the stage may begin, by the first rows.

        The limits are in the wrong order if too few pairs of rows agree on a step.
        """
        bounds = np.stack([self.transform(logged.low), self.transform(logged.high)])
        changes = bounds - self.transform(value)
        if changes[0, 0] < 0:
            changes = -changes
        least = changes.min(axis=0)
        most = changes.max(axis=0)
        if least[0] <= 0:
            return 1, 0
        least_ratios = (least[0] / most[1:]) ** (1 / self.power)
        most_ratios = (most[0] / np.maximum(least[1:], _TINY)) ** (1 / self.power)
        firsts = np.maximum.accumulate(_begins(logged.steps, most_ratios))
        lasts = np.minimum.accumulate(_begins(logged.steps, least_ratios))
        firsts = np.ceil(np.maximum(firsts, 0))
        lasts = np.floor(lasts)
        pairs = num_leading(firsts <= lasts)
        if pairs < _FEWEST_PAIRS:
            return 1, 0
        return int(firsts[pairs - 1]), int(lasts[pairs - 1])

    def at(self, value: float, c: float, steps: float) -> float:
        """Return the learning rate some steps after the value."""
        return float(self.inverse(self.transform(value) + c * float(steps) ** self.power))


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
        self, logged: PrintedLrs, step: int, value: float, lengths: Floats
    ) -> tuple[Floats, Floats]:
        """Return the limits of the end level for each length, by the rows within the stage.

        The limits are in the wrong order if no end level explains these rows.
        """
        x = (logged.steps - step)[None, :] / lengths[:, None]
        progress = self.interpolant(np.minimum(x, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            low = value + (logged.low - value) / progress
            high = value + (logged.high - value) / progress
        is_outside = (x > 1) | (progress == 0)
        low = np.where(is_outside, -np.inf, low).max(axis=1)
        high = np.where(is_outside, np.inf, high).min(axis=1)
        return low, high


def num_leading(is_explained: NDArray[np.bool_]) -> int:
    """Return the number of rows before the first that is not explained."""
    if is_explained.all():
        return len(is_explained)
    return int(np.argmin(is_explained))


def _begins(steps: Steps, ratios: Floats) -> Floats:
    """Return each s with (m - s) / (n - s) = ratio: m is the first step, n each later one."""
    first, later = steps[0], steps[1:]
    begins = (first - ratios * later) / (1 - ratios)
    return np.where(ratios < 1, begins, -np.inf)


def _same(value: Any) -> Any:
    return value


def _log(value: Any) -> Any:
    return np.log(np.maximum(value, _TINY))


def _open_power(power: float, shape: str) -> OpenFamily:
    return OpenFamily(shape, power, _same, _same)


def _inverse_power(power: float, shape: str) -> OpenFamily:
    def transform(value: Any) -> Any:
        return np.maximum(value, _TINY) ** (-1 / power)

    def inverse(value: Any) -> Any:
        return np.maximum(value, _TINY) ** -power

    return OpenFamily(shape, 1.0, transform, inverse, falls=True, needs_positive=True)


def _closed_power(power: float, shape: str) -> ClosedFamily:
    return ClosedFamily(shape, lambda x: 1 - (1 - x) ** power)


LINE = _open_power(1.0, "linear")

OPEN_FAMILIES = (
    _open_power(0.5, "1-sqrt"),
    OpenFamily("exponential", 1.0, _log, np.exp, needs_positive=True),
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
