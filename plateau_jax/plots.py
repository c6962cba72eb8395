"""Pictures of whole curves."""

from collections.abc import Iterable
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.drawing import axes


def plot(curves: Curve | Iterable[Curve], *, peak_value: float = 1.0, ax: Any = None) -> Any:
    """Draw learning rates against the step: peak_value · curve(step). Needs matplotlib.

    A single curve, in Axes without lines, is drawn with its warmup and plateaus shaded. For several curves a
    legend says what sets each apart. Both can be read in black and white.

    Args:
        curves: One curve or several.
        peak_value: The peak learning rate that the curves are multiplied by.
        ax: The matplotlib Axes to draw into; the current ones by default. Limits that were set stay.

    Returns:
        The Axes.

    Raises:
        TypeError: `curves` holds something that is not a curve.
        ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
        ValueError: No curve; a `peak_value` that is negative, not finite, or positive and below 2⁻¹²⁶.

    >>> from plateau_jax import PlateauCurve
    >>> ax = plot([PlateauCurve(1000), PlateauCurve(1000, plateaus=[(50, 30)])], peak_value=3e-4)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('step', 'learning rate')
    """
    return axes.draw([curve._to_draw() for curve in _checked(curves)], peak_value, ax)


def _checked(curves: Any) -> list[Curve]:
    no_dimensions = getattr(curves, "ndim", 1) == 0  # such an array counts as `Iterable` too
    several = isinstance(curves, Iterable) and not no_dimensions
    items: list[Any] = list(cast("Iterable[Any]", curves)) if several else [curves]
    for item in items:
        if not isinstance(item, Curve):
            raise TypeError(f"curves holds {item!r}; it must be one Curve or several")
    if not items:
        raise ValueError("curves is empty; it must be one Curve or several")
    return items
