"""The picture of a curve."""

import textwrap
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from plateau_jax import checks
from plateau_jax.branches import Cooldown, Then
from plateau_jax.curve import Curve
from plateau_jax.plateau_curve import PlateauCurve
from plateau_jax.rows import visible
from plateau_jax.staged import Stage, StagedCurve


def plot(curves: Curve | Iterable[Curve], *, peak_value: float = 1.0, ax: Any = None) -> Any:
    """Draw learning rates against the step. Needs matplotlib.

    Args:
        curves: One curve or several.
        peak_value: The peak learning rate that the curves are multiplied by.
        ax: The matplotlib Axes to draw into; the current ones by default.

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
        steps = steps_to_draw(curve)
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


def steps_to_draw(curve: Curve) -> np.ndarray:
    """Both sides of every border, where a curve may jump, and enough steps between for a smooth line."""
    found = [np.linspace(0, curve.total_steps, 1001)]
    segments = list(visible(curve.rows))
    # Closer together at both ends: a square root is steep at its start, a rising exponential at its end.
    shares = (1 - np.cos(np.linspace(0, np.pi, max(50, 3000 // len(segments))))) / 2
    for row, after in segments:
        if after is not None:
            found += [row.begin + shares * (after - 1 - row.begin)]
    return np.unique(np.concatenate(found).astype(np.int64))


def _labels(curves: list[Curve]) -> list[str]:
    """Of each curve what sets it apart from the others; everything, where nothing does."""
    described = [_description(curve) for curve in curves]
    shared = set(described[0]).intersection(*described)
    labels = [", ".join([part for part in parts if part not in shared] or parts) for parts in described]
    labels = [textwrap.shorten(label, 80, placeholder=" …") for label in labels]
    return [
        f"{number}: {label}" if labels.count(label) > 1 else label
        for number, label in enumerate(labels, start=1)
    ]


def _description(curve: Curve) -> list[str]:
    """Whatever may set a curve apart."""
    match curve:
        case Cooldown():
            return [
                *_before(curve.curve),
                f"{curve.shape} cooldown {curve.at}–{curve.total_steps} to {curve.to:g}",
            ]
        case Then():
            before = _before(curve.curve)
            new = [part for part in _before(curve.other) if part not in before]
            then = f"then {curve.curve.total_steps}–{curve.total_steps}"
            then += f" × {curve.scale:g}" if curve.scale != 1 else ""
            return [*before, f"{then}: {', '.join(new)}" if new else then]
        case _:
            return [f"{curve.total_steps} steps", *_before(curve)]


def _before(curve: Curve) -> list[str]:
    """The same, without the end that the next curve puts to it."""
    if isinstance(curve, PlateauCurve):
        return _plateau_curve(curve)
    if isinstance(curve, StagedCurve):
        return [f"from {curve.start:g}", *map(_stage, curve.stages)]
    return _description(curve)


def _plateau_curve(curve: PlateauCurve) -> list[str]:
    plateaus = [f"plateau {start:g}–{start + duration:g} %" for start, duration in curve.plateaus]
    plateaus += [f"plateau {start}–{start + length}" for start, length in curve.absolute_plateaus]
    if len(plateaus) > 2:
        plateaus = [f"{len(plateaus)} plateaus"]
    warmup = f"{curve.warmup} warmup from {curve.init_lr_ratio:g} over {curve.warmup_steps} steps"
    return [
        warmup if curve.warmup_steps else "no warmup",
        f"{curve.decay} decay to {curve.min_lr_ratio:g}",
        *(plateaus or ["no plateau"]),
    ]


def _stage(stage: Stage | tuple[Any, ...]) -> str:
    steps, to, shape = stage
    if to is None:
        return f"hold {steps}"
    return f"{shape} to {to:g} in {steps}" if steps else f"jump to {to:g}"
