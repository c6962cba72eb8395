"""A comparison of curves by their last-iterate bounds, relative to the first curve."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.several_curves import curves_to_draw
from plateau_jax.drawing import tables
from plateau_jax.drawing.sampling import legend_labels
from plateau_jax.theory.last_iterate import Outlook, outlook

_RATIOS = "Ratios to the first curve, each curve at its own best peak."

_LIMITS = (
    "They predict neither the loss itself nor the ranking at one fixed peak. In published runs (124M "
    "parameters, AdamW; nothing fitted), ranks by bound and by best loss correlate at 0.87 and 0.88 "
    "(Spearman; 25000 and 50000 steps), logarithms of the peak and of the best learning rate at 0.95 and "
    "0.93. If only the length changes, keep the peak."
)

NOTE = f"{_RATIOS} {_LIMITS}"


@dataclass(frozen=True)
class Comparison:
    """The predictions of theory for several curves, relative to the first; the result of `compare`.

    `print` shows it as text and a notebook as a table, both with a note on what the numbers mean.

    Attributes:
        names: The name of each curve.
        bounds: Each curve's bound divided by the first curve's; lower is better.
        peaks: Each curve's best peak divided by the first curve's, at equal length.

    >>> from plateau_jax import PlateauCurve, compare
    >>> table = compare({"linear": PlateauCurve(1000, decay_shape="linear"), "cosine": PlateauCurve(1000)})
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

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks."""
        return tables.as_html(_table_rows(self), NOTE)


@overload
def compare(curves: Iterable[Curve] | Mapping[str, Curve], /) -> Comparison: ...
@overload
def compare(*curves: Curve) -> Comparison: ...
def compare(*curves: Any) -> Comparison:
    """Compare curves by the predictions of theory, each at its best peak. The first curve is the reference.

        bounds[i] = outlook(curves[i]).bound / outlook(curves[0]).bound
        peaks[i]  = outlook(curves[i]).peak √T[i] / (outlook(curves[0]).peak √T[0])

    T[i] is the total_steps of curve i: peaks are compared at equal length. The peak of `outlook` falls with
    1/√T, but in the published runs of `docs/choosing.md`, keeping the peak when a run became longer did
    better.

    **What it predicts**: a curve with a lower bound should reach a lower loss, once its peak is tuned. If you
    have tuned the peak of the first curve, try peaks[i] times that peak for curve i.
    **What it does not predict**: the loss itself, or how two curves compare at one fixed peak. `outlook` has
    the formula, its sources, and how well it agrees with published training runs.

    Args:
        curves: Curves, or one list of curves, or one mapping from names to curves. An unnamed curve is named
            after what sets it apart from the others.

    Returns:
        The ratios, which print as a table.

    Raises:
        TypeError: An argument is not a `Curve`, or a name is not a string.
        ValueError: No curve was given, or one is 0 at every step.

    >>> from plateau_jax import PlateauCurve, compare
    >>> table = compare(PlateauCurve(1000), PlateauCurve(1000, plateaus=[(55, 40)]))
    >>> table.names
    ('no plateau', 'plateau 55–95 %')
    >>> [round(bound, 2) for bound in table.bounds], [round(peak, 2) for peak in table.peaks]
    ([1.0, 1.21], [1.0, 1.44])
    """
    checked = curves_to_draw("compare", curves)
    outlooks = [outlook(curve) for curve, _ in checked]
    peaks = [peak_at_equal_length(curve, each) for (curve, _), each in zip(checked, outlooks, strict=True)]
    return Comparison(
        tuple(legend_labels([to_draw for _, to_draw in checked])),
        tuple(each.bound / outlooks[0].bound for each in outlooks),
        tuple(peak / peaks[0] for peak in peaks),
    )


def peak_at_equal_length(curve: Curve, prediction: Outlook) -> float:
    """Return the best peak in units that do not depend on the number of steps."""
    return prediction.peak * math.sqrt(curve.total_steps)


def _table_rows(comparison: Comparison, first_peak: float = 1.0) -> list[tuple[str, ...]]:
    """Return a header and one row per curve."""
    rows = zip(comparison.names, comparison.bounds, comparison.peaks, strict=True)
    header = "", "bound", "best peak"
    return [header, *((name, f"{bound:#.4g}", f"{first_peak * peak:#.3g}") for name, bound, peak in rows)]


def as_text(comparison: Comparison, first_peak: float | None = None) -> str:
    """Return the table in columns and the note.

    Given the best peak of the first curve, show the best peak of each instead of ratios.
    """
    if first_peak is None:
        return tables.as_text(_table_rows(comparison), NOTE)
    meaning = f"Bounds relative to the first curve. Best peaks, if {first_peak:g} is the first curve's."
    return tables.as_text(_table_rows(comparison, first_peak), f"{meaning} {_LIMITS}")
