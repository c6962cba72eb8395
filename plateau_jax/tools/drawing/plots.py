"""`plot`: learning rates in matplotlib Axes. The curves are arguments, a list or a mapping."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, cast, overload

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.lazy_names import naming_missing_package
from plateau_jax.table.exact_segments import ExactSegment
from plateau_jax.tools.drawing.legend import NamedCurve, legend_labels
from plateau_jax.tools.drawing.sampling import shaded_spans, steps_to_draw

# Different styles keep lines distinct in black and white.
LINE_STYLES = "-", "--", "-.", ":", (0, (9, 2)), (0, (5, 1, 1, 1, 1, 1))

# For the same reason, a warmup is hatched. The colors suit white and dark backgrounds.
SPAN_STYLES = {
    "warmup": {"facecolor": ("#f59e0b", 0.25), "edgecolor": ("#f59e0b", 0.5), "hatch": "////"},
    "plateau": {"facecolor": ("#10b981", 0.25), "edgecolor": ("#10b981", 0.5)},
}


@overload
def plot(
    curves: Iterable[Curve] | Mapping[str, Curve],
    /,
    *,
    peak_value: float = 1.0,
    ax: Any = None,
) -> Any: ...
@overload
def plot(*curves: Curve, peak_value: float = 1.0, ax: Any = None) -> Any: ...
def plot(
    *curves: Curve | Iterable[Curve] | Mapping[str, Curve], peak_value: float = 1.0, ax: Any = None
) -> Any:
    """Plot learning rates, peak_value · curve(step), against the step. Needs matplotlib.

    If the Axes have no lines, a single curve is drawn with its warmup and plateaus shaded. For
    several curves, a legend shows their names, or, if they have none, how they differ. Both are
    readable in black and white.

    Args:
        curves: Curves, or one list of curves, or one mapping from names to curves.
        peak_value: The peak learning rate, by which the curves are multiplied.
        ax: The matplotlib Axes to draw into; the current ones by default. Limits that you set are
            kept.

    Returns:
        The Axes, a `matplotlib.axes.Axes`.

    Raises:
        TypeError: An argument is not a `Curve`.
        ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
        ValueError: No curve was given, or `peak_value` is negative, not finite, or positive and
            below 2⁻¹²⁶.

    >>> from plateau_jax import PlateauCurve, plot
    >>> cosine, stable = PlateauCurve(1000), PlateauCurve(1000, plateaus=[(0, 80)])
    >>> ax = plot({"cosine": cosine, "warmup-stable-decay": stable}, peak_value=3e-4)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('step', 'learning rate')
    """
    named_curves = name_curves(curves)
    peak = checks.peak("peak_value", peak_value)
    if ax is None:
        with naming_missing_package("plot", "plot"):
            import matplotlib.pyplot as plt  # optional, and not needed if Axes are given
        ax = plt.gca()

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


def _shade_spans(ax: Any, segments: Sequence[ExactSegment]) -> list[Any]:
    """Shade warmups and plateaus; return the first of each, for the legend."""
    first_of_each: dict[str, Any] = {}
    for name, begin, after in shaded_spans(segments):
        span = ax.axvspan(begin, after, linewidth=0.5, zorder=0.5, **SPAN_STYLES[name])
        if name not in first_of_each:
            span.set_label(name)
            first_of_each[name] = span
    return list(first_of_each.values())


def name_curves(curves: tuple[Any, ...]) -> list[NamedCurve]:
    """Return each curve among the arguments of `plot`; the keys of a mapping become names."""
    given: Any = curves
    if len(curves) == 1 and isinstance(curves[0], Iterable) and not isinstance(curves[0], str):
        (given,) = curves
    has_names = isinstance(given, Mapping)
    items: Iterable[tuple[Any, Any]]
    if has_names:
        items = cast("Mapping[Any, Any]", given).items()
    else:
        items = enumerate(cast("Iterable[Any]", given))
    named: list[NamedCurve] = []
    for key, value in items:
        curve = check_curve(f"curves[{checks.short_repr(key)}]", value)
        named.append(NamedCurve(curve, str(key) if has_names else None))
    if not named:
        raise ValueError("there is no curve: pass at least one")
    return named
