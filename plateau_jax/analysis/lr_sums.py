"""The two sums over the learning rates of a run that determine its loss: see `LossFit`."""

from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.numerics.exact_segments import nonempty_segments
from plateau_jax.validation.checks import MAX_STEP

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

_NEAREST = 512
_NEAREST_IN_SEGMENT = 128


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
            return float(self._progress[step]), _noise_of_steps(self._learning_rates[:step])
        return self.near(step)

    def near(self, step: int) -> tuple[float, float]:
        """Return S and N at a step within 10⁻⁵, in a time that hardly grows with the step."""
        if self._last_step <= _MAX_PREFIXES and self.has_many_segments:
            return self._sums_from_prefixes(step)
        return _sums_of_parts(self._curve, step)

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
        growths = int(np.log1p(total / damping) * _NEAREST) + 2
        distances = damping * np.expm1(np.arange(growths) / _NEAREST)
        distant = cast("_Steps", np.searchsorted(sums[: step + 1], total - distances))
        borders = _sorted_unique(np.concatenate([step - _distances(step, _NEAREST), distant]))
        lengths = np.diff(borders)
        part_sums, part_squares = np.diff(sums[borders]), np.diff(squares[borders])
        after, squares_after = total - sums[borders[1:]], squares[step] - squares[borders[1:]]
        n, s, square = (
            values[part_sums > 0] for values in (lengths, part_sums / lengths, part_squares / lengths)
        )
        after, squares_after = after[part_sums > 0], squares_after[part_sums > 0]
        noise = _noise_terms(s, square, n.astype(np.float64), after, squares_after, damping)
        return float(progress[step]), float(squares[step] / (2 * total) + noise / 2)


@lru_cache(64)
def largest_multiplier(curve: Curve, updates: int) -> float:
    """Return the largest multiplier of the first updates."""
    return float(np.max(curve(steps_at_borders(curve, updates))))


def steps_at_borders(curve: Curve, updates: int) -> _Steps:
    """Return the first and the last step of each segment, up to a number of updates, in order.

    A segment is monotone, so the largest and the smallest learning rate are among them.
    """
    begins = segment_begins(curve)
    borders = _sorted_unique(np.concatenate([begins, begins - 1, [updates - 1]]))
    return borders[(borders >= 0) & (borders < updates)]


@lru_cache(64)
def segment_begins(curve: Curve) -> _Steps:
    """Return the first step of each segment that is not empty."""
    begins = np.array([segment.begin for segment, _ in nonempty_segments(curve.rows)], np.int64)
    begins.flags.writeable = False
    return begins


def _noise_of_steps(learning_rates: _Floats) -> float:
    s = learning_rates[learning_rates > 0]
    return _noise(s, np.ones(len(s)), np.max(s, initial=0.0))


def _sums_of_parts(curve: Curve, step: int) -> tuple[float, float]:
    borders = _borders(curve, step)
    lengths = np.diff(borders)
    # The two steps in the middle of a part are one if its length is odd.
    middles = borders[:-1] + np.stack([(lengths - 1) // 2, lengths // 2])
    learning_rates = np.mean(np.asarray(curve(middles), np.float64), axis=0)
    positive = learning_rates > 0
    s, n = learning_rates[positive], lengths[positive].astype(np.float64)
    return float(n @ s**PROGRESS_POWER), _noise(s, n, largest_multiplier(curve, step))


def _borders(curve: Curve, step: int) -> _Steps:
    """Return the first step of each part, and `step`.

    The sums after a step change fastest right before `step`, and before a segment with much lower learning
    rates; some shapes are steep at their start. So parts grow with the distance from these places.
    """
    borders = [step - _distances(step, _NEAREST)]
    begins = segment_begins(curve)
    for begin, end in pairwise([*begins[begins < step].tolist(), step]):
        distances = _distances(end - begin, _NEAREST_IN_SEGMENT)
        borders += [begin + distances, end - distances]
    return _sorted_unique(np.concatenate(borders))


def _sorted_unique(steps: _Steps) -> _Steps:
    # np.unique takes seconds where a log has thousands of learning rates: it hashes all steps.
    steps = np.sort(steps)
    return steps[np.append(True, np.diff(steps) > 0)]


def _distances(length: int, nearest: int) -> _Steps:
    """Return 0 … length: single steps up to `nearest`, then steps of 1/nearest of the distance."""
    grid = _distance_grid(nearest)
    return np.append(grid[: np.searchsorted(grid, length)], length)


@cache
def _distance_grid(nearest: int) -> _Steps:
    distances = [0]
    while distances[-1] < MAX_STEP:
        distances.append(distances[-1] + max(1, distances[-1] // nearest))
    return np.array(distances)


def _noise(s: _Floats, n: _Floats, largest: float) -> float:
    """Return N for parts of n steps at the learning rate s; a term of a part is that of its middle."""
    if not len(s):
        return 0.0
    # From the end, since differences of forward sums lose the digits of small learning rates at the end.
    after = _sums_after(s * n)
    squares_after = _sums_after(s * s * n)
    sums, squares = after[0] + s[0] * n[0], squares_after[0] + s[0] ** 2 * n[0]
    noise = _noise_terms(s, s * s, n, after, squares_after, _DAMPING * largest)
    return float(squares / (2 * sums) + noise / 2)


def _noise_terms(
    s: _Floats, squares: _Floats, n: _Floats, after: _Floats, squares_after: _Floats, damping: float
) -> float:
    """Return the sum over k in N, for parts of n steps with the mean learning rate s and the mean square.

    `after` and `squares_after` are the sums after each part.
    """
    after = after + s * (n - 1) / 2
    terms = n * s / (after + damping) * (squares_after + squares * (n + 1) / 2) / (after + s)
    terms[-1] *= (n[-1] - 1) / n[-1]  # the last step has no term
    return float(terms.sum())


def _sums_before(values: _Floats) -> _Floats:
    """Return the sum of all earlier values at each place, and the sum of all."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _sums_after(values: _Floats) -> _Floats:
    """Return the sum of all later values at each place."""
    return np.append(np.cumsum(values[:0:-1])[::-1], 0.0)
