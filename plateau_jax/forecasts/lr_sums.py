"""The two sums over the learning rates of a run that determine its loss: see `fit_losses`."""

from functools import lru_cache, partial
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.theory.curve_parts import (
    MANY_SEGMENTS,
    distances,
    double_sum,
    mean_multipliers,
    parts_of_segments,
    segment_begins,
    sorted_unique,
)

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

PROGRESS_POWER = 0.9
"""The power of the learning rates in S, chosen on published runs.

With 1, a cosine makes too little progress relative to a constant learning rate.
"""

_DAMPING = 0.1
"""Fraction of the largest learning rate that is added to a denominator of N.

Without it, N jumps where the learning rate drops by orders of magnitude from one step to the next: the sum of
the learning rates after that step is then almost 0.
"""

_NEAREST = 128
"""How many steps before a step are single parts; before them, parts grow with the distance."""

_TINY = np.finfo(np.float64).tiny  # a mean of positive learning rates that are lost next to larger ones

_NODES = 128
_TOLERANCE = 4e-5
"""How far the sums may be from a straight line between two nodes, before it is halved."""


def schedule_sums(curve: Curve, peak_value: float, steps: _Steps) -> tuple[_Floats, _Floats]:
    """Return S and N at some numbers of updates, see `fit_losses`; 0 without a positive learning rate.

    They are within 10⁻⁵ of their formulas; at more than 128 steps they are interpolated, within 2·10⁻⁵.
    """
    if not steps.size:
        return np.zeros(steps.shape), np.zeros(steps.shape)
    nodes, sums = _sums_at_nodes(curve, sorted_unique(steps.ravel()))
    progress, noise = np.interp(steps, nodes, sums[:, 0]), np.interp(steps, nodes, sums[:, 1])
    return peak_value**PROGRESS_POWER * progress, peak_value * noise


def _sums_at_nodes(curve: Curve, wanted: _Steps) -> tuple[_Steps, _Floats]:
    """Return some of the wanted steps, and S and N there: both are nearly straight between two of them.

    An interval is halved until the sums in its middle agree with its ends.
    """
    sums_at = partial(_sums_at, curve, parts_of_segments(curve, int(wanted[-1])))
    indices = np.linspace(0, len(wanted) - 1, min(len(wanted), _NODES)).astype(np.int64)
    begins = segment_begins(curve)
    if len(begins) <= MANY_SEGMENTS:
        at_borders = np.searchsorted(wanted, [*begins, *(begins + 1)])
        indices = sorted_unique(np.append(indices, at_borders[at_borders < len(wanted)]))
    sums = sums_at(wanted[indices])
    left, right = indices[:-1], indices[1:]
    while np.any(is_open := right - left > 1):
        left, right = left[is_open], right[is_open]
        middles = (left + right) // 2
        at_middles = sums_at(wanted[middles])
        places = np.searchsorted(indices, middles)
        share = ((wanted[middles] - wanted[left]) / (wanted[right] - wanted[left]))[:, None]
        guesses = sums[places - 1] * (1 - share) + sums[places] * share
        is_far = np.any(np.abs(at_middles - guesses) > _TOLERANCE * at_middles, axis=1)
        indices, sums = np.insert(indices, places, middles), np.insert(sums, places, at_middles, axis=0)
        left, right = (np.stack(pair, axis=1)[is_far].ravel() for pair in ((left, middles), (middles, right)))
    return wanted[indices], sums


def _sums_at(curve: Curve, parts: _Steps, steps: _Steps) -> _Floats:
    """Return S and N with the peak 1 at some steps, from the parts of a curve and those near each step."""
    near = [step - distances(step, _NEAREST) for step in steps.tolist()]
    before = _sums_before(curve, sorted_unique(np.concatenate([parts, *near])))
    return np.array([_sums(before, step) for step in steps.tolist()])


class _SumsBefore(NamedTuple):
    """Sums over the steps before each border of parts, with the peak 1."""

    borders: _Steps
    counts: _Floats
    """The numbers of steps whose learning rate is not 0."""
    progress: _Floats
    sums: _Floats
    squares: _Floats
    largest: _Floats
    """The largest learning rate before the next border."""


def _sums_before(curve: Curve, borders: _Steps) -> _SumsBefore:
    n, s = np.diff(borders), mean_multipliers(curve, borders)
    counts, progress, sums, squares = (
        np.append(0.0, np.cumsum(n * values)) for values in (s > 0, s**PROGRESS_POWER, s, s * s)
    )
    return _SumsBefore(borders, counts, progress, sums, squares, np.maximum.accumulate(s))


def _sums(before: _SumsBefore, step: int) -> tuple[float, float]:
    """Return S and N from parts that grow with the distance from `step`, in steps and in their sum."""
    end = int(np.searchsorted(before.borders, step))
    total, damping = before.sums[end], _DAMPING * before.largest[end - 1]
    if not total:
        return 0.0, 0.0
    growths = int(np.log1p(total / damping) * _NEAREST) + 2
    sums_after = damping * np.expm1(np.arange(growths) / _NEAREST)
    near = cast("_Steps", np.searchsorted(before.borders[: end + 1], step - distances(step, _NEAREST)))
    distant = cast("_Steps", np.searchsorted(before.sums[: end + 1], total - sums_after))
    # A learning rate that spans many of these sums is a part by itself: hence also the border before it.
    places = sorted_unique(np.concatenate([near, distant, np.maximum(distant - 1, 0)]))
    places = places[np.append(True, np.diff(before.counts[places]) > 0)]
    n, sums, squares = (np.diff(values[places]) for values in (before.counts, before.sums, before.squares))
    s = np.maximum(sums / n, _TINY)
    after, squares_after = (values[end] - values[places[1:]] for values in (before.sums, before.squares))
    inner = double_sum(s, squares / n, n, after, squares_after, damping)
    return float(before.progress[end]), float(before.squares[end] / (2 * total) + inner / 2)


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
