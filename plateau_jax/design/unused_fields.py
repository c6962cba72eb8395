"""The fields of a curve that have no effect, such as the shape of a decay that a cooldown replaces."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Part, Then
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.curves.scaled_curve import ScaledCurve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.validation.curve_warning import suppress_warnings

_MAX_SEGMENTS = 20
"""A curve with more segments is not examined: the user would wait for the answer."""


def unused_fields(curve: Curve) -> list[tuple[str | int, ...]]:
    """Return the paths of the fields whose changes do not change the curve.

    >>> unused_fields(PlateauCurve(1000))
    [('curve', 'warmup_shape'), ('curve', 'init_lr_ratio')]
    """
    if len(curve.rows) > _MAX_SEGMENTS:
        return []

    def is_same(other: Curve) -> bool:
        return other.total_steps == curve.total_steps and curve.first_difference(other) is None

    with suppress_warnings():
        return list(_unused(curve, ("curve",), is_same))


def _unused(
    curve: Any, path: tuple[str | int, ...], is_same: Callable[[Any], bool]
) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths for a curve within the whole one, which `is_same` compares with another one there."""

    def has_no_effect(argument: str, value: Any) -> bool:
        try:
            return is_same(replace(curve, **{argument: value}))
        except ValueError:  # the other value is not possible
            return False

    match curve:
        case PlateauCurve():
            for argument, values in _other_values(curve):
                if all(has_no_effect(argument, value) for value in values):
                    yield (*path, argument)
        case StagedCurve():
            for index in range(len(curve.stages)):
                for item, values in ((1, [0.3, 0.7]), (2, ["linear", "cosine", "1-sqrt"])):
                    others = [_with_item(curve.stages, index, item, value) for value in values]
                    if all(has_no_effect("stages", other) for other in others):
                        yield (*path, "stages", index, item)
        case Cooldown() | Part() | ScaledCurve() | Then():
            yield from _unused(curve.curve, (*path, "curve"), lambda inner: has_no_effect("curve", inner))
            if isinstance(curve, Then):
                yield from _unused(curve.other, (*path, "other"), lambda inner: has_no_effect("other", inner))
        case _:
            pass


def _with_item(stages: Any, index: int, item: int, value: Any) -> list[list[Any]]:
    """Return stages with one item of one stage replaced."""
    changed = [list(stage) for stage in stages]
    changed[index][item] = value
    return changed


def _other_values(curve: PlateauCurve) -> Iterator[tuple[str, list[Any]]]:
    """Yield a few other values of each argument."""
    total, warmup = curve.total_steps, curve.warmup_steps
    yield "total_steps", [2 * total, total + 1, total - 1, total // 2]
    yield "warmup_steps", [2 * warmup, warmup + 1, max(0, warmup - 1), 0]
    yield "warmup_shape", ["linear", "cosine"]
    yield "init_lr_ratio", [0.0, 0.3, 0.7]
    yield "decay_shape", ["linear", "cosine", "1-sqrt"]
    yield "min_lr_ratio", [0.0, 0.3, 0.7]
