"""Plots in matplotlib Axes: of curves, of losses over steps with forecasts, and of losses over peaks."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from numpy.typing import NDArray

from plateau_jax.drawing.sampling import (
    FILLS,
    OPACITY,
    CurveToDraw,
    legend_labels,
    shaded_spans,
    steps_to_draw,
)
from plateau_jax.numerics.exact_segments import ExactSegment
from plateau_jax.validation import checks
from plateau_jax.validation.lazy_names import missing_package_error

# For lines and spans to remain distinct in black and white.
LINE_STYLES = "-", "--", "-.", ":", (0, (9, 2)), (0, (5, 1, 1, 1, 1, 1))


def draw(curves: Sequence[CurveToDraw], peak_value: float, ax: Any) -> Any:
    """Plot the learning rates of curves in one Axes; see `plateau_jax.plot`."""
    peak = checks.peak("peak_value", peak_value)
    ax = current_axes() if ax is None else ax
    handles = [*_shade_spans(ax, curves[0].rows)] if len(curves) == 1 and not ax.lines else []
    for curve, label, style in zip(curves, legend_labels(curves), cycle(LINE_STYLES), strict=False):
        steps = steps_to_draw(curve.rows)
        handles += ax.plot(steps, peak * curve.values_at(steps), label=label, linestyle=style)
    ax.set(xlabel="step", ylabel="learning rate" if peak_value != 1.0 else "multiplier")
    ax.grid(alpha=0.3)
    # The line of a single curve without a name needs no entry in the legend.
    if shown := handles[:-1] if len(curves) == 1 and curves[0].name is None else handles:
        # Out of the layout, so that a long label does not squeeze the Axes.
        ax.legend(handles=shown, fontsize="small", handlelength=3.5).set_in_layout(False)
    return ax


def current_axes() -> Any:
    """Return pyplot's current Axes; say what to install if matplotlib is missing."""
    try:
        import matplotlib.pyplot as plt  # optional, and not needed if Axes are given
    except ModuleNotFoundError as error:
        raise missing_package_error("plot", error, "plot") from None
    return plt.gca()


def _shade_spans(ax: Any, rows: Sequence[ExactSegment]) -> Iterator[Any]:
    """Shade warmups and plateaus; yield the first of each, for the legend."""
    seen: set[str] = set()
    for name, begin, after in shaded_spans(rows):
        look = {"facecolor": (FILLS[name], OPACITY), "edgecolor": (FILLS[name], 2 * OPACITY)}
        hatch = "////" if name == "warmup" else None
        span = ax.axvspan(begin, after, **look, hatch=hatch, linewidth=0.5, zorder=0.5)
        if name not in seen:
            seen.add(name)
            span.set_label(name)
            yield span


class RunToDraw(NamedTuple):
    """A run's logged losses, and the law at steps of the run."""

    steps: NDArray[Any]
    losses: NDArray[Any]
    fitted_steps: NDArray[Any]
    fitted_losses: NDArray[Any]


class LossLine(NamedTuple):
    """A forecast over the steps of a curve, and half the widths of its intervals."""

    name: str
    steps: NDArray[Any]
    losses: NDArray[Any]
    half_widths: NDArray[Any]


def draw_losses(runs: Sequence[RunToDraw], lines: Sequence[LossLine], ax: Any) -> Any:
    """Plot runs and forecasts in one Axes; see `LossFit.plot`."""
    ax = current_axes() if ax is None else ax
    for index, run in enumerate(runs):
        # One entry in the legend for all runs.
        labels = ("_", "_") if index else ("logged losses", "fitted law")
        ax.plot(run.steps, run.losses, ".", color="0.6", markersize=4, label=labels[0], zorder=1)
        ax.plot(run.fitted_steps, run.fitted_losses, color="0.2", linewidth=1, label=labels[1])
    for line, style in zip(lines, cycle(LINE_STYLES), strict=False):
        (drawn,) = ax.plot(line.steps, line.losses, label=line.name, linestyle=style)
        low, high = line.losses - line.half_widths, line.losses + line.half_widths
        ax.fill_between(line.steps, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)
    ax.set(xlabel="step", ylabel="loss")
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small", handlelength=3.5)
    return ax
