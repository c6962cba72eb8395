"""The weights of checkpoints whose mean takes the place of a cooldown."""

import reprlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax import checks
from plateau_jax.checks import MAX_STEP
from plateau_jax.rows import Row, visible

_CHUNK = 2**16  # steps that are evaluated at once
_UNIT = 2.0**-53

Evaluate = Callable[[NDArray[np.int64]], NDArray[np.float32]]


class _Piece(NamedTuple):
    """The steps first … after - 1, all of one segment."""

    first: int
    after: int
    holds: bool


def weights(rows: Sequence[Row], evaluate: Evaluate, steps: Any) -> NDArray[np.float64]:
    """What `Curve.merge_weights` returns, for a curve's segments and values.

    All means are rounded to multiples of 2⁻⁵³. Their differences, and all partial sums of these, are then
    exact: the weights add up to 1 in any order.
    """
    checked = _checked(steps)
    pieces = list(_pieces(rows, checked[0], checked[-1]))
    level = _level(evaluate, pieces)
    taken = np.array(checked)
    means = _sums(evaluate, pieces, taken) / np.diff(taken)
    # A mean is never above the one before; the rounding of sums could make it so.
    means = np.minimum.accumulate([1.0, *np.rint(means / level / _UNIT) * _UNIT])
    return means - np.append(means[1:], 0.0)


def _checked(steps: Any) -> list[int]:
    if not checks.ordered(steps):
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


def _pieces(rows: Sequence[Row], first: int, after: int) -> Iterator[_Piece]:
    for row, end in visible(rows):
        piece = _Piece(max(first, row.begin), after if end is None else min(after, end), row.holds)
        if piece.first < piece.after:
            yield piece


def _level(evaluate: Evaluate, pieces: Sequence[_Piece]) -> float:
    """The level at the first step. Raises ValueError where it is 0, or where the curve rises after it."""
    ends = np.array([(piece.first, piece.after - 1) for piece in pieces]).ravel()
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
    return float(levels[0])


def _sums(evaluate: Evaluate, pieces: Sequence[_Piece], steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sum of the curve over the updates between each two neighbouring checkpoints."""
    sums = np.zeros(len(steps) - 1)
    for first, after, holds in pieces:
        if holds:
            sums += np.diff(np.clip(steps, first, after)) * np.float64(evaluate(np.array([first]))[0])
            continue
        for begin in range(first, after, _CHUNK):
            updates = np.arange(begin, min(begin + _CHUNK, after))
            between = np.searchsorted(steps, updates, side="right") - 1
            sums += np.bincount(between, evaluate(updates), len(sums))
    return sums
