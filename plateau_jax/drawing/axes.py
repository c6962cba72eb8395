"""Curves drawn into matplotlib's Axes."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from plateau_jax.drawing.sampling import (
    FILLS,
    OPACITY,
    CurveToDraw,
    legend_labels,
    shaded_spans,
    steps_to_draw,
)
from plateau_jax.numerics.exact_segments import ExactSegment
from plateau_jax.validation import checks, optional_packages

# These tell lines and spans apart where there is no colour.
_STYLES = "-", "--", "-.", ":", (0, (9, 2)), (0, (5, 1, 1, 1, 1, 1))
_HATCHES = {"warmup": "////", "plateau": None}


def draw(curves: Sequence[CurveToDraw], peak_value: float, ax: Any) -> Any:
    """The learning rates of the curves in one picture; see `plateau_jax.plot`."""
    peak = checks.peak("peak_value", peak_value)
    if ax is None:
        try:
            import matplotlib.pyplot as plt  # optional; and Axes that are given need no backend
        except ModuleNotFoundError as error:
            raise optional_packages.missing_package_error("plot", error, "plot") from None
        ax = plt.gca()
    named = [*_shade(ax, curves[0].rows)] if len(curves) == 1 and not ax.lines else []
    for curve, label, style in zip(curves, legend_labels(curves), cycle(_STYLES), strict=False):
        steps = steps_to_draw(curve.rows)
        named += ax.plot(steps, peak * curve.values_at(steps), label=label, linestyle=style)
    ax.set_xlabel("step")
    ax.set_ylabel("learning rate" if peak_value != 1.0 else "multiplier")
    ax.grid(alpha=0.3)
    ax.margins(x=0.01)
    if names := named[:-1] if len(curves) == 1 else named:
        _legend(ax, names)
    if ax.get_yscale() == "linear" and ax.get_autoscaley_on():
        bottom = min(ax.dataLim.ymin, 0.0)
        height = max(ax.dataLim.ymax, 0.0) - bottom or 1.0
        ax.set_ylim(bottom, bottom + height / (1 - _room(ax)), auto=True)
    _write_numbers(ax)
    return ax


def _write_numbers(ax: Any) -> None:
    """Ticks at whole steps, powers of ten beside the axes; what the user set in place of these stays."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter  # optional

    if isinstance(ax.yaxis.get_major_formatter(), ScalarFormatter):
        ax.ticklabel_format(axis="y", scilimits=(-2, 4), useMathText=True)
    if isinstance(ax.xaxis.get_major_formatter(), ScalarFormatter):
        ax.ticklabel_format(axis="x", useMathText=True)
    if isinstance(ax.xaxis.get_major_locator(), MaxNLocator):
        ax.locator_params(axis="x", integer=True)


def _shade(ax: Any, rows: Sequence[ExactSegment]) -> Iterator[Any]:
    """Shade warmups and plateaus; yield the first of each, for the legend."""
    named: set[str] = set()
    for name, begin, after in shaded_spans(rows):
        look = {"facecolor": (FILLS[name], OPACITY), "edgecolor": (FILLS[name], 2 * OPACITY)}
        span = ax.axvspan(begin, after, **look, hatch=_HATCHES[name], linewidth=0.5, zorder=0.5)
        if name not in named:
            named.add(name)
            span.set_label(name)
            yield span


def _legend(ax: Any, handles: list[Any]) -> None:
    """A legend in as many columns as fit."""
    look = {"handles": handles, "loc": "upper right", "fontsize": "small", "handlelength": 3.5}
    width = ax.get_window_extent().width / ax.legend(**look).get_window_extent().width
    # A long one must not squeeze the Axes.
    ax.legend(**look, ncols=max(1, min(int(width), len(handles)))).set_in_layout(False)


def _room(ax: Any) -> float:
    """The share of the Axes' height that curves leave free, so that the legend covers none of them."""
    legend = ax.get_legend()
    height = legend.get_window_extent().height / ax.get_window_extent().height if legend else 0.0
    return 0.05 + min(1.1 * height, 0.5)
