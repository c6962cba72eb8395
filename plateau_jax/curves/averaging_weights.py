"""Averaging weights that turn checkpoints of a constant learning rate into a cooldown."""

import reprlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.numerics.exact_segments import ExactSegment, nonempty_segments
from plateau_jax.validation import checks
from plateau_jax.validation.checks import MAX_STEP

_CHUNK = 2**16  # steps evaluated at once
_UNIT = 2.0**-53  # of which all weights are multiples

Evaluate = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def weights(rows: Sequence[ExactSegment], evaluate: Evaluate, steps: Any) -> NDArray[np.float64]:
    """Return `Curve.merge_weights` for the segments and the values of a curve."""
    steps = _check_steps(steps)
    pieces = np.array(list(_pieces(rows, steps[0], steps[-1])))
    levels = _levels_at_ends(evaluate, pieces)
    means = _interval_sums(evaluate, pieces, levels, steps) / np.diff(steps)
    # Every mean is rounded to a multiple of 2⁻⁵³. In [0, 1] float64 holds all of these, so the differences
    # and all of their partial sums are exact: the weights add up to exactly 1, in any order. Rounded sums
    # could make a mean exceed its predecessor, and a weight negative; `minimum` prevents that.
    means = np.minimum.accumulate([1.0, *np.rint(means / levels[0, 0] / _UNIT) * _UNIT])
    return means - np.append(means[1:], 0.0)


def _check_steps(steps: Any) -> NDArray[np.int64]:
    if not checks.is_ordered(steps):
        raise TypeError(f"steps = {reprlib.repr(steps)} must be a sequence of integers")
    checked = [checks.at_least(f"steps[{index}]", step, 0) for index, step in enumerate(steps)]
    if len(checked) < 2:
        raise ValueError(f"steps = {checked} must name at least two checkpoints")
    for index, (before, after) in enumerate(pairwise(checked), start=1):
        if before >= after:
            raise ValueError(f"steps[{index}] = {after} must be above steps[{index - 1}] = {before}")
    if checked[-1] > MAX_STEP:
        raise ValueError(f"steps[-1] = {checked[-1]} must be at most 2**31 - 1 = {MAX_STEP}")
    return np.array(checked, np.int64)


def _pieces(rows: Sequence[ExactSegment], first: int, after: int) -> Iterator[tuple[int, int]]:
    """Yield (first step, first step after it) of each segment, cut to the given range."""
    for row, end in nonempty_segments(rows):
        piece = max(first, row.begin), after if end is None else min(after, end)
        if piece[0] < piece[1]:
            yield piece


def _levels_at_ends(evaluate: Evaluate, pieces: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the levels at the first and the last step of each piece.

    Raises:
        ValueError: The first level is 0, or the curve rises after it.
    """
    ends = (pieces - [0, 1]).ravel()
    levels = evaluate(ends)
    if levels[0] == 0:
        raise ValueError(f"the curve is 0 at steps[0] = {ends[0]}, and must be above 0 there")
    # Checking the ends is enough: a segment is monotone, so its values lie between those at its ends.
    rises = np.flatnonzero(np.diff(levels) > 0)
    if rises.size:
        before, after = ends[rises[0]], ends[rises[0] + 1]
        raise ValueError(
            f"the curve rises from step {before} to step {after}, and must not rise from "
            f"steps[0] = {ends[0]} to steps[-1]"
        )
    return levels.reshape(-1, 2).astype(np.float64)


def _interval_sums(
    evaluate: Evaluate,
    pieces: NDArray[np.int64],
    levels: NDArray[np.float64],
    steps: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the sum of the curve over the updates between each two successive checkpoints."""
    sums = np.zeros(len(steps) - 1)
    for (first, after), (level, last) in zip(pieces, levels, strict=True):
        if level == last:  # flat, as the piece is monotone: a billion steps cost no more than one
            sums += np.diff(np.clip(steps, first, after)) * level
            continue
        for begin in range(first, after, _CHUNK):
            updates = np.arange(begin, min(begin + _CHUNK, after))
            intervals = np.searchsorted(steps, updates, side="right") - 1
            sums += np.bincount(intervals, evaluate(updates), len(sums))
    return sums
