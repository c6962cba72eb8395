"""Bins of consecutive steps of a curve, for sums over many steps."""

from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.curves.curve import Curve

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

MAX_SINGLE_STEPS = 2**20
"""Up to this many steps, every step is a bin."""

_NEAREST = 512
"""Number of last steps that are single bins even in longer curves."""

_MANY_SEGMENTS = 256
"""A curve with more segments may be one of lines between logged learning rates."""


def step_bins(curve: Curve) -> tuple[_Floats, _Floats]:
    """Return the multipliers and the lengths of bins of all steps of a curve.

    If the curve has at most `MAX_SINGLE_STEPS` steps, every step is a bin. Otherwise bins grow with
    the distance from the end and from the borders of segments: each of the last `_NEAREST` steps is
    a bin, and earlier bins have a length of 1/`_NEAREST` of their distance. The multiplier of a bin
    is the one in its middle. Bins with the multiplier 0 are left out.
    """
    total = curve.total_steps
    if total <= MAX_SINGLE_STEPS:
        multipliers = np.asarray(curve(np.arange(total)), np.float64)
        s = multipliers[multipliers > 0]
        return s, np.ones(len(s))
    borders = np.sort(np.append(_borders_in_segments(curve), total - _distances(total, _NEAREST)))
    lengths = np.diff(borders)
    begins = borders[:-1][lengths > 0]
    lengths = lengths[lengths > 0]
    # The two steps in the middle of a bin are one if its length is odd.
    middles = begins + np.stack([(lengths - 1) // 2, lengths // 2])
    s = np.mean(np.asarray(curve(middles), np.float64), axis=0)
    return s[s > 0], lengths[s > 0].astype(np.float64)


def _borders_in_segments(curve: Curve) -> _Steps:
    """Return the borders of bins that grow with the distance from the borders of segments.

    Bins are short there because the sums over later steps change fastest right before a segment
    with much lower learning rates, and because some shapes are steep at their start.
    """
    begins = [segment.begin for segment in curve._exact_segments]  # the last is the end
    has_many = len(begins) > _MANY_SEGMENTS
    steps: list[_Steps] = []
    for begin, end in pairwise(begins):
        nearest = 128
        if has_many:  # most of them are short
            nearest = 8192 * (end - begin) // curve.total_steps
            nearest = min(128, max(2, nearest))
        distances = _distances(end - begin, nearest)
        steps += [begin + distances, end - distances]
    return np.concatenate(steps)


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
