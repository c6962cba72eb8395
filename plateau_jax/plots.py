"""`plot`: several curves in one plot."""

from collections.abc import Iterable
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.drawing import axes


def plot(curves: Curve | Iterable[Curve], *, peak_value: float = 1.0, ax: Any = None) -> Any:
    """Plot learning rates, peak_value · curve(step), against the step. Needs matplotlib.

    A single curve in Axes without lines is drawn with its warmup and plateaus shaded. For several curves, a
    legend names what sets each apart. Both are readable in black and white.

    Args:
        curves: One curve or several.
        peak_value: The peak learning rate, by which the curves are multiplied.
        ax: The matplotlib Axes to draw into; the current ones by default. Limits that you set are kept.

    Returns:
        The Axes.

    Raises:
        TypeError: `curves` contains an item that is not a curve.
        ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
        ValueError: No curve was given, or `peak_value` is negative, not finite, or positive and below 2⁻¹²⁶.

    >>> from plateau_jax import PlateauCurve
    >>> ax = plot([PlateauCurve(1000), PlateauCurve(1000, plateaus=[(50, 30)])], peak_value=3e-4)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('step', 'learning rate')
    """
    return axes.draw([curve._to_draw() for curve in _check_curves(curves)], peak_value, ax)


def _check_curves(curves: Any) -> list[Curve]:
    # An array without dimensions passes for an `Iterable`, but cannot be iterated.
    is_scalar = getattr(curves, "ndim", 1) == 0
    several = isinstance(curves, Iterable) and not is_scalar
    items: list[Any] = list(cast("Iterable[Any]", curves)) if several else [curves]
    for item in items:
        if not isinstance(item, Curve):
            raise TypeError(f"curves holds {item!r}; it must be one Curve or several")
    if not items:
        raise ValueError("curves is empty; it must be one Curve or several")
    return items
