"""Labels of curves in a legend: their names, or how they differ."""

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Part, Then
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.curves.scaled_curve import ScaledCurve
from plateau_jax.curves.staged_curve import Stage, StagedCurve


class NamedCurve(NamedTuple):
    """A curve, and the name that the user gave it, if any."""

    curve: Curve
    name: str | None = None


def legend_labels(named_curves: Sequence[NamedCurve]) -> list[str]:
    """Return a label per curve: its name, else the phrases that distinguish it, else all."""
    descriptions = _distinguishing_phrases([_all_phrases(named.curve) for named in named_curves])
    labels: list[str] = []
    for index, (named, description) in enumerate(zip(named_curves, descriptions, strict=True)):
        if named.name is not None:
            labels.append(named.name)
        elif descriptions.count(description) == 1:
            labels.append(description)
        else:
            # Equal curves, or long descriptions that were shortened to the same text.
            labels.append(f"{index + 1}: {description}")
    return labels


def _distinguishing_phrases(phrases_of_curves: Sequence[list[str]]) -> list[str]:
    """Return for each curve the phrases that not all curves share; all phrases if none is left."""
    shared = set(phrases_of_curves[0]).intersection(*phrases_of_curves)
    descriptions: list[str] = []
    for phrases in phrases_of_curves:
        distinguishing = [phrase for phrase in phrases if phrase not in shared]
        description = ", ".join(distinguishing or phrases)
        descriptions.append(textwrap.shorten(description, 80, placeholder=" …"))
    return descriptions


def _all_phrases(curve: Curve) -> list[str]:
    phrases = _phrases(curve)
    # Derived curves name their last step in a phrase already.
    if isinstance(curve, PlateauCurve | StagedCurve):
        phrases = [checks.plural(curve.total_steps, "step"), *phrases]
    return phrases


def _phrases(curve: Curve) -> list[str]:
    """Describe a curve in parts, without its number of steps."""
    match curve:
        case PlateauCurve():
            return _phrases_of_plateau_curve(curve)
        case StagedCurve():
            return _phrases_of_staged_curve(curve)
        case Cooldown():
            cooldown = f"{curve.shape} cooldown {curve.at}–{curve.total_steps} to {curve.to:g}"
            return [*_phrases(curve.curve), cooldown]
        case Then():
            return _phrases_of_then(curve)
        case Part():
            return [*_phrases(curve.curve), f"steps {curve.start}–{curve.stop}"]
        case ScaledCurve():
            batches = [batch for _, batch in curve.pairs]
            scaled = f"scaled for batches of {min(batches)}–{max(batches)}"
            return [*_phrases(curve.curve), scaled]
        case _:
            return [checks.short_repr(curve)]


def _phrases_of_plateau_curve(curve: PlateauCurve) -> list[str]:
    warmup = "no warmup"
    if curve.warmup_steps:
        rise = f"{curve.warmup_shape} warmup from {curve.init_lr_ratio:g}"
        warmup = f"{rise} over {checks.plural(curve.warmup_steps, 'step')}"
    decay = f"{curve.decay_shape} decay to {curve.min_lr_ratio:g}"

    plateaus = [f"plateau {start:g}–{start + length:g} %" for start, length in curve.plateaus]
    for start, length in curve.absolute_plateaus:
        plateaus.append(f"plateau {start}–{start + length}")
    if not plateaus:
        plateaus = ["no plateau"]
    elif len(plateaus) > 2:
        plateaus = [f"{len(plateaus)} plateaus"]
    return [warmup, decay, *plateaus]


def _phrases_of_staged_curve(curve: StagedCurve) -> list[str]:
    start = f"from {curve.start:g}"
    if len(curve.stages) > 20:
        return [start, f"{len(curve.stages)} stages"]
    return [start, *map(_phrase_of_stage, curve.stages)]


def _phrase_of_stage(stage: Stage | tuple[Any, ...]) -> str:
    steps, to, shape = stage
    if to is None:
        return f"plateau of {steps}"
    if steps == 0:
        return f"jump to {to:g}"
    return f"{shape} to {to:g} in {steps}"


def _phrases_of_then(curve: Then) -> list[str]:
    phrases = _phrases(curve.curve)
    # Only new phrases: a restart of the same curve would repeat all of them.
    new = [phrase for phrase in _phrases(curve.other) if phrase not in phrases]
    then = f"then {curve.curve.total_steps}–{curve.total_steps}"
    if curve.scale != 1:
        then += f" × {curve.scale:g}"
    if new:
        then += f": {', '.join(new)}"
    return [*phrases, then]
