"""Bins of consecutive steps of a curve, and sums over them: for bounds."""

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve

_Floats = NDArray[np.float64]


def step_bins(curve: Curve, most_single: int) -> tuple[_Floats, _Floats]:
    """Return the multipliers and the lengths of bins of all steps of a curve.

    If the curve has at most `most_single` steps, every step is a bin. Otherwise a quarter as many
    steps at the end are bins, and the earlier ones form as many bins of equal length, cut at the
    borders of segments. The multiplier of a bin is the one in its middle. Bins with the multiplier
    0 are left out.
    """
    total = curve.total_steps
    number = most_single // 4
    first_single = 0
    if total > most_single:
        first_single = total - number
    equal = np.linspace(0, first_single, number + 1).astype(np.int64)
    single = np.arange(first_single, total + 1)
    begins = np.array([segment.begin for segment in curve._exact_segments])
    borders = np.sort(np.concatenate([equal, single, begins]))
    lengths = np.diff(borders)
    # The two steps in the middle of a bin are one if its length is odd.
    middles = borders[:-1] + np.stack([(lengths - 1) // 2, lengths // 2])
    s = np.mean(np.asarray(curve(middles), np.float64), axis=0)
    is_positive = (s > 0) & (lengths > 0)
    return s[is_positive], lengths[is_positive].astype(np.float64)


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
