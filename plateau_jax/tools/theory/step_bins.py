"""Bins of consecutive steps of a curve, and sums over them: for bounds."""

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.curves.curve import Curve
from plateau_jax.table.exact_segments import with_stops

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

_MANY_SEGMENTS = 256
"""A curve with more segments may be one of lines between logged learning rates."""


def step_bins(curve: Curve, most_single: int, nearest: int) -> tuple[_Floats, _Floats]:
    """Return the multipliers and the lengths of bins of all steps of a curve.

    If the curve has at most `most_single` steps, every step is a bin. Otherwise bins grow with the
    distance from the end and from the borders of segments: each of the last `nearest` steps is a
    bin, and earlier bins have a length of 1/nearest of their distance. The multiplier of a bin is
    the one in its middle. Bins with the multiplier 0 are left out.
    """
    total = curve.total_steps
    if total <= most_single:
        multipliers = np.asarray(curve(np.arange(total)), np.float64)
        s = multipliers[multipliers != 0]
        return s, np.ones(len(s))
    borders = _sorted_unique(
        np.concatenate([_bin_begins(curve), total - _distances(total, nearest)])
    )
    lengths = np.diff(borders)
    # The two steps in the middle of a bin are one if its length is odd.
    middles = borders[:-1] + np.stack([(lengths - 1) // 2, lengths // 2])
    s = np.mean(np.asarray(curve(middles), np.float64), axis=0)
    return s[s > 0], lengths[s > 0].astype(np.float64)


def _bin_begins(curve: Curve) -> _Steps:
    """Return the first steps of bins that grow with the distance from the borders of segments.

    Bins are short there because the sums over later steps change fastest right before a segment
    with much lower learning rates, and because some shapes are steep at their start.
    """
    begins = _segment_begins(curve)
    has_many = len(begins) > _MANY_SEGMENTS
    steps: list[_Steps] = []
    for begin, end in pairwise([*begins.tolist(), curve.total_steps]):
        length = max(0, end - begin)
        nearest = 128
        if has_many:  # most of them are short
            nearest = 8192 * length // curve.total_steps
            nearest = min(128, max(2, nearest))
        distances = _distances(length, nearest)
        steps.append(begin + distances)
        steps.append(end - distances)
    return _sorted_unique(np.concatenate(steps))


def _segment_begins(curve: Curve) -> _Steps:
    """Return the first step of each segment that is not empty."""
    begins = [segment.begin for segment, _ in with_stops(curve._exact_segments)]
    return np.array(begins, np.int64)


def _sorted_unique(steps: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct steps in ascending order."""
    # np.unique hashes all steps, which takes seconds for a curve with thousands of segments.
    steps = np.sort(steps)
    is_new = np.append(True, np.diff(steps) > 0)
    return steps[is_new]


def _distances(length: int, nearest: int) -> _Steps:
    """Return 0 … length: single steps up to `nearest`, then steps of 1/nearest of the distance."""
    grid = _distance_grid(nearest)
    count = np.searchsorted(grid, length)
    return np.append(grid[:count], length)


@cache
def _distance_grid(nearest: int) -> _Steps:
    distance = 0
    grid = [distance]
    while distance < MAX_STEP:
        distance += max(1, distance // nearest)
        grid.append(distance)
    return np.array(grid)


def suffix_sums(values: _Floats) -> _Floats:
    """Return the sum of the values from each index on, and 0 at the end.

    >>> suffix_sums(np.array([1.0, 2.0, 4.0])).tolist()
    [7.0, 6.0, 4.0, 0.0]
    """
    # Summed from the end: the total minus a prefix would cancel if the last values are small.
    sums_from_end = np.cumsum(values[::-1])
    return np.append(sums_from_end[::-1], 0.0)


def last_iterate_sums(s: _Floats, n: _Floats) -> tuple[float, float, float]:
    """Return Σ s, Σ s² and a double sum over T steps.

        Σ_{k<T-1} s_k / Σ_{j>k} s_j · (Σ_{j≥k} s_j² / Σ_{j≥k} s_j)

    The steps come in bins, each of n steps with the learning rate s. All terms of a bin are taken
    at its middle.
    """
    sums = suffix_sums(s * n)
    sums_of_squares = suffix_sums(s * s * n)
    after = sums[1:] + s * (n - 1) / 2
    squares = sums_of_squares[1:] + s * s * (n + 1) / 2
    counts = n.copy()
    counts[-1] -= 1  # the last step has no term
    # Nothing is left to divide by after the last step.
    denominators = np.where(counts > 0, after, 1.0)
    terms = counts * s / denominators * squares / (after + s)
    return float(sums[0]), float(sums_of_squares[0]), float(np.sum(terms))
