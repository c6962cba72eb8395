"""The last-iterate bound of convex optimization: a prediction from theory, before any training."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.theory.curve_parts import double_sum, parts_before, suffix_sums
from plateau_jax.validation import checks

_Floats = NDArray[np.float64]

MAX_SINGLE_STEPS = 2**20
"""Up to this many steps, every step is summed; above, parts of several steps at one learning rate."""

_NEAREST = 512

_TAIL_COST = 4
"""The factor of a tail's sum in T₂. The bound is valid for factors from 1 on; with 2.6 or more, linear and
cosine decays to 0 keep all of their steps."""


class LeastBound(NamedTuple):
    """The last-iterate bound of a curve at the peak that minimizes it, for G = D = 1."""

    bound: float
    peak: float


def minimize_bound(curve: Curve) -> LeastBound:
    """Return the least last-iterate bound of a curve, and the peak at which it is; `compare` has the formula.

    Raises:
        ValueError: The curve is 0 at every step.

    >>> from plateau_jax import PlateauCurve
    >>> minimize_bound(PlateauCurve(1))
    LeastBound(bound=1.0, peak=1.0)
    """
    ((s, n),) = parts_before(curve, [curve.total_steps], MAX_SINGLE_STEPS, _NEAREST)
    if not len(s):
        raise ValueError(f"curve = {checks.short_repr(curve)} has no positive learning rate")
    tails = suffix_sums(s * n)[1:]
    # Few: the sum from a step on halves at least at each of them.
    ends = np.flatnonzero(s > tails) + 1
    bounds = [_bound_until(s[:end], n[:end], float(tails[end - 1])) for end in ends[::-1]]
    return min(bounds, key=lambda least: least.bound)


def _bound_until(s: _Floats, n: _Floats, tail: float) -> LeastBound:
    """Return bound and peak with the steps after the given parts left out, whose sum is `tail`."""
    total = float(suffix_sums(s * n)[0])
    squares = float(suffix_sums(s * s * n)[0])
    inner = double_sum(s, n, damping=0.0) + 2 * _TAIL_COST * tail
    # With S = Σ s, Q = Σ s² and the double sum D: T₁ = 1/(2S) and T₂ = (Q + D·S)/(2S). So with R = √(Q + D·S)
    # the peak is 1/R and the bound R/S. In this form a single step, R = S = s, gives exactly 1/s and 1.
    root = math.sqrt(squares + inner * total)
    return LeastBound(bound=root / total, peak=1 / root)
