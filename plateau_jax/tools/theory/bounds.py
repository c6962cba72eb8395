"""Compare curves by their last-iterate bounds, a prediction of convex optimization."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from plateau_jax.tools.drawing import tables
from plateau_jax.tools.drawing.legend import legend_labels
from plateau_jax.tools.drawing.plots import name_curves
from plateau_jax.tools.theory.step_bins import step_bins

_Floats = NDArray[np.float64]

_TAIL_COST = 4
"""The factor of a tail's sum in T₂.

The bound is valid for factors from 1 on; with 2.6 or more, linear and cosine decays to 0 keep all
of their steps.
"""

NOTE = (
    "The first curve is the reference, and each curve is at its own best peak. Each step counts as "
    "one update at a constant batch size, so this is not the bound of a run with BatchPlan.scale. "
    "The numbers predict neither the loss itself nor the ranking at one fixed peak. In published "
    "runs (124M parameters, AdamW; nothing fitted), ranks by bound and by best loss correlate at "
    "0.87 and 0.88 (Spearman; 25000 and 50000 steps), logarithms of predicted and best peaks at "
    "0.95 and 0.93. If only the length changes, keep the peak."
)
"""The text below a table of bounds, whose best peaks are ratios or learning rates."""


class LeastBound(NamedTuple):
    """The last-iterate bound of a curve at the peak that minimizes it, for G = D = 1."""

    bound: float
    peak: float


@dataclass(frozen=True)
class Comparison:
    """The predictions of theory for several curves; `compare` describes the fields.

    >>> from plateau_jax import PlateauCurve, compare
    >>> linear = PlateauCurve(1000, decay_shape="linear")
    >>> table = compare({"linear": linear, "cosine": PlateauCurve(1000)})
    >>> print(str(table).partition("The first")[0])
            bound  best peak
    linear  1.000       1.00
    cosine  1.029      0.972
    <BLANKLINE>
    <BLANKLINE>
    """

    names: tuple[str, ...]
    bounds: tuple[float, ...]
    peaks: tuple[float, ...]
    bound: float
    peak: float

    def __str__(self) -> str:
        return as_text(self, 1.0)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks."""
        return tables.as_html(str(self))


@overload
def compare(curves: Iterable[Curve] | Mapping[str, Curve], /) -> Comparison: ...
@overload
def compare(*curves: Curve) -> Comparison: ...
def compare(*curves: Curve | Iterable[Curve] | Mapping[str, Curve]) -> Comparison:
    """Compare curves by the predictions of theory, each at its best peak.

    The first curve is the reference.

    Let s₁ … s_T be the multipliers curve(0) … curve(total_steps - 1) without zeros. Theory bounds
    the loss of SGD on a convex problem after its last step. The bound depends on a bound G of the
    gradients and on the distance D from the start to a minimum. Here G = D = 1, because ratios
    don't depend on them. The bound is lowest at this peak:

        T₁ = 1 / (2 Σ s)
        T₂ = Σ s² / (2 Σ s) + ½ Σ_{k<T} (s_k / Σ_{t>k} s) · (Σ_{t≥k} s² / Σ_{t≥k} s)
        peak = √(T₁/T₂),   bound = 2 √(T₁ T₂)
        bounds[i] = bound of curve i / bound of the first
        peaks[i]  = peak of curve i · √total_steps / (peak of the first · √total_steps of the first)

    This bound is far too high if tiny multipliers follow large ones. So it is also computed for
    each step E with s_E > Σ_{t>E} s: without the steps after E, but with 4 Σ_{t>E} s, a bound on
    the effect of these steps, added to T₂. The lowest of the bounds is used.

    A curve with a smaller bound should reach a lower loss, once its peak is tuned. If you have
    tuned the peak of the first curve, try peaks[i] times that peak for curve i. The bound predicts
    neither the loss itself, nor how curves compare at one fixed peak, nor how the best peak changes
    with the length. `docs/evidence.md` says how well it did in published runs.

    Each step counts as one update at a constant batch size. A run with `BatchPlan.scale` makes
    fewer updates with larger batch sizes, so this is not its bound, and a note says so. Up to 2²⁰
    steps the numbers are within 10⁻¹¹ of the formula, above that within 10⁻⁵.

    Source: Defazio et al. 2023, arXiv:2310.07831, theorem 10; Schaipp et al. 2025,
    arXiv:2501.18965.

    Args:
        curves: Curves, or one list of curves, or one mapping from names to curves. A curve without
            a name is named after the arguments that distinguish it.

    Returns:
        Three tuples with an entry per curve, `names`, `bounds` and `peaks`, and two numbers of the
        first curve for G = D = 1, `bound` and `peak`. `print` shows the tuples as text, a notebook
        shows them as a table, both with a note that explains the numbers. A smaller bound is
        better.

    Raises:
        TypeError: An argument is not a `Curve`.
        ValueError: No curve was given, or one is 0 at every step.

    >>> from plateau_jax import PlateauCurve, compare
    >>> table = compare(PlateauCurve(1000), PlateauCurve(1000, plateaus=[(55, 40)]))
    >>> table.names
    ('no plateaus', 'plateau (55, 40)')
    >>> [round(bound, 2) for bound in table.bounds], [round(peak, 2) for peak in table.peaks]
    ([1.0, 1.21], [1.0, 1.44])
    """
    checked = name_curves(curves)
    names = legend_labels(checked)
    minima = [minimize_bound(curve) for curve, _ in checked]
    first = minima[0]
    first_peak = peak_at_equal_length(checked[0][0], first)

    bounds: list[float] = []
    peaks: list[float] = []
    for (curve, _), least in zip(checked, minima, strict=True):
        bounds.append(least.bound / first.bound)
        peaks.append(peak_at_equal_length(curve, least) / first_peak)
    return Comparison(tuple(names), tuple(bounds), tuple(peaks), first.bound, first.peak)


def _table_rows(comparison: Comparison, first_peak: float) -> list[tuple[str, ...]]:
    """Return a header and one row per curve."""
    rows: list[tuple[str, ...]] = [("", "bound", "best peak")]
    columns = zip(comparison.names, comparison.bounds, comparison.peaks, strict=True)
    for name, bound, peak in columns:
        rows.append((name, f"{bound:#.4g}", f"{first_peak * peak:#.3g}"))
    return rows


def as_text(comparison: Comparison, first_peak: float) -> str:
    """Return the table and its note as text, given the best peak of the first curve."""
    return tables.as_text(_table_rows(comparison, first_peak), NOTE)


def peak_at_equal_length(curve: Curve, least: LeastBound) -> float:
    """Return the best peak in units that do not depend on the number of steps."""
    return least.peak * math.sqrt(curve.total_steps)


def minimize_bound(curve: Curve) -> LeastBound:
    """Return the least last-iterate bound of a curve and the peak that attains it.

    `compare` has the formula.

    Raises:
        ValueError: The curve is 0 at every step.

    >>> from plateau_jax import PlateauCurve
    >>> minimize_bound(PlateauCurve(1))
    LeastBound(bound=1.0, peak=1.0)
    """
    s, n = step_bins(curve)
    if not len(s):
        raise ValueError(f"curve = {checks.short_repr(curve)} has no positive learning rate")
    tails = _suffix_sums(s * n)[1:]
    # There are few such ends, because the sum of the remaining steps at least halves at each.
    ends = np.flatnonzero(s > tails) + 1
    bounds: list[LeastBound] = []
    for end in ends[::-1]:
        tail = float(tails[end - 1])
        bounds.append(_bound_until(s[:end], n[:end], tail))
    return min(bounds, key=lambda least: least.bound)


def _bound_until(s: _Floats, n: _Floats, tail: float) -> LeastBound:
    """Return the bound and peak of the first bins; the multipliers after them sum to `tail`.

    A bin has n steps with the multiplier s. All terms of the double sum

        Σ_{k<T-1} s_k / Σ_{j>k} s_j · (Σ_{j≥k} s_j² / Σ_{j≥k} s_j)

    that belong to a bin are taken at its middle.
    """
    sums = _suffix_sums(s * n)
    sums_of_squares = _suffix_sums(s * s * n)
    after = sums[1:] + s * (n - 1) / 2
    squares = sums_of_squares[1:] + s * s * (n + 1) / 2
    counts = n.copy()
    counts[-1] -= 1  # the last step has no term
    # Nothing is left to divide by after the last step.
    denominators = np.where(counts > 0, after, 1.0)
    double_sum = float(np.sum(counts * s / denominators * squares / (after + s)))
    double_sum += 2 * _TAIL_COST * tail
    # With S = Σ s, Q = Σ s² and the double sum D: T₁ = 1/(2S) and T₂ = (Q + D·S)/(2S). So with R =
    # √(Q + D·S) the peak is 1/R and the bound R/S. In this form a single step, R = S = s, gives
    # exactly 1/s and 1.
    total = float(sums[0])
    root = math.sqrt(float(sums_of_squares[0]) + double_sum * total)
    return LeastBound(bound=root / total, peak=1 / root)


def _suffix_sums(values: _Floats) -> _Floats:
    """Return the sum of the values from each index on, and 0 at the end.

    >>> _suffix_sums(np.array([1.0, 2.0, 4.0])).tolist()
    [7.0, 6.0, 4.0, 0.0]
    """
    # Summed from the end: the total minus a prefix would cancel if the last values are small.
    sums_from_end = np.cumsum(values[::-1])
    return np.append(sums_from_end[::-1], 0.0)
