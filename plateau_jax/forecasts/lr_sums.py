"""The two sums over the learning rates of a run that determine its loss: see `fit_losses`."""

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.theory.curve_parts import (
    double_sum,
    mean_multipliers,
    part_begins,
    parts_before,
    sorted_unique,
    steps_at_borders,
    suffix_sums,
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

MAX_SINGLE_STEPS = 2**16
"""Up to this many steps, every step is summed; above, parts of several steps at one learning rate."""

_NEAREST = 128

_NODES = 128
_TOLERANCE = 4e-5
"""How far the sums may be from a straight line between two nodes, before it is halved."""


def schedule_sums(curve: Curve, peak_value: float, steps: _Steps) -> tuple[_Floats, _Floats]:
    """Return S and N at some numbers of updates, see `fit_losses`; 0 without a positive learning rate.

    They are those of the formulas up to 2¹⁶ steps, and within 10⁻⁵ of them above that. At more than 128 steps
    they are interpolated, within 2·10⁻⁵.
    """
    if not steps.size:
        return np.zeros(steps.shape), np.zeros(steps.shape)
    nodes, sums = _sums_at_nodes(curve, sorted_unique(steps.ravel()))
    progress = np.interp(steps, nodes, sums[:, 0])
    noise = np.interp(steps, nodes, sums[:, 1])
    return peak_value**PROGRESS_POWER * progress, peak_value * noise


def _sums_at_nodes(curve: Curve, wanted: _Steps) -> tuple[_Steps, _Floats]:
    """Return some of the wanted steps, and S and N there: both are nearly straight between two of them.

    An interval is halved until the sums in its middle agree with its ends.
    """
    nodes = np.linspace(0, len(wanted) - 1, min(len(wanted), _NODES)).astype(np.int64)
    if len(wanted) > _NODES:
        borders = steps_at_borders(curve, int(wanted[-1]))
        nodes = sorted_unique(np.concatenate([nodes, np.searchsorted(wanted, borders + 1)]))
    sums = np.full((len(wanted), 2), np.nan)
    sums[nodes] = _sums_at(curve, wanted[nodes])
    left, right = nodes[:-1], nodes[1:]
    while True:
        is_open = right - left > 1
        if not is_open.any():
            break
        left, right = left[is_open], right[is_open]
        middles = (left + right) // 2
        sums[middles] = _sums_at(curve, wanted[middles])
        fractions = (wanted[middles] - wanted[left]) / (wanted[right] - wanted[left])
        guesses = sums[left] + fractions[:, None] * (sums[right] - sums[left])
        is_far = np.any(np.abs(sums[middles] - guesses) > _TOLERANCE * sums[middles], axis=1)
        left = np.append(left[is_far], middles[is_far])
        right = np.append(middles[is_far], right[is_far])
    is_node = ~np.isnan(sums[:, 0])
    return wanted[is_node], sums[is_node]


def _sums_at(curve: Curve, steps: _Steps) -> _Floats:
    """Return S and N with the peak 1 at some steps."""
    parts = parts_before(curve, steps.tolist(), MAX_SINGLE_STEPS, _NEAREST)
    noise = [_noise(s, n) for s, n in parts]
    return np.stack([_progress(curve, steps), noise], axis=1)


def _progress(curve: Curve, steps: _Steps) -> _Floats:
    last = int(steps.max())
    borders = np.arange(last + 1) if last <= MAX_SINGLE_STEPS else part_begins(curve)
    borders = sorted_unique(np.concatenate([[0], borders[borders < last], steps]))
    powers = np.diff(borders) * mean_multipliers(curve, borders) ** PROGRESS_POWER
    sums = np.append(0.0, np.cumsum(powers))
    return sums[np.searchsorted(borders, steps)]


def _noise(s: _Floats, n: _Floats) -> float:
    """Return N after steps with the learning rates s, n times each."""
    if not len(s):
        return 0.0
    total = suffix_sums(s * n)[0]
    squares = suffix_sums(s * s * n)[0]
    return float(squares / (2 * total) + double_sum(s, n, _DAMPING * s.max()) / 2)
