"""`plot`: several curves in one plot, given as arguments, as a list or as a mapping."""

from collections.abc import Iterable, Mapping
from typing import Any, cast, overload

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.tools.drawing import axes
from plateau_jax.tools.drawing.legend import NamedCurve


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
    return axes.draw(name_curves(curves), peak_value, ax)


def name_curves(curves: tuple[Any, ...]) -> list[NamedCurve]:
    """Return each curve among the arguments of `plot`; the keys of a mapping become names."""
    given: Any = curves
    if len(curves) == 1 and _is_collection(curves[0]):
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


def _is_collection(value: Any) -> bool:
    # An array without dimensions passes for an `Iterable`, but cannot be iterated.
    is_scalar = isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0
    return isinstance(value, Iterable) and not is_scalar
