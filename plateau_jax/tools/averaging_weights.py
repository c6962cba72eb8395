"""Averaging weights that turn checkpoints of a constant learning rate into a cooldown."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.curves.curve import Curve
from plateau_jax.table.exact_segments import ExactSegment, segment_at, with_stops

_CHUNK = 2**16  # steps evaluated at once
_SPACING = 2.0**-53  # of which all weights are multiples


def merge_weights(curve: Curve, steps: Any, mean_of: Any) -> NDArray[np.float64]:
    """Return the averaging weights of checkpoints; see `Curve.merge_weights`."""
    if mean_of is None:
        return _weights_of_checkpoints(curve, steps)
    return _weights_of_means(curve, steps, mean_of)


def _weights_of_checkpoints(curve: Curve, steps: Any) -> NDArray[np.float64]:
    steps = _check_steps(steps, 2)
    pieces = _cut_to_range(curve._exact_segments, steps[0], steps[-1])
    levels = _levels_at_ends(curve, pieces, "steps[0]", "steps[-1]")
    means = _interval_sums(curve, pieces, levels, steps) / np.diff(steps) / levels[0, 0]
    return _differences(np.concatenate([[1.0], means]))


def _weights_of_means(curve: Curve, steps: Any, mean_of: Any) -> NDArray[np.float64]:
    steps = _check_steps(steps, 1)
    begins = _check_blocks(steps, mean_of)
    first = int(begins[0])
    first_name = f"steps[0] - {_name_of_first_length(mean_of)}"
    total = curve.total_steps
    _check_reach(first_name, first, int(steps[-1]), total)
    pieces = _cut_to_range(curve._exact_segments, first, total)
    levels = _levels_at_ends(curve, pieces, first_name, "total_steps")
    _check_begin(first_name, first, segment_at(curve._exact_segments, first))
    # The weight of a block is the sum of those of its updates: only two levels of this sum don't
    # cancel, those where the block begins and where the next one does.
    at_begins = curve(begins).astype(np.float64)
    at_begins[begins >= total] = 0
    return _differences(at_begins / levels[0, 0])


def _differences(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far each level falls to the next one, and the last one to 0; the first is 1."""
    # Every level is rounded to a multiple of 2⁻⁵³. In [0, 1] float64 holds all of these, so the
    # differences and all of their partial sums are exact: the weights add up to exactly 1, in any
    # order. The level may be a mean, which rounding errors in its sum could lift above its
    # predecessor, and a weight would be negative; `minimum` prevents that.
    levels = np.rint(levels / _SPACING) * _SPACING
    levels = np.minimum.accumulate(levels)
    return levels - np.append(levels[1:], 0.0)


def _cut_to_range(segments: Sequence[ExactSegment], begin: int, stop: int) -> NDArray[np.int64]:
    """Return (first step, first step after) of each segment, cut to the steps begin … stop - 1."""
    borders = [(segment.begin, after or MAX_STEP) for segment, after in with_stops(segments)]
    pieces = np.array(borders).clip(begin, stop)
    is_empty = pieces[:, 0] == pieces[:, 1]
    return pieces[~is_empty]


def _check_steps(steps: Any, least: int) -> NDArray[np.int64]:
    if not checks.is_ordered(steps):
        raise TypeError(checks.must("steps", steps, "be a sequence of integers"))
    checked = [checks.at_least(("steps", index), step, 0) for index, step in enumerate(steps)]
    is_rising = all(before < after for before, after in pairwise(checked))
    if len(checked) < least or not is_rising or checked[-1] > MAX_STEP:
        number = "at least two"
        if least == 1:
            number = "one or more"
        rising = f"be {number} rising integers, at most {MAX_STEP}"
        raise ValueError(checks.must("steps", checked, rising))
    return np.array(checked, np.int64)


def _name_of_first_length(mean_of: Any) -> str:
    if checks.is_ordered(mean_of):
        return "mean_of[0]"
    return "mean_of"


def _check_lengths(mean_of: Any, num_blocks: int) -> list[int]:
    """Return the number of updates in each block."""
    if not checks.is_ordered(mean_of):
        return [checks.at_least("mean_of", mean_of, 1)] * num_blocks
    lengths = [
        checks.at_least(("mean_of", index), length, 1) for index, length in enumerate(mean_of)
    ]
    if len(lengths) != num_blocks:
        raise ValueError(
            f"steps has length {num_blocks}, and mean_of {len(lengths)}: give each step a "
            "length, or one length for all"
        )
    return lengths


def _check_blocks(steps: NDArray[np.int64], mean_of: Any) -> NDArray[np.int64]:
    """Return the step at which each block begins, which is where the one before it ends."""
    lengths = _check_lengths(mean_of, len(steps))
    begins = steps - lengths
    if begins[0] < 0:
        at_most = f"be at most steps[0] = {steps[0]}"
        raise ValueError(checks.must(_name_of_first_length(mean_of), lengths[0], at_most))
    for index, (before, after) in enumerate(pairwise(steps.tolist())):
        begin = int(begins[index + 1])
        if begin != before:
            raise ValueError(
                f"the block of steps[{index + 1}] = {after} begins at step {begin}, and must begin "
                f"at steps[{index}] = {before}, where the block before it ends"
            )
    return begins


def _check_reach(first_name: str, first: int, last: int, total: int) -> None:
    """Check that the blocks begin before the end of the curve, and reach it."""
    if first >= total:
        below = f"be below the end of the curve, total_steps = {total}"
        raise ValueError(checks.must(first_name, first, below))
    if last < total:
        reach = f"be at least total_steps = {total}: {_no_block(last, total)}"
        raise ValueError(checks.must("steps[-1]", last, reach))


def _check_begin(first_name: str, first: int, segment: ExactSegment) -> None:
    """Check that the first block does not begin within a segment in which the curve falls."""
    # At the border of two falling segments, a cooldown of a falling curve may begin.
    if not segment.is_flat and segment.begin < first:
        fall = f"be at most {segment.begin}, where the curve begins to fall"
        raise ValueError(
            checks.must(first_name, first, f"{fall}: {_no_block(segment.begin, first)}")
        )


def _no_block(begin: int, end: int) -> str:
    return f"no block contains updates {begin + 1} to {end}"


def _levels_at_ends(
    curve: Curve, pieces: NDArray[np.int64], first_name: str, last_name: str
) -> NDArray[np.float64]:
    """Return the levels at the first and the last step of each piece; the curve must not rise."""
    ends = (pieces - [0, 1]).ravel()
    levels = curve(ends)
    if levels[0] == 0:
        raise ValueError(f"the curve is 0 at {first_name} = {ends[0]}, and must be above 0 there")
    # It is enough to check the ends, as each segment is monotone between them.
    rises = np.flatnonzero(np.diff(levels) > 0)
    if rises.size:
        before, after = ends[rises[0] : rises[0] + 2]
        rise = f"the curve rises from step {before} to step {after}"
        must_not = f"and must not rise from {first_name} = {ends[0]} to {last_name}"
        raise ValueError(f"{rise}, {must_not}")
    return levels.reshape(-1, 2).astype(np.float64)


def _interval_sums(
    curve: Curve,
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
            sums += np.bincount(intervals, weights=curve(updates), minlength=len(sums))
    return sums
