"""What theory says of a curve before a training: the last-iterate bound of convex optimization."""

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
"""A curve of more steps is cut into about so many parts."""

_BLOCK = 1024


@dataclass(frozen=True)
class Outlook:
    """What theory says of a curve, with its peak tuned. See `outlook`.

    Only ratios to another curve's numbers have a meaning.

    Attributes:
        bound: The bound of the last iterate's loss at the best peak, for G = D = 1.
        peak: The best peak, at which the bound is least, for G = D = 1.

    >>> from plateau_jax import PlateauCurve, outlook
    >>> outlook(PlateauCurve(1))
    Outlook(bound=1.0, peak=1.0)
    """

    bound: float
    peak: float


def outlook(curve: Curve) -> Outlook:
    """The last-iterate bound of convex optimization for SGD under a curve, tuned.

    With s₁ … s_T the rates curve(0) … curve(total_steps - 1), those that are 0 left out, and G = D = 1:

        T₁ = 1 / (2 Σ s)
        T₂ = Σ s² / (2 Σ s) + ½ Σ_{k<T} (s_k / Σ_{t>k} s) · (Σ_{t≥k} s² / Σ_{t≥k} s)
        peak = √(T₁/T₂),   bound = 2 √(T₁ T₂)

    **What it says**: it compares curves, each at its own best peak, by the ratios of these numbers. A lower
    bound should mean a lower loss, and a ratio of peaks says how the best peak moves from curve to curve.
    **What it does not say**: anything of the loss itself, or of two curves at one fixed peak. `compare`
    shows the ratios.

    In published trainings of a language model (124M parameters, AdamW; nothing was fitted) the ranks by bound
    agree with the ranks by best loss by 0.87 and 0.88 (Spearman; 25 000 and 50 000 steps), the logarithm of
    the peak with that of the best rate by 0.95 and 0.92. The runs are those of fabian-sp/lr-scheduling, the
    code of Schaipp et al.

    The sums are float64, and are taken from the end: forward sums lose digits where rates end low. Up to 2²⁰
    steps each step is summed, and the result is within 10⁻¹¹ of the formula, up to 10⁵ steps within 10⁻¹².
    Above, a segment that moves is cut into parts of one rate each, and a segment that holds is one part;
    steps are summed within each part. The result is within 10⁻³, where no moving segment is shorter than
    total_steps/2²⁰.

    Source: Defazio et al. 2023, arXiv:2310.07831, theorem 10; Schaipp et al. 2025, arXiv:2501.18965.

    Args:
        curve: Any `Curve`.

    Returns:
        The bound and the peak, Python floats.

    Raises:
        TypeError: Not a `Curve`.
        ValueError: The curve has no positive rate.

    >>> from plateau_jax import PlateauCurve, outlook
    >>> cosine, linear = PlateauCurve(1000), PlateauCurve(1000, decay_shape="linear")
    >>> round(outlook(cosine).bound / outlook(linear).bound, 2)
    1.03
    """
    lengths, middles = _parts(check_curve("curve", curve))
    rates = np.asarray(curve(middles), np.float64)
    lengths, rates = lengths[rates > 0].astype(np.float64), rates[rates > 0]
    if not len(rates):
        raise ValueError(f"curve = {checks.short_repr(curve)} has no positive rate")
    sums, squares = _from_the_end(rates * lengths), _from_the_end(rates**2 * lengths)
    if lengths.max() == 1:
        within = _terms(rates, sums, squares)
    else:
        within = _part_terms(rates, lengths, sums, squares)
    # T₁/T₂ = 1/(Σ s² + within Σ s), and 4 T₁ T₂ is its inverse over (Σ s)²: so one step alone is exact.
    root = np.sqrt(squares[0] + within * sums[0])
    return Outlook(bound=float(root / sums[0]), peak=float(1 / root))


def _parts(curve: Curve) -> tuple[_Steps, _Steps]:
    """The length of each part, and the step in its middle.

    One half of the parts is shared out equally among the segments that move, since a short last segment
    counts for much; the other half by their lengths.
    """
    if curve.total_steps <= MAX_PARTS:
        return np.ones(curve.total_steps, np.int64), np.arange(curve.total_steps)
    segments = [(row, after - row.begin) for row, after in nonempty_segments(curve.rows) if after is not None]
    moving = [length for row, length in segments if not row.holds]
    each, per_step = MAX_PARTS / 2 / max(1, len(moving)), MAX_PARTS / 2 / max(1, sum(moving))
    begins = list[_Steps]()
    for row, length in segments:
        parts = 1 if row.holds else 1 + int(each + per_step * length)
        # Shorter towards both ends: there a rate may change much within few steps.
        shares = (1 - np.cos(np.linspace(0, np.pi, parts + 1))) / 2
        begins.append(row.begin + np.unique((length * shares[:-1]).astype(np.int64)))
    borders = np.append(np.concatenate(begins), curve.total_steps)
    return np.diff(borders), (borders[:-1] + borders[1:] - 1) // 2


def _from_the_end(values: _Floats) -> _Floats:
    """At each place the sum from there to the end.

    Blocks are summed first, then within each block: the rounding errors of 2²⁰ equal values, added up one by
    one, would all go the same way.
    """
    backwards = np.pad(values[::-1], (0, -len(values) % _BLOCK)).reshape(-1, _BLOCK)
    sums = np.cumsum(backwards, axis=1)
    sums[1:] += np.cumsum(sums[:-1, -1])[:, None]
    return sums.ravel()[: len(values)][::-1]


def _terms(rates: _Floats, sums: _Floats, squares: _Floats) -> Any:
    """Σ_{k<T} (s_k / Σ_{t>k} s) · (Σ_{t≥k} s² / Σ_{t≥k} s)."""
    return np.sum(rates[:-1] / sums[1:] * (squares[:-1] / sums[:-1]))


def _part_terms(rates: _Floats, lengths: _Floats, sums: _Floats, squares: _Floats) -> Any:
    """The same sum, over parts of n steps at one rate s.

    With a and q the sums of s and s² after a part, A = a/s, and the part's steps counted from its end:

        Σ_{j=1…n} s·(q + j s²) / ((a + (j-1) s)·(a + j s))
            = q·(1/a - 1/(a + n s)) + s·(ψ(A + n) - ψ(A) - n/(A + n))
    """
    after, squares_after = np.append(sums[1:], 0.0), np.append(squares[1:], 0.0)
    s, n, a, q = rates[:-1], lengths[:-1], after[:-1], squares_after[:-1]
    whole = q * (n * s / (a * (a + n * s))) + s * (_digamma_difference(a / s, n) - n / (a / s + n))
    # In the last part, after which nothing comes, the last step has no term: s Σ_{j=2…n} 1/(j - 1).
    last = rates[-1] * _digamma_difference(np.ones(1), lengths[-1:] - 1)[0]
    return np.sum(whole) + last


def _digamma_difference(x: _Floats, n: _Floats) -> _Floats:
    """ψ(x + n) - ψ(x) for x > 0 and n >= 0: 1/x + … + 1/(x + n - 1) where n is an integer."""
    # ψ(x) = ψ(x + 8) - Σ 1/(x + i), and from 8 on ln x - 1/(2x) - 1/(12x²) + 1/(120x⁴) is within 2·10⁻⁸.
    low, high = x + 8, x + n + 8
    below = sum(1 / (x + i) - 1 / (x + n + i) for i in range(8))
    series = [1 / (2 * y) + 1 / (12 * y**2) - 1 / (120 * y**4) for y in (low, high)]
    return below + np.log1p(n / low) + series[0] - series[1]
