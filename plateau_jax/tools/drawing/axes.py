"""Plots of curves in matplotlib Axes."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from plateau_jax.arguments import checks
from plateau_jax.lazy_names import naming_missing_package
from plateau_jax.table.exact_segments import ExactSegment
from plateau_jax.tools.drawing.legend import NamedCurve, legend_labels
from plateau_jax.tools.drawing.sampling import FILLS, OPACITY, shaded_spans, steps_to_draw

# Different styles keep lines distinct in black and white.
LINE_STYLES = "-", "--", "-.", ":", (0, (9, 2)), (0, (5, 1, 1, 1, 1, 1))

# For the same reason, a warmup is hatched.
HATCHES = {"warmup": "////", "plateau": None}


def draw(named_curves: Sequence[NamedCurve], peak_value: float, ax: Any) -> Any:
    """Plot the learning rates of curves in one Axes; see `plateau_jax.plot`."""
    peak = checks.peak("peak_value", peak_value)
    if ax is None:
        ax = current_axes()

    is_single = len(named_curves) == 1
    handles: list[Any] = []
    if is_single and not ax.lines:
        handles += _shade_spans(ax, named_curves[0].curve._exact_segments)
    labels = legend_labels(named_curves)
    for (curve, _), label, style in zip(named_curves, labels, cycle(LINE_STYLES), strict=False):
        steps = steps_to_draw(curve._exact_segments)
        handles += ax.plot(steps, peak * curve(steps), label=label, linestyle=style)

    ax.set_xlabel("step")
    if peak_value == 1.0:
        ax.set_ylabel("multiplier")
    else:
        ax.set_ylabel("learning rate")
    ax.grid(alpha=0.3)
    if is_single and named_curves[0].name is None:
        handles.pop()  # The line of a single curve without a name needs no entry in the legend.
    if handles:
        # Out of the layout, so that a long label does not squeeze the Axes.
        ax.legend(handles=handles, fontsize="small", handlelength=3.5).set_in_layout(False)
    return ax


def current_axes() -> Any:
    """Return pyplot's current Axes; say what to install if matplotlib is missing."""
    with naming_missing_package("plot", "plot"):
        import matplotlib.pyplot as plt  # optional, and not needed if Axes are given
    return plt.gca()


def _shade_spans(ax: Any, segments: Sequence[ExactSegment]) -> list[Any]:
    """Shade warmups and plateaus; return the first of each, for the legend."""
    first_of_each: dict[str, Any] = {}
    for name, begin, after in shaded_spans(segments):
        fill = FILLS[name]
        span = ax.axvspan(
            begin,
            after,
            facecolor=(fill, OPACITY),
            edgecolor=(fill, 2 * OPACITY),
            hatch=HATCHES[name],
            linewidth=0.5,
            zorder=0.5,
        )
        if name not in first_of_each:
            span.set_label(name)
            first_of_each[name] = span
    return list(first_of_each.values())
