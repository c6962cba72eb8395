"""The last-iterate bound of convex optimization: a prediction from theory, before any training."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.numerics.exact_segments import nonempty_segments
from plateau_jax.validation import checks

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

MAX_PARTS = 2**20
"""Curves of more steps than this are summed in about this many parts."""

_BLOCK = 1024  # of the suffix sums

_TAIL_COST = 4
"""The factor of a tail's sum in T₂. The bound is valid from 1 on. From 2.6 on, linear and cosine decays to 0
keep all of their steps."""


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
    peak changes with the length: the theorem's falls with 1/√total_steps, but in the published runs of
    `docs/choosing.md`, keeping the peak when a run became longer did better. `compare` shows the ratios,
    those of the peaks at equal length.

    In published training runs of a language model (124M parameters, AdamW; nothing was fitted) the ranks by
    bound correlate with the ranks by best loss at 0.87 and 0.88 (Spearman; 25 000 and 50 000 steps), and the
    logarithm of the peak with that of the best learning rate at 0.95 and 0.93. At 50 000 steps these count
    all curves but the cosine to 10 %. The runs are those of fabian-sp/lr-scheduling, the code of Schaipp et
    al.

    Sums are float64. Up to 2²⁰ steps every step is summed, and the result is within 10⁻¹¹ of the formula; up
    to 10⁵ steps, within 10⁻¹². For longer curves, a segment that moves is cut into parts of one multiplier
    each, and a segment that holds is one part. The result is then within 10⁻³, unless a moving segment is
    shorter than total_steps/2²⁰.

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
    lengths, middles = _parts(check_curve("curve", curve))
    lrs = np.asarray(curve(middles), np.float64)
    # Zeros at the end would give 0/0; elsewhere they add nothing to any sum.
    lengths, lrs = lengths[lrs > 0].astype(np.float64), lrs[lrs > 0]
    if not len(lrs):
        raise ValueError(f"curve = {checks.short_repr(curve)} has no positive learning rate")
    tails = np.append(_suffix_sums(lrs * lengths)[1:], 0.0)
    # Few: the sum from a step on halves at least at each of them.
    ends = np.flatnonzero(lrs > tails) + 1
    outlooks = [_outlook_until(lrs[:end], lengths[:end], tails[end - 1]) for end in ends[::-1]]
    return min(outlooks, key=lambda outlook: outlook.bound)


def _outlook_until(lrs: _Floats, lengths: _Floats, tail: Any) -> Outlook:
    """Return bound and peak with the steps after the given ones left out, whose sum is `tail`."""
    sums, squares = _suffix_sums(lrs * lengths), _suffix_sums(lrs**2 * lengths)
    if lengths.max() == 1:
        double_sum = _double_sum(lrs, sums, squares)
    else:
        double_sum = _double_sum_of_parts(lrs, lengths, sums, squares)
    double_sum += 2 * _TAIL_COST * tail
    # With S = Σ s, Q = Σ s² and the double sum D: T₁ = 1/(2S) and T₂ = (Q + D·S)/(2S). So with R = √(Q + D·S)
    # the peak is 1/R and the bound R/S. In this form a single step, R = S = s, gives exactly 1/s and 1.
    root = np.sqrt(squares[0] + double_sum * sums[0])
    return Outlook(bound=float(root / sums[0]), peak=float(1 / root))


def _parts(curve: Curve) -> tuple[_Steps, _Steps]:
    """Cut a curve into parts, and return the length of each and the step in its middle."""
    if curve.total_steps <= MAX_PARTS:
        return np.ones(curve.total_steps, np.int64), np.arange(curve.total_steps)
    segments = [(row, after - row.begin) for row, after in nonempty_segments(curve.rows) if after is not None]
    moving = [length for row, length in segments if not row.holds]
    # Half of the parts are distributed equally among the segments that move, since a short last segment
    # contributes much to the bound; the other half in proportion to their lengths.
    per_segment, per_step = MAX_PARTS / 2 / max(1, len(moving)), MAX_PARTS / 2 / max(1, sum(moving))
    begins = list[_Steps]()
    for row, length in segments:
        parts = 1 if row.holds else 1 + int(per_segment + per_step * length)
        # Shorter parts towards both ends, where the curve may change much within a few steps.
        fractions = (1 - np.cos(np.linspace(0, np.pi, parts + 1))) / 2
        steps = (length * fractions[:-1]).astype(np.int64)
        # Without repetitions. `np.unique` would hash them, which takes longer than all the sums.
        begins.append(row.begin + steps[np.diff(steps, prepend=-1) > 0])
    borders = np.append(np.concatenate(begins), curve.total_steps)
    return np.diff(borders), (borders[:-1] + borders[1:] - 1) // 2


def _suffix_sums(values: _Floats) -> _Floats:
    """Return, for each index, the sum of the values from there to the end."""
    # Summed from the end, since total minus prefix cancels when the last values are small. And in blocks,
    # since the rounding errors of 2²⁰ equal values, added one by one, would all have the same sign.
    backwards = np.pad(values[::-1], (0, -len(values) % _BLOCK)).reshape(-1, _BLOCK)
    sums = np.cumsum(backwards, axis=1)
    sums[1:] += np.cumsum(sums[:-1, -1])[:, None]
    return sums.ravel()[: len(values)][::-1]


def _double_sum(lrs: _Floats, sums: _Floats, squares: _Floats) -> Any:
    """Return Σ_{k<T} (s_k / Σ_{t>k} s) · (Σ_{t≥k} s² / Σ_{t≥k} s)."""
    return np.sum(lrs[:-1] / sums[1:] * (squares[:-1] / sums[:-1]))


def _double_sum_of_parts(lrs: _Floats, lengths: _Floats, sums: _Floats, squares: _Floats) -> Any:
    """Return the same sum for parts of n steps at one learning rate s, in time independent of n."""
    # Let a and q be the sums of s and s² after a part, and count its steps j from its end. With partial
    # fractions, s/((a + (j-1)s)·(a + js)) = 1/(a + (j-1)s) - 1/(a + js), the part's sum telescopes:
    #     Σ_{j=1…n} s·(q + js²) / ((a + (j-1)s)·(a + js))
    #         = q·(1/a - 1/(a + ns)) + s·(ψ(A + n) - ψ(A) - n/(A + n)),    A = a/s,
    # where ψ(A + n) - ψ(A) = 1/A + … + 1/(A + n - 1). For s = a = q = 1 and n = 2, the left side is
    # 2/(1·2) + 3/(2·3) = 3/2, and the right side 1 - 1/3 + (1 + 1/2 - 2/3) = 3/2.
    after, squares_after = np.append(sums[1:], 0.0), np.append(squares[1:], 0.0)
    s, n, a, q = lrs[:-1], lengths[:-1], after[:-1], squares_after[:-1]
    inner = q * (n * s / (a * (a + n * s))) + s * (_digamma_difference(a / s, n) - n / (a / s + n))
    # For the last part a = q = 0, and the sum over k < T leaves out its last step: s·Σ_{j=2…n} 1/(j - 1).
    last = lrs[-1] * _digamma_difference(np.ones(1), lengths[-1:] - 1)[0]
    return np.sum(inner) + last


def _digamma_difference(x: _Floats, n: _Floats) -> _Floats:
    """Return ψ(x + n) - ψ(x) for x > 0 and n ≥ 0: 1/x + … + 1/(x + n - 1) for an integer n."""
    # ψ(x) = ψ(x + 8) - Σ_{i<8} 1/(x + i), and for x ≥ 8 the asymptotic series
    # ln x - 1/(2x) - 1/(12x²) + 1/(120x⁴) is within 2·10⁻⁸. `log1p` takes the difference of the logarithms,
    # which would cancel for x far above n.
    low, high = x + 8, x + n + 8
    below = sum(1 / (x + i) - 1 / (x + n + i) for i in range(8))
    series = [1 / (2 * y) + 1 / (12 * y**2) - 1 / (120 * y**4) for y in (low, high)]
    return below + np.log1p(n / low) + series[0] - series[1]
