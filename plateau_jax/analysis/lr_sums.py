"""The two sums over the learning rates of a run that determine its loss: see `LossFit`."""

from functools import cached_property, lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from plateau_jax.analysis.curve_parts import (
    NEAREST,
    distances,
    double_sum,
    parts_before,
    segment_begins,
    sorted_unique,
    sums_of_parts,
)
from plateau_jax.curves.curve import Curve

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

MAX_SINGLE_STEPS = 2**17
"""Up to this many steps, every step is summed; above, parts of several steps at one learning rate."""

PROGRESS_POWER = 0.9
"""The power of the learning rates in S, chosen on published runs.

With 1, a cosine makes too little progress relative to a constant learning rate.
"""

_DAMPING = 0.1
"""Fraction of the largest learning rate that is added to a denominator of N.

Without it, N jumps where the learning rate drops by orders of magnitude from one step to the next: the sum of
the learning rates after that step is then almost 0.
"""

_MANY_SEGMENTS = 256
_MAX_PREFIXES = 2**22
"""With many segments, and up to this many steps, every learning rate is evaluated once."""


def schedule_sums(curve: Curve, peak_value: float, steps: _Steps) -> tuple[_Floats, _Floats]:
    """Sum the learning rates of the updates before each step.

    With s_0 … s_{t-1} the learning rates peak_value · curve(k) of the t updates before a step, those that are
    0 left out, and m the largest of them:

        S = Σ s^0.9
        N = Σ s² / (2 Σ s) + ½ Σ_{k<t-1} s_k / (Σ_{j>k} s_j + m/10) · (Σ_{j≥k} s_j² / Σ_{j≥k} s_j)

    Up to 2¹⁷ steps the sums are exact to rounding, above within 10⁻⁵ of the formula.

    Args:
        curve: The curve.
        peak_value: The peak learning rate, positive.
        steps: Numbers of updates t, each at least 1.

    Returns:
        S and N in units of lr^0.9 and of lr, float64, of the shape of `steps`. Both are 0 if no update had a
        positive learning rate.
    """
    sums = ScheduleSums(curve, int(np.max(steps, initial=0)))
    both = np.array([sums.at(int(step)) for step in steps.ravel()]).reshape(*steps.shape, 2)
    return scale_sums(both, peak_value)


def scale_sums(both: _Floats, peak_value: float) -> tuple[_Floats, _Floats]:
    """Return S and N of a curve with a peak, from those with the peak 1."""
    return peak_value**PROGRESS_POWER * both[..., 0], peak_value * both[..., 1]


class ScheduleSums:
    """S and N of a curve with the peak 1, at one step after the other.

    Args:
        curve: The curve.
        last_step: No step is later.
    """

    def __init__(self, curve: Curve, last_step: int) -> None:
        self._curve = curve
        self._last_step = last_step

    def at(self, step: int) -> tuple[float, float]:
        """Return S and N at a step."""
        if step <= MAX_SINGLE_STEPS:
            s = self._learning_rates[:step]
            return float(self._progress[step]), _noise(s[s > 0], np.ones(np.count_nonzero(s)))
        return self.near(step)

    def near(self, step: int) -> tuple[float, float]:
        """Return S and N at a step within 10⁻⁵, in a time that hardly grows with the step."""
        if self._last_step <= _MAX_PREFIXES and self.has_many_segments:
            return self._sums_from_prefixes(step)
        s, n = parts_before(self._curve, step, most_single=0)
        return float(n @ s**PROGRESS_POWER), _noise(s, n)

    @cached_property
    def has_many_segments(self) -> bool:
        """True for learning rates of a log, with a segment between any two of them."""
        return len(segment_begins(self._curve)) > _MANY_SEGMENTS

    @cached_property
    def _learning_rates(self) -> _Floats:
        """The learning rates of single steps."""
        return np.asarray(self._curve(np.arange(min(self._last_step, MAX_SINGLE_STEPS))), np.float64)

    @cached_property
    def _progress(self) -> _Floats:
        """S before each of the single steps, and after the last."""
        return _sums_before(self._learning_rates**PROGRESS_POWER)

    @cached_property
    def _prefixes(self) -> tuple[_Floats, _Floats, _Floats, _Floats]:
        """S and the sums of the learning rates and their squares before each step; the largest so far."""
        s = np.asarray(self._curve(np.arange(self._last_step)), np.float64)
        progress, sums, squares = map(_sums_before, (s**PROGRESS_POWER, s, s * s))
        return progress, sums, squares, np.maximum.accumulate(s)

    def _sums_from_prefixes(self, step: int) -> tuple[float, float]:
        """Sum parts that grow with the distance from `step`, in steps and in the sum of learning rates.

        A part may span several segments: logs have thousands, one between any two learning rates.
        """
        progress, sums, squares, largest = self._prefixes
        total, damping = sums[step], _DAMPING * largest[step - 1]
        if not total:
            return 0.0, 0.0
        growths = int(np.log1p(total / damping) * NEAREST) + 2
        sums_after = damping * np.expm1(np.arange(growths) / NEAREST)
        distant = cast("_Steps", np.searchsorted(sums[: step + 1], total - sums_after))
        borders = sorted_unique(np.concatenate([step - distances(step, NEAREST), distant]))
        lengths = np.diff(borders)
        part_sums, part_squares = np.diff(sums[borders]), np.diff(squares[borders])
        after, squares_after = total - sums[borders[1:]], squares[step] - squares[borders[1:]]
        n, s, square = (
            values[part_sums > 0] for values in (lengths, part_sums / lengths, part_squares / lengths)
        )
        after, squares_after = after[part_sums > 0], squares_after[part_sums > 0]
        inner = double_sum(s, square, n.astype(np.float64), after, squares_after, damping)
        return float(progress[step]), float(squares[step] / (2 * total) + inner / 2)


@lru_cache(64)
def largest_multiplier(curve: Curve, updates: int) -> float:
    """Return the largest multiplier of the first updates."""
    return float(np.max(curve(steps_at_borders(curve, updates))))


def steps_at_borders(curve: Curve, updates: int) -> _Steps:
    """Return the first and the last step of each segment, up to a number of updates, in order.

    A segment is monotone, so the largest and the smallest learning rate are among them.
    """
    begins = segment_begins(curve)
    borders = sorted_unique(np.concatenate([begins, begins - 1, [updates - 1]]))
    return borders[(borders >= 0) & (borders < updates)]


def _noise(s: _Floats, n: _Floats) -> float:
    """Return N for parts of n steps at the learning rate s."""
    if not len(s):
        return 0.0
    total, squares, inner = sums_of_parts(s, n, _DAMPING * np.max(s))
    return squares / (2 * total) + inner / 2


def _sums_before(values: _Floats) -> _Floats:
    """Return the sum of all earlier values at each place, and the sum of all."""
    return np.concatenate([[0.0], np.cumsum(values)])
