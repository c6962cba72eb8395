"""The two sums over the learning rates of a run that determine its loss: see `fit_losses`."""

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.theory.curve_parts import (
    mean_multipliers,
    noise_sums,
    part_begins,
    parts_before,
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

Without it, N jumps where the learning rate drops by orders of magnitude from one step to the next:
the sum of the learning rates after that step is then almost 0.
"""

MAX_SINGLE_STEPS = 2**16
"""Up to this many steps, every step is summed.

Above, parts of several steps count as having one learning rate.
"""

_NEAREST = 128


def schedule_sums(curve: Curve, peak_value: float, steps: _Steps) -> tuple[_Floats, _Floats]:
    """Return S and N at some numbers of updates, see `fit_losses`.

    They are those of the formulas up to 2¹⁶ steps, and within 10⁻⁵ of them above that. Without a
    positive learning rate they are 0.
    """
    if not steps.size:
        return np.zeros(steps.shape), np.zeros(steps.shape)
    unique = sorted_unique(steps.ravel())
    progress = peak_value**PROGRESS_POWER * _progress(curve, unique)
    noise = peak_value * _noise(curve, unique)
    places = np.searchsorted(unique, steps)
    return progress[places], noise[places]


def _progress(curve: Curve, steps: _Steps) -> _Floats:
    last = int(steps[-1])
    singles = np.arange(min(last, MAX_SINGLE_STEPS) + 1)
    begins = part_begins(curve)
    borders = sorted_unique(np.concatenate([singles, begins[begins < last], steps]))
    powers = np.diff(borders) * mean_multipliers(curve, borders) ** PROGRESS_POWER
    sums = np.append(0.0, np.cumsum(powers))
    return sums[np.searchsorted(borders, steps)]


def _noise(curve: Curve, steps: _Steps) -> _Floats:
    noise: list[float] = []
    for s, n in parts_before(curve, steps.tolist(), MAX_SINGLE_STEPS, _NEAREST):
        noise.append(_noise_after(s, n))
    return np.array(noise)


def _noise_after(s: _Floats, n: _Floats) -> float:
    """Return N after steps with the learning rates s, n times each."""
    if not len(s):
        return 0.0
    total, squares, inner = noise_sums(s, n, _DAMPING * float(s.max()))
    return squares / (2 * total) + inner / 2
