"""Plots of losses in matplotlib Axes: over steps, with the fitted law and forecasts; and over peaks."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any, NamedTuple

from numpy.typing import NDArray

from plateau_jax.drawing.axes import LINE_STYLES, current_axes


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


class PeaksToDraw(NamedTuple):
    """Forecasts over peaks with half the widths of their intervals, and the parabola."""

    peaks: Sequence[float]
    losses: Sequence[float]
    half_widths: Sequence[float]
    fitted_peaks: NDArray[Any]
    fitted_losses: NDArray[Any]


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
    ax.set_xlabel("step")
    ax.set_ylabel("loss")
    ax.grid(alpha=0.3)
    ax.margins(x=0.01)
    ax.legend(loc="upper right", fontsize="small", handlelength=3.5)
    return ax


def draw_peaks(
    forecasts: PeaksToDraw, best: tuple[float, float], within: tuple[float, float], ax: Any
) -> Any:
    """Plot forecasts over the peak; see `BestPeak.plot`."""
    ax = current_axes() if ax is None else ax
    ax.errorbar(*forecasts[:3], fmt="o", color="0.4", capsize=3, label="forecasts")
    ax.plot(forecasts.fitted_peaks, forecasts.fitted_losses, color="0.2", linewidth=1, label="parabola")
    (drawn,) = ax.plot(*best, "D", label=f"best peak, {best[0]:.1e}")
    ax.axvspan(*within, color=drawn.get_color(), alpha=0.2, linewidth=0, zorder=0.5)
    ax.set_xscale("log")
    ax.set_xlabel("peak learning rate")
    ax.set_ylabel("loss")
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")
    return ax
