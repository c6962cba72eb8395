"""The picture of a curve."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from plateau_jax import checks
from plateau_jax.curve import PlateauCurve


def plot(curves: PlateauCurve | Iterable[PlateauCurve], *, peak_value: float = 1.0, ax: Any = None) -> Any:
    """Draw learning rates against the step. Needs matplotlib.

    Args:
        curves: One curve or several.
        peak_value: The peak learning rate that the curves are multiplied by.
        ax: The matplotlib Axes to draw into; the current ones by default.

    Returns:
        The Axes.

    Raises:
        TypeError: `curves` holds something that is not a `PlateauCurve`.
        ValueError: A `peak_value` that is negative, not finite, or positive and below 2⁻¹²⁶.

    >>> ax = plot([PlateauCurve(1000), PlateauCurve(1000, plateaus=[(50, 30)])], peak_value=3e-4)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('step', 'learning rate')
    """
    curves = [curves] if isinstance(curves, PlateauCurve) else list(curves)
    for curve in curves:
        if not isinstance(curve, PlateauCurve):
            raise TypeError(f"curves holds {curve!r}; it must be one PlateauCurve or several")
    peak = checks.peak("peak_value", peak_value)

    if ax is None:
        # Not at the top: a figure that is passed in needs no pyplot, and no backend.
        import matplotlib.pyplot as plt

        ax = plt.gca()
    for curve in curves:
        steps = _steps_to_draw(curve)
        ax.plot(steps, peak * curve(steps), label=_label(curve))
    ax.set_xlabel("step")
    ax.set_ylabel("learning rate" if peak_value != 1.0 else "multiplier")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    if len(curves) > 1:
        ax.legend()
    return ax


def _steps_to_draw(curve: PlateauCurve) -> np.ndarray:
    """Every border, and enough steps between for a smooth line."""
    even = np.linspace(0, curve.total_steps, 1001).astype(np.int64)
    return np.unique(np.concatenate([even, [row.begin for row in curve.rows]]))


def _label(curve: PlateauCurve) -> str:
    parts = [f"{curve.warmup} warmup"] if curve.warmup_steps else []
    parts.append(f"{curve.decay} decay")
    parts += [f"plateau {start} %, {duration} %" for start, duration in curve.plateaus]
    parts += [f"plateau at {start}, {length} steps" for start, length in curve.absolute_plateaus]
    if len(parts) > 4:
        count = len(curve.plateaus) + len(curve.absolute_plateaus)
        parts = [part for part in parts if not part.startswith("plateau")] + [f"{count} plateaus"]
    return ", ".join(parts)
