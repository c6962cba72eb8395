"""What theory says of a curve before a training: the last-iterate bound of convex optimization."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curve import Curve

_Floats = NDArray[np.float64]

MOST_PARTS = 2**20
"""A curve of more steps is cut into so many parts."""


@dataclass(frozen=True)
class Outlook:
    """What theory says of a curve, with its peak tuned. See `outlook`.

    >>> from plateau_jax import PlateauCurve, outlook
    >>> outlook(PlateauCurve(1))
    Outlook(bound=1.0, peak=1.0)
    """

    bound: float
    """The bound of the last iterate's loss, for G = D = 1; only ratios of two bounds have a meaning."""
    peak: float
    """The peak at which the bound is least, for G = D = 1; only ratios of two peaks have a meaning."""


def outlook(curve: Curve) -> Outlook:
    """The last-iterate bound of convex optimization for SGD under a curve, tuned.

    With s₁ … s_T the rates curve(0) … curve(total_steps - 1), those that are 0 left out, and G = D = 1:

        T₁ = 1 / (2 Σ s)
        T₂ = Σ s² / (2 Σ s) + ½ Σ_{k<T} (s_k / Σ_{t>k} s) · (Σ_{t≥k} s² / Σ_{t≥k} s)
        peak = √(T₁/T₂),   bound = 2 √(T₁ T₂)

    It compares curves whose peaks are tuned, in ratios. It says nothing of the loss itself, nor of two
    curves at one fixed peak.

    Above 2²⁰ steps a curve is cut into 2²⁰ parts, in each of which the rate is taken to be constant. The
    result is then within 10⁻³, where no moving segment is shorter than a part.

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
    if not isinstance(curve, Curve):  # pyright: ignore[reportUnnecessaryIsInstance]  (users without types)
        raise TypeError(f"curve = {curve!r} must be a Curve")
    steps = curve.total_steps
    begins = np.linspace(0, steps, min(steps, MOST_PARTS) + 1).astype(np.int64)
    lengths, middles = np.diff(begins), (begins[:-1] + begins[1:] - 1) // 2
    rates = np.asarray(curve(middles), np.float64)
    lengths, rates = lengths[rates > 0].astype(np.float64), rates[rates > 0]
    if not len(rates):
        raise ValueError(f"curve = {curve!r} has no positive rate")
    # Summed from the end: where rates end low, forward sums would lose their digits.
    sums, squares = _from_the_end(rates * lengths), _from_the_end(rates**2 * lengths)
    within = (
        _terms(rates, sums, squares) if steps <= MOST_PARTS else _part_terms(rates, lengths, sums, squares)
    )
    # T₁/T₂ = 1/(Σ s² + within Σ s), and 4 T₁ T₂ is its inverse over (Σ s)²: so one step alone is exact.
    root = np.sqrt(squares[0] + within * sums[0])
    return Outlook(bound=float(root / sums[0]), peak=float(1 / root))


def _from_the_end(values: _Floats) -> _Floats:
    """At each place the sum from there to the end."""
    return np.cumsum(values[::-1])[::-1]


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
    shift = 16.0
    # ψ(x) = ψ(x + 16) - Σ 1/(x + i), and from 16 on ln x - 1/(2x) - 1/(12x²) has error below 10⁻⁷.
    below = sum(1 / (x + i) - 1 / (x + n + i) for i in range(int(shift)))
    low, high = x + shift, x + n + shift
    return below + np.log1p(n / low) + (1 / low - 1 / high) / 2 + (1 / low**2 - 1 / high**2) / 12
