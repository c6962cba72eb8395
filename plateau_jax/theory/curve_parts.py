"""Curves in parts of several steps at one learning rate, and sums over the steps after each part."""

from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.numerics.exact_segments import nonempty_segments
from plateau_jax.validation.checks import MAX_STEP

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

NEAREST = 512
"""How many steps at the end are single parts; before them, parts grow with the distance from the end."""

MANY_SEGMENTS = 256
"""More are those of a log: lines between any two of its learning rates."""


def parts_before(curve: Curve, step: int, most_single: int) -> tuple[_Floats, _Floats]:
    """Cut the steps before a step into parts: return their learning rates, if positive, and lengths.

    The peak is 1. Up to `most_single` steps, each is a part.
    """
    if step <= most_single:
        s = np.asarray(curve(np.arange(step)), np.float64)
        return s[s > 0], np.ones(np.count_nonzero(s))
    borders = sorted_unique(np.append(parts_of_segments(curve, step), step - distances(step, NEAREST)))
    s, n = mean_multipliers(curve, borders), np.diff(borders)
    return s[s > 0], n[s > 0].astype(np.float64)


def mean_multipliers(curve: Curve, borders: _Steps) -> _Floats:
    """Return the multiplier in the middle of each part."""
    lengths = np.diff(borders)
    if np.all(lengths == 1):
        return np.asarray(curve(borders[:-1]), np.float64)
    # The two steps in the middle of a part are one if its length is odd.
    middles = borders[:-1] + np.stack([(lengths - 1) // 2, lengths // 2])
    return np.mean(np.asarray(curve(middles), np.float64), axis=0)


def parts_of_segments(curve: Curve, step: int) -> _Steps:
    """Return the first steps of parts that grow with the distance from the borders of segments, and `step`.

    The sums after a step change fastest right before a segment with much lower learning rates, and some
    shapes are steep at their start.
    """
    begins = segment_begins(curve)
    nearest = 128 if len(begins) <= MANY_SEGMENTS else 8
    parts: list[_Steps] = []
    for begin, end in pairwise([*begins[begins < step].tolist(), step]):
        in_segment = distances(end - begin, nearest)
        parts += [begin + in_segment, end - in_segment]
    return sorted_unique(np.concatenate(parts))


@lru_cache(64)
def segment_begins(curve: Curve) -> _Steps:
    """Return the first step of each segment that is not empty."""
    begins = np.array([segment.begin for segment, _ in nonempty_segments(curve.rows)], np.int64)
    begins.flags.writeable = False
    return begins


def sorted_unique(steps: NDArray[Any]) -> NDArray[Any]:
    """Return the different steps in order."""
    # np.unique takes seconds where a log has thousands of learning rates: it hashes all steps.
    steps = np.sort(steps)
    return steps[np.append(True, np.diff(steps) > 0)]


def distances(length: int, nearest: int) -> _Steps:
    """Return 0 … length: single steps up to `nearest`, then steps of 1/nearest of the distance."""
    grid = _distance_grid(nearest)
    return np.append(grid[: np.searchsorted(grid, length)], length)


@cache
def _distance_grid(nearest: int) -> _Steps:
    grid = [0]
    while grid[-1] < MAX_STEP:
        grid.append(grid[-1] + max(1, grid[-1] // nearest))
    return np.array(grid)


def suffix_sums(values: _Floats) -> _Floats:
    """Return, for each index, the sum of the values from there to the end; the last sum, of none, is 0."""
    # From the end, since total minus prefix cancels when the last values are small.
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def double_sum(
    s: _Floats, squares: _Floats, n: _Floats, after: _Floats, squares_after: _Floats, damping: float
) -> float:
    """Return Σ_{k<T-1} s_k / (Σ_{j>k} s_j + damping) · (Σ_{j≥k} s_j² / Σ_{j≥k} s_j) over T steps in parts.

    A part has n steps with the mean learning rate s and the mean square `squares`; `after` and
    `squares_after` are the sums over the steps that follow. The terms of a part are that of its middle.
    """
    after = after + s * (n - 1) / 2
    terms = np.append(n[:-1], n[-1] - 1)  # the last step has none
    # Without damping, nothing is left to divide by after the last step.
    shares = terms * s / np.where(terms > 0, after + damping, 1.0)
    return float(np.sum(shares * (squares_after + squares * (n + 1) / 2) / (after + s)))
