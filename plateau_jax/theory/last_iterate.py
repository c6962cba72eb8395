"""The last-iterate bound of convex optimization: a prediction from theory, before any training."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.theory.curve_parts import double_sum, parts_before, suffix_sums
from plateau_jax.validation import checks

_Floats = NDArray[np.float64]

MAX_SINGLE_STEPS = 2**20
"""Up to this many steps, every step is summed; above, parts of several steps at one learning rate."""

_TAIL_COST = 4
"""The factor of a tail's sum in T₂. The bound is valid for factors from 1 on; with 2.6 or more, linear and
cosine decays to 0 keep all of their steps."""


@dataclass(frozen=True)
class Outlook:
    """The last-iterate bound of a curve at its best peak; the result of `outlook`.

    Only ratios to the numbers of a different curve are meaningful.

    Attributes:
        bound: The bound on the last iterate's loss at the best peak, for G = D = 1.
        peak: The best peak, which minimizes the bound, for G = D = 1.

    >>> from plateau_jax import PlateauCurve, outlook
    >>> outlook(PlateauCurve(1))
    Outlook(bound=1.0, peak=1.0)
    """

    bound: float
    peak: float


def outlook(curve: Curve) -> Outlook:
    """Return the last-iterate bound of convex optimization for SGD under a curve, at the best peak.

    Every step counts as one update of the same batch, also those of a curve from `BatchPlan.scale`.

    With s₁ … s_T the multipliers curve(0) … curve(total_steps - 1), zeros left out, and G = D = 1:

        T₁ = 1 / (2 Σ s)
        T₂ = Σ s² / (2 Σ s) + ½ Σ_{k<T} (s_k / Σ_{t>k} s) · (Σ_{t≥k} s² / Σ_{t≥k} s)
        peak = √(T₁/T₂),   bound = 2 √(T₁ T₂)

    This bound is far too high if tiny multipliers follow large ones, as in 900 steps of 1, then 100 of 10⁻⁸:
    s_k / Σ_{t>k} s is then large, though the last steps hardly move the weights. So for each step E with
    s_E > Σ_{t>E} s the numbers are also computed with the steps after E left out of all sums, and 4 Σ_{t>E} s
    added to T₂ as their cost: they change the loss by at most G² times the sum of their learning rates. The
    lowest bound counts. Linear and cosine decays to 0 keep all of their steps.

    **What it predicts**: the ratios of these numbers compare curves, each at its own best peak. A lower bound
    should mean a lower loss, and the ratio of two peaks says how the best peak changes between curves of one
    length.
    **What it does not predict**: the loss itself, how two curves compare at one fixed peak, or how the best
    peak changes with the length: the theorem's peak falls with 1/√total_steps, but in the published runs of
    `docs/choosing.md`, longer runs did better with an unchanged peak. `compare` shows both ratios, that of
    the peaks for curves of equal length.

    In published training runs of a language model (124M parameters, AdamW; nothing was fitted) the ranks by
    bound correlate with the ranks by best loss at 0.87 and 0.88 (Spearman; 25 000 and 50 000 steps), and the
    logarithm of the peak with that of the best learning rate at 0.95 and 0.93. The figures at 50 000 steps
    leave out the cosine that ends at 10 % of its peak. The runs are those of fabian-sp/lr-scheduling, the
    code of Schaipp et al.

    Sums are float64. Up to 2²⁰ steps every step is summed, and the result is within 10⁻¹¹ of the formula; up
    to 10⁵ steps, within 10⁻¹². Longer curves are summed in parts of several steps, within 10⁻⁵.

    Source: Defazio et al. 2023, arXiv:2310.07831, theorem 10; Schaipp et al. 2025, arXiv:2501.18965.

    Args:
        curve: Any `Curve`.

    Returns:
        The bound and the peak, Python floats.

    Raises:
        TypeError: Not a `Curve`.
        ValueError: The curve is 0 at every step.

    >>> from plateau_jax import PlateauCurve, outlook
    >>> cosine, linear = PlateauCurve(1000), PlateauCurve(1000, decay_shape="linear")
    >>> round(outlook(cosine).bound / outlook(linear).bound, 2)
    1.03
    """
    s, n = parts_before(check_curve("curve", curve), curve.total_steps, MAX_SINGLE_STEPS)
    if not len(s):
        raise ValueError(f"curve = {checks.short_repr(curve)} has no positive learning rate")
    tails = suffix_sums(s * n)[1:]
    # Few: the sum from a step on halves at least at each of them.
    ends = np.flatnonzero(s > tails) + 1
    outlooks = [_outlook_until(s[:end], n[:end], float(tails[end - 1])) for end in ends[::-1]]
    return min(outlooks, key=lambda outlook: outlook.bound)


def _outlook_until(s: _Floats, n: _Floats, tail: float) -> Outlook:
    """Return bound and peak with the steps after the given parts left out, whose sum is `tail`."""
    sums, squares = suffix_sums(s * n), suffix_sums(s * s * n)
    inner = double_sum(s, s * s, n, sums[1:], squares[1:], damping=0.0) + 2 * _TAIL_COST * tail
    # With S = Σ s, Q = Σ s² and the double sum D: T₁ = 1/(2S) and T₂ = (Q + D·S)/(2S). So with R = √(Q + D·S)
    # the peak is 1/R and the bound R/S. In this form a single step, R = S = s, gives exactly 1/s and 1.
    root = math.sqrt(squares[0] + inner * sums[0])
    return Outlook(bound=root / float(sums[0]), peak=1 / root)
