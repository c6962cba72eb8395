"""The weights of checkpoints whose mean takes the place of a cooldown."""

import reprlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.numerics.exact_segments import ExactSegment, nonempty_segments
from plateau_jax.validation import checks
from plateau_jax.validation.checks import MAX_STEP

_CHUNK = 2**16  # steps that are evaluated at once
_UNIT = 2.0**-53

Evaluate = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def weights(rows: Sequence[ExactSegment], evaluate: Evaluate, steps: Any) -> NDArray[np.float64]:
    """What `Curve.merge_weights` returns, for a curve's segments and values.

    All means are rounded to multiples of 2⁻⁵³. Their differences, and all partial sums of these, are then
    exact: the weights add up to 1 in any order.
    """
    checked = _checked(steps)
    pieces = np.array(list(_pieces(rows, checked[0], checked[-1])))
    levels = _levels(evaluate, pieces)
    taken = np.array(checked)
    means = _sums(evaluate, pieces, levels, taken) / np.diff(taken)
    # A mean is never above the one before; the rounding of sums could make it so.
    means = np.minimum.accumulate([1.0, *np.rint(means / levels[0, 0] / _UNIT) * _UNIT])
    return means - np.append(means[1:], 0.0)


def _checked(steps: Any) -> list[int]:
    if not checks.is_ordered(steps):
        raise TypeError(f"steps = {reprlib.repr(steps)} must be a sequence of integers")
    found = [checks.at_least(f"steps[{index}]", step, 0) for index, step in enumerate(steps)]
    if len(found) < 2:
        raise ValueError(f"steps = {found} must name at least two checkpoints")
    for index, (before, after) in enumerate(pairwise(found), start=1):
        if before >= after:
            raise ValueError(f"steps[{index}] = {after} must be above steps[{index - 1}] = {before}")
    if found[-1] > MAX_STEP:
        raise ValueError(f"steps[-1] = {found[-1]} must be at most 2**31 - 1 = {MAX_STEP}")
    return found


def _pieces(rows: Sequence[ExactSegment], first: int, after: int) -> Iterator[tuple[int, int]]:
    """The first step of each segment between the two, and the one after its last."""
    for row, end in nonempty_segments(rows):
        piece = max(first, row.begin), after if end is None else min(after, end)
        if piece[0] < piece[1]:
            yield piece


def _levels(evaluate: Evaluate, pieces: NDArray[np.int64]) -> NDArray[np.float64]:
    """The levels at the first and the last step of each piece.

    Raises:
        ValueError: The first level is 0, or the curve rises after it.
    """
    ends = (pieces - [0, 1]).ravel()
    levels = evaluate(ends)
    if levels[0] == 0:
        raise ValueError(f"the curve is 0 at steps[0] = {ends[0]}, and must be above 0 there")
    rises = np.flatnonzero(np.diff(levels) > 0)  # within a piece no value lies outside of its ends
    if rises.size:
        before, behind = ends[rises[0]], ends[rises[0] + 1]
        raise ValueError(
            f"the curve rises from step {before} to step {behind}, and must not rise from "
            f"steps[0] = {ends[0]} to steps[-1]"
        )
    return levels.reshape(-1, 2).astype(np.float64)


def _sums(
    evaluate: Evaluate,
    pieces: NDArray[np.int64],
    levels: NDArray[np.float64],
    steps: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The sum of the curve over the updates between each two neighbouring checkpoints."""
    sums = np.zeros(len(steps) - 1)
    for (first, after), (level, last) in zip(pieces, levels, strict=True):
        if level == last:  # and so it is at every step between
            sums += np.diff(np.clip(steps, first, after)) * level
            continue
        for begin in range(first, after, _CHUNK):
            updates = np.arange(begin, min(begin + _CHUNK, after))
            between = np.searchsorted(steps, updates, side="right") - 1
            sums += np.bincount(between, evaluate(updates), len(sums))
    return sums
