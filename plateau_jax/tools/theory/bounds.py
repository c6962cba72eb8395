"""Compare curves by their last-iterate bounds, a prediction of convex optimization."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from plateau_jax.tools.drawing import tables
from plateau_jax.tools.drawing.legend import legend_labels
from plateau_jax.tools.drawing.plots import name_curves
from plateau_jax.tools.theory.step_bins import last_iterate_sums, step_bins, suffix_sums

_Floats = NDArray[np.float64]

MAX_SINGLE_STEPS = 2**20
"""Up to this many steps, every step is summed; above, bins of several steps."""

_NEAREST = 512
"""Number of last steps that are summed one by one even then."""

_TAIL_COST = 4
"""The factor of a tail's sum in T₂.

The bound is valid for factors from 1 on; with 2.6 or more, linear and cosine decays to 0 keep all
of their steps.
"""

_RATIOS = "Ratios to the first curve, each curve at its own best peak."

_LIMITS = (
    "They predict neither the loss itself nor the ranking at one fixed peak. In published runs "
    "(124M parameters, AdamW; nothing fitted), ranks by bound and by best loss correlate at 0.87 "
    "and 0.88 (Spearman; 25000 and 50000 steps), logarithms of predicted and best peaks at 0.95 "
    "and 0.93. If only the length changes, keep the peak."
)

_OF_SCALED = (
    "compare treats each step as one update at a constant batch size. A run with BatchPlan.scale "
    "makes fewer, larger updates, so this is not its bound."
)


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
    >>> print(str(table).partition("Ratios")[0])
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
    _is_scaled: bool = field(default=False, repr=False, kw_only=True)
    """True if a curve follows a batch plan."""

    def __str__(self) -> str:
        return tables.as_text(_table_rows(self, 1.0), note(is_scaled=self._is_scaled))

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
    is_scaled = any(curve.unit is not None for curve, _ in checked)
    return Comparison(
        tuple(names),
        tuple(bounds),
        tuple(peaks),
        first.bound,
        first.peak,
        _is_scaled=is_scaled,
    )


def note(introduction: str = _RATIOS, *, is_scaled: bool) -> str:
    """Return the text below a table of bounds.

    Args:
        introduction: What the columns are relative to.
        is_scaled: True if a curve follows a batch plan.
    """
    if is_scaled:
        return f"{introduction} {_OF_SCALED} {_LIMITS}"
    return f"{introduction} {_LIMITS}"


def _table_rows(comparison: Comparison, first_peak: float) -> list[tuple[str, ...]]:
    """Return a header and one row per curve."""
    rows: list[tuple[str, ...]] = [("", "bound", "best peak")]
    columns = zip(comparison.names, comparison.bounds, comparison.peaks, strict=True)
    for name, bound, peak in columns:
        rows.append((name, f"{bound:#.4g}", f"{first_peak * peak:#.3g}"))
    return rows


def as_text(comparison: Comparison, first_peak: float) -> str:
    """Return the table and its note as text, given the best peak of the first curve."""
    peaks = f"Best peaks, if {first_peak:g} is the first curve's."
    introduction = f"Bounds relative to the first curve. {peaks}"
    text = note(introduction, is_scaled=comparison._is_scaled)
    return tables.as_text(_table_rows(comparison, first_peak), text)


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
    s, n = step_bins(curve, MAX_SINGLE_STEPS, _NEAREST)
    if not len(s):
        raise ValueError(f"curve = {checks.short_repr(curve)} has no positive learning rate")
    tails = suffix_sums(s * n)[1:]
    # There are few such ends, because the sum of the remaining steps at least halves at each.
    ends = np.flatnonzero(s > tails) + 1
    bounds: list[LeastBound] = []
    for end in ends[::-1]:
        tail = float(tails[end - 1])
        bounds.append(_bound_until(s[:end], n[:end], tail))
    return min(bounds, key=lambda least: least.bound)


def _bound_until(s: _Floats, n: _Floats, tail: float) -> LeastBound:
    """Return the bound and peak of the first bins; the multipliers after them sum to `tail`."""
    total, squares, inner = last_iterate_sums(s, n)
    inner += 2 * _TAIL_COST * tail
    # With S = Σ s, Q = Σ s² and the double sum D: T₁ = 1/(2S) and T₂ = (Q + D·S)/(2S). So with R =
    # √(Q + D·S) the peak is 1/R and the bound R/S. In this form a single step, R = S = s, gives
    # exactly 1/s and 1.
    root = math.sqrt(squares + inner * total)
    return LeastBound(bound=root / total, peak=1 / root)
