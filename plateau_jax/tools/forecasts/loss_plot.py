"""Plots of losses over steps, with forecasts, in matplotlib Axes."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any, NamedTuple

from numpy.typing import NDArray

from plateau_jax.tools.drawing.axes import LINE_STYLES, current_axes


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
    if ax is None:
        ax = current_axes()
    for index, run in enumerate(runs):
        points = ax.plot(run.steps, run.losses, ".", color="0.6", markersize=4, zorder=1)
        law = ax.plot(run.fitted_steps, run.fitted_losses, color="0.2", linewidth=1)
        if index == 0:  # One entry in the legend for all runs.
            points[0].set_label("logged losses")
            law[0].set_label("fitted law")

    for line, style in zip(lines, cycle(LINE_STYLES), strict=False):
        (drawn,) = ax.plot(line.steps, line.losses, label=line.name, linestyle=style)
        low = line.losses - line.half_widths
        high = line.losses + line.half_widths
        ax.fill_between(line.steps, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)

    ax.set(xlabel="step", ylabel="loss")
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small", handlelength=3.5)
    return ax
