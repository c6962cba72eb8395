"""The picture of a curve."""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from plateau_jax import checks
from plateau_jax.curve import Curve
from plateau_jax.plateau_curve import PlateauCurve


def plot(curves: Curve | Iterable[Curve], *, peak_value: float = 1.0, ax: Any = None) -> Any:
    """Draw learning rates against the step. Needs matplotlib.

    Args:
        curves: One curve or several.
        peak_value: The peak learning rate that the curves are multiplied by.
        ax: The matplotlib Axes to draw into; the current ones by default.

    Returns:
        The Axes.

    Raises:
        TypeError: `curves` holds something that is not a `Curve`.
        ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
        ValueError: No curve; a `peak_value` that is negative, not finite, or positive and below 2⁻¹²⁶.

    >>> ax = plot([PlateauCurve(1000), PlateauCurve(1000, plateaus=[(50, 30)])], peak_value=3e-4)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('step', 'learning rate')
    """
    found = _checked(curves)
    peak = checks.peak("peak_value", peak_value)

    if ax is None:
        # Not at the top: a figure that is passed in needs no pyplot, and no backend.
        try:
            import matplotlib.pyplot as plt
        except ModuleNotFoundError as error:
            raise checks.missing("plot", error, "plot") from None
        ax = plt.gca()
    for curve, label in zip(found, _labels(found), strict=True):
        steps = _steps_to_draw(curve)
        ax.plot(steps, peak * curve(steps), label=label)
    ax.set_xlabel("step")
    ax.set_ylabel("learning rate" if peak_value != 1.0 else "multiplier")
    ax.grid(alpha=0.3)
    # Room above the curves, so that the legend covers none of them.
    room = 0.05
    if len(found) > 1:
        room = min(0.06 * (len(found) + 1), 0.5)
        # A long one must not squeeze the axes.
        ax.legend(loc="upper right", fontsize="small").set_in_layout(False)
    if ax.get_yscale() == "linear":
        ax.set_ylim(0, (ax.dataLim.ymax or 1.0) / (1 - room))
        ax.ticklabel_format(axis="y", scilimits=(-2, 4), useMathText=True)
    return ax


def _checked(curves: Any) -> list[Curve]:
    if isinstance(curves, Curve):
        return [curves]
    items: list[Any] = list(cast("Iterable[Any]", curves)) if isinstance(curves, Iterable) else [curves]
    for item in items:
        if not isinstance(item, Curve):
            raise TypeError(f"curves holds {item!r}; it must be one Curve or several")
    if not items:
        raise ValueError("curves is empty; it must be one Curve or several")
    return items


def _steps_to_draw(curve: Curve) -> np.ndarray:
    """Every border, and enough steps between for a smooth line."""
    even = np.linspace(0, curve.total_steps, 1001).astype(np.int64)
    return np.unique(np.concatenate([even, [row.begin for row in curve.rows]]))


def _labels(curves: list[Curve]) -> list[str]:
    """Of each curve what sets it apart from the others; everything, where nothing does."""
    described = [_description(curve) for curve in curves]
    shared = set(described[0]).intersection(*described)
    return [", ".join([part for part in parts if part not in shared] or parts) for parts in described]


def _description(curve: Curve) -> list[str]:
    if not isinstance(curve, PlateauCurve):
        return [f"{curve.total_steps} steps", f"{len(curve.rows)} segments"]
    plateaus = [f"plateau {start:g}–{start + duration:g} %" for start, duration in curve.plateaus]
    plateaus += [f"plateau {start}–{start + length}" for start, length in curve.absolute_plateaus]
    if len(plateaus) > 2:
        plateaus = [f"{len(plateaus)} plateaus"]
    warmup = f"{curve.warmup} warmup from {curve.init_lr_ratio:g} over {curve.warmup_steps} steps"
    return [
        f"{curve.total_steps} steps",
        warmup if curve.warmup_steps else "no warmup",
        f"{curve.decay} decay to {curve.min_lr_ratio:g}",
        *(plateaus or ["no plateau"]),
    ]
