"""`plot`: several curves in one plot."""

from collections.abc import Iterable, Mapping
from typing import Any, overload

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.several_curves import curves_to_draw
from plateau_jax.drawing import axes


@overload
def plot(
    curves: Iterable[Curve] | Mapping[str, Curve], /, *, peak_value: float = 1.0, ax: Any = None
) -> Any: ...
@overload
def plot(*curves: Curve, peak_value: float = 1.0, ax: Any = None) -> Any: ...
def plot(*curves: Any, peak_value: float = 1.0, ax: Any = None) -> Any:
    """Plot learning rates, peak_value · curve(step), against the step. Needs matplotlib.

    A single curve in Axes without lines is drawn with its warmup and plateaus shaded. For several
    curves, a legend shows their names, or without names what sets each apart. Both are readable in
    black and white.

    Args:
        curves: Curves, or one list of curves, or one mapping from names to curves.
        peak_value: The peak learning rate, by which the curves are multiplied.
        ax: The matplotlib Axes to draw into; the current ones by default. Limits that you set are
            kept.

    Returns:
        The Axes.

    Raises:
        TypeError: An argument is not a `Curve`, or a name is not a string.
        ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
        ValueError: No curve was given, or `peak_value` is negative, not finite, or positive and
            below 2⁻¹²⁶.

    >>> from plateau_jax import PlateauCurve
    >>> cosine, stable = PlateauCurve(1000), PlateauCurve(1000, plateaus=[(0, 80)])
    >>> ax = plot({"cosine": cosine, "warmup-stable-decay": stable}, peak_value=3e-4)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('step', 'learning rate')
    """
    return axes.draw([to_draw for _, to_draw in curves_to_draw("plot", curves)], peak_value, ax)
