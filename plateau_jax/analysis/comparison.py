"""Curves side by side: what theory says of each, over what it says of the first."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, cast, overload

from plateau_jax.analysis.last_iterate import outlook
from plateau_jax.curves.curve import Curve
from plateau_jax.drawing import notebook
from plateau_jax.drawing.sampling import legend_labels
from plateau_jax.validation import checks

_RATIOS = "Ratios to the first curve, where each curve has its own best peak."

_LIMITS = (
    "They say nothing of the loss itself, nor of two curves at one fixed peak. In published trainings "
    "(124M parameters, AdamW; nothing fitted) the ranks by bound agree with the ranks by best loss by "
    "0.87 and 0.88 (Spearman; 25000 and 50000 steps), the logarithm of the peak with that of the best "
    "rate by 0.95 and 0.92."
)

NOTE = f"{_RATIOS} {_LIMITS}"


@dataclass(frozen=True)
class Comparison:
    """What theory says of several curves, over what it says of the first. See `compare`.

    `print` shows it as text, and a notebook as a table; both with what the numbers say, and what not.

    Attributes:
        names: What each curve is called.
        bounds: Each curve's bound over the first curve's; lower is better.
        peaks: Each curve's best peak over the first curve's.

    >>> from plateau_jax import PlateauCurve, compare
    >>> table = compare({"linear": PlateauCurve(1000, decay_shape="linear"), "cosine": PlateauCurve(1000)})
    >>> print(str(table).partition("Ratios")[0])
            bound   peak
    linear  1.000   1.00
    cosine  1.029  0.972
    <BLANKLINE>
    <BLANKLINE>
    """

    names: tuple[str, ...]
    bounds: tuple[float, ...]
    peaks: tuple[float, ...]

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        """The table as notebooks show it."""
        return f"<div>{notebook.table(_lines(self))}<div>{escape(NOTE)}</div></div>"


@overload
def compare(curves: Mapping[str, Curve], /) -> Comparison: ...
@overload
def compare(*curves: Curve) -> Comparison: ...
def compare(*curves: Any) -> Comparison:
    """Compare curves by what theory says of each, with its peak tuned. The first curve is the reference.

        bounds[i] = outlook(curves[i]).bound / outlook(curves[0]).bound
        peaks[i]  = outlook(curves[i]).peak  / outlook(curves[0]).peak

    **What it says**: a curve with a lower bound should reach a lower loss, once its peak is tuned. If you
    have tuned the peak of the first curve, try peaks[i] times that peak for curve i.
    **What it does not say**: anything of the loss itself, or of two curves at one fixed peak. `outlook` has
    the formula, its sources, and how well it agrees with published trainings.

    Args:
        curves: Curves; or one mapping, from a name to a curve. Without names a curve is called by what sets
            it apart from the others.

    Returns:
        The ratios. They print as a table.

    Raises:
        TypeError: Something is not a `Curve`, or a name is not a string.
        ValueError: There is no curve, or one has no positive rate.

    >>> from plateau_jax import PlateauCurve, compare
    >>> table = compare(PlateauCurve(1000), PlateauCurve(1000, plateaus=[(55, 40)]))
    >>> table.names
    ('no plateau', 'plateau 55–95 %')
    >>> [round(bound, 2) for bound in table.bounds], [round(peak, 2) for peak in table.peaks]
    ([1.0, 1.21], [1.0, 1.44])
    """
    named = _named(curves)
    if not named:
        raise ValueError("there is no curve: write compare(curve, other) or compare({'name': curve, ...})")
    found = [outlook(curve) for _, curve in named]
    return Comparison(
        tuple(name for name, _ in named),
        tuple(one.bound / found[0].bound for one in found),
        tuple(one.peak / found[0].peak for one in found),
    )


def _named(curves: tuple[Any, ...]) -> list[tuple[str, Curve]]:
    if len(curves) == 1 and isinstance(curves[0], Mapping):
        mapping = cast("Mapping[Any, Any]", curves[0])
        return [(_name(name), _curve(name, curve)) for name, curve in mapping.items()]
    found = [_curve(place, curve) for place, curve in enumerate(curves)]
    return (
        list(zip(legend_labels([curve._to_draw() for curve in found]), found, strict=True)) if found else []
    )


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name {name!r} of a curve must be a string")
    return name


def _curve(place: object, curve: Any) -> Curve:
    if not isinstance(curve, Curve):
        raise TypeError(
            f"curves[{place!r}] = {checks.short_repr(curve)} must be a Curve: write compare(curve, other) or "
            "compare({'name': curve, ...})"
        )
    return curve


def _lines(comparison: Comparison, first_peak: float | None = None) -> list[tuple[str, ...]]:
    """A header, and a line for each curve."""
    header = "", "bound", "peak" if first_peak is None else "best peak"
    by = 1.0 if first_peak is None else first_peak
    rows = zip(comparison.names, comparison.bounds, comparison.peaks, strict=True)
    return [header, *((name, f"{bound:#.4g}", f"{by * peak:#.3g}") for name, bound, peak in rows)]


def as_text(comparison: Comparison, first_peak: float | None = None) -> str:
    """The table in columns, and the note.

    With the best peak of the first curve it has the best peaks of all, in place of ratios.
    """
    lines = _lines(comparison, first_peak)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [f"{name:{widths[0]}}  {bound:>{widths[1]}}  {peak:>{widths[2]}}" for name, bound, peak in lines]
    found = _RATIOS
    if first_peak is not None:
        found = (
            f"Bounds over that of the first curve; best peaks, if {first_peak:g} is the best of that curve."
        )
    return "\n".join([*table, "", *textwrap.wrap(f"{found} {_LIMITS}", 90)])
