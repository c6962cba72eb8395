"""Averaging weights that turn checkpoints of a constant learning rate into a cooldown."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.table.exact_segments import ExactSegment, nonempty_segments
from plateau_jax.validation.checks import MAX_STEP, at_least, must

_CHUNK = 2**16  # steps evaluated at once
_UNIT = 2.0**-53  # of which all weights are multiples

Evaluate = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def weights(rows: Sequence[ExactSegment], evaluate: Evaluate, steps: Any) -> NDArray[np.float64]:
    """Compute `Curve.merge_weights` from the segments and the values of a curve."""
    steps = _check_steps(steps)
    pieces = _cut_to_range(rows, steps[0], steps[-1])
    levels = _levels_at_ends(evaluate, pieces)
    sums = _interval_sums(evaluate, pieces, levels, steps)
    means = sums / np.diff(steps) / levels[0, 0]
    # Every mean is rounded to a multiple of 2⁻⁵³. In [0, 1] float64 holds all of these, so the
    # differences and all of their partial sums are exact: the weights add up to exactly 1, in any
    # order. Rounding errors in the sums could make a mean exceed its predecessor, and a weight
    # negative; `minimum` prevents that.
    means = np.rint(means / _UNIT) * _UNIT
    means = np.minimum.accumulate([1.0, *means])
    return means - np.append(means[1:], 0.0)


def _cut_to_range(rows: Sequence[ExactSegment], start: int, stop: int) -> NDArray[np.int64]:
    """Return (first step, first step after) of each segment, cut to the steps start … stop - 1."""
    borders = [(row.begin, after or MAX_STEP) for row, after in nonempty_segments(rows)]
    pieces = np.array(borders).clip(start, stop)
    is_empty = pieces[:, 0] == pieces[:, 1]
    return pieces[~is_empty]


def _check_steps(steps: Any) -> NDArray[np.int64]:
    checked = [at_least(("steps", index), step, 0) for index, step in enumerate(steps)]
    is_rising = all(before < after for before, after in pairwise(checked))
    if len(checked) < 2 or not is_rising or checked[-1] > MAX_STEP:
        rising = f"be at least two rising integers, at most 2**31 - 1 = {MAX_STEP}"
        raise ValueError(must("steps", checked, rising))
    return np.array(checked, np.int64)


def _levels_at_ends(evaluate: Evaluate, pieces: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the levels at the first and the last step of each piece; the curve must not rise."""
    ends = (pieces - [0, 1]).ravel()
    levels = evaluate(ends)
    if levels[0] == 0:
        raise ValueError(f"the curve is 0 at steps[0] = {ends[0]}, and must be above 0 there")
    # It is enough to check the ends, as each segment is monotone between them.
    rises = np.flatnonzero(np.diff(levels) > 0)
    if rises.size:
        before, after = ends[rises[0] : rises[0] + 2]
        rise = f"the curve rises from step {before} to step {after}"
        raise ValueError(f"{rise}, and must not rise from steps[0] = {ends[0]} to steps[-1]")
    return levels.reshape(-1, 2).astype(np.float64)


def _interval_sums(
    evaluate: Evaluate,
    pieces: NDArray[np.int64],
    levels: NDArray[np.float64],
    steps: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the sum of the curve over the updates between each two successive checkpoints."""
    sums = np.zeros(len(steps) - 1)
    for (first, after), (level, last_level) in zip(pieces, levels, strict=True):
        if level == last_level:
            # Flat, as the piece is monotone: a billion steps cost no more than one.
            sums += level * np.diff(steps.clip(first, after))
            continue
        for begin in range(first, after, _CHUNK):
            end = min(begin + _CHUNK, after)
            updates = np.arange(begin, end)
            intervals = np.searchsorted(steps, updates, side="right") - 1
            sums += np.bincount(intervals, weights=evaluate(updates), minlength=len(sums))
    return sums
