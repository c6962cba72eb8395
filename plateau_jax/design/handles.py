"""Handles on the picture of a curve: points that the user drags or moves with the arrow keys."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Part, Then
from plateau_jax.curves.plateau_curve import PlateauCurve, place_plateaus
from plateau_jax.curves.scaled_curve import ScaledCurve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.validation.checks import MAX_STEP

_Path = tuple[str | int, ...]

MAX_HANDLES = 200
"""A curve with more handles gets none: they would cover one another."""


@dataclass(frozen=True)
class Handle:
    """A point on the picture, and the number that changes with it."""

    name: str
    path: _Path
    """The field that it changes, by the same amount; or a plateau, all of which it moves."""
    axis: Literal["step", "level", "learning_rate"]
    """The coordinate along which it moves."""
    step: int
    level: float
    """Its height, as a multiplier of the peak."""
    value: float
    """The number it changes, which lies between `low` and `high`."""
    low: float
    high: float
    slope: float = 1.0
    """The change of its level per change of its value."""


def curve_and_peak_handles(curve: Curve, peak: float) -> list[Handle]:
    """Return the handle of the peak, then those of the curve from left to right."""
    handles = list(_curve_handles(curve, ("curve",)))
    if len(handles) > MAX_HANDLES:
        handles = []
    handles.sort(key=lambda handle: handle.step)
    return [_peak_handle(peak), *_with_unique_names(handles)]


def _with_unique_names(handles: Sequence[Handle]) -> Iterator[Handle]:
    """Number repeated names, as of several cooldowns: screen readers announce the handles by name."""
    counts = Counter[str]()
    for handle in handles:
        counts[handle.name] += 1
        count = counts[handle.name]
        yield handle if count == 1 else replace(handle, name=f"{handle.name} ({count})")


def _peak_handle(peak: float) -> Handle:
    return Handle(
        "Peak learning rate", ("peak",), "learning_rate", 0, 1.0, peak, 0.0, max(1.0, 10 * peak)
    )


def _curve_handles(curve: Curve, path: _Path) -> Iterator[Handle]:
    """Yield the handles of a curve whose arguments are at `path` of the page's JSON."""
    match curve:
        case PlateauCurve():
            yield from _plateau_curve_handles(curve, path)
        case StagedCurve():
            yield from _stage_handles(curve, path)
        case Cooldown():
            parent_handles = _curve_handles(curve.curve, (*path, "curve"))
            yield from (handle for handle in parent_handles if handle.step < curve.at)
            yield from _cooldown_handles(curve, path)
        case Then():
            yield from _curve_handles(curve.curve, (*path, "curve"))
            yield from _continuation_handles(curve, path)
        case Part():
            for handle in _curve_handles(curve.curve, (*path, "curve")):
                if curve.start <= handle.step < curve.start + curve.total_steps:
                    yield replace(handle, step=handle.step - curve.start)
        case ScaledCurve():
            for handle in _curve_handles(curve.curve, (*path, "curve")):
                level = curve.curve(handle.step)
                yield _scaled(handle, curve(handle.step) / level if level else 1.0)
        case _:
            pass


def _plateau_curve_handles(curve: PlateauCurve, path: _Path) -> Iterator[Handle]:
    total, warmup = curve.total_steps, curve.warmup_steps
    yield _step_handle("Warmup, end", curve, warmup, (*path, "warmup_steps"), high=total - 1)
    if warmup:
        yield _level_handle(
            "Initial learning rate", 0, float(curve.init_lr_ratio), (*path, "init_lr_ratio")
        )
    yield from _all_plateau_handles(curve, path)
    yield _step_handle("End of the curve", curve, total, (*path, "total_steps"), low=warmup + 1)
    yield _level_handle(
        "Final learning rate", total, float(curve.min_lr_ratio), (*path, "min_lr_ratio")
    )


class _PlateauInSteps(NamedTuple):
    """A plateau in steps, with the argument that describes it and its position there."""

    first: int
    length: int
    argument: str
    position: int

    @property
    def end(self) -> int:
        return self.first + self.length


class _Room(NamedTuple):
    """The steps that a plateau may occupy between its neighbours, and its greatest length."""

    begin: int
    end: int
    max_length: int


def _all_plateau_handles(curve: PlateauCurve, path: _Path) -> Iterator[Handle]:
    total, warmup = curve.total_steps, curve.warmup_steps
    plateaus: list[_PlateauInSteps] = []
    for index, pair in enumerate(curve.plateaus):
        ((first, length),) = place_plateaus(total, warmup, (pair,), ())
        plateaus.append(_PlateauInSteps(first, length, "plateaus", index))
    for index, (first, length) in enumerate(curve.absolute_plateaus):
        plateaus.append(_PlateauInSteps(first, length, "absolute_plateaus", index))
    plateaus.sort()
    # At least one step must remain to decay.
    spare = total - warmup - sum(plateau.length for plateau in plateaus) - 1
    ends = [warmup, *(plateau.end for plateau in plateaus)]
    begins = [*(plateau.first for plateau in plateaus[1:]), total]
    for number, plateau in enumerate(plateaus):
        room = _Room(ends[number], begins[number], plateau.length + spare)
        yield from _plateau_handles(curve, number, plateau, room, path)


def _plateau_handles(
    curve: PlateauCurve, number: int, plateau: _PlateauInSteps, room: _Room, path: _Path
) -> Iterator[Handle]:
    """Yield the handles at a plateau's start, middle and end."""
    first, end, level = plateau.first, plateau.end, curve(plateau.first)
    name, place = f"Plateau {number + 1}", (*path, plateau.argument, plateau.position)
    # The script also changes the length with the start, so that the end stays.
    low = max(room.begin, end - room.max_length)
    yield Handle(f"{name}, start", (*place, 0), "step", first, level, first, low, end)
    middle, high = first + plateau.length // 2, room.end - plateau.length
    yield Handle(f"{name}, place", place, "step", middle, level, first, room.begin, high)
    high = min(room.end, first + room.max_length)
    yield Handle(f"{name}, end", (*place, 1), "step", end, level, end, first, high)


def _stage_handles(curve: StagedCurve, path: _Path) -> Iterator[Handle]:
    stages = [(stage[0], stage[1]) for stage in curve.stages]
    yield _level_handle("Start", 0, float(curve.start), (*path, "start"))
    begin, level = 0, float(curve.start)
    for index, (steps, to) in enumerate(stages):
        end = begin + steps
        if steps:
            # The script takes from the next stage that is not empty what it gives to this one.
            following = next((later for later, _ in stages[index + 1 :] if later), None)
            high = MAX_STEP if following is None else end + following
            field = (*path, "stages", index, 0)
            yield _step_handle(f"Stage {index + 1}, end", curve, end, field, low=begin, high=high)
        level = (
            level if to is None else float(to)
        )  # a stage without a level holds that of the one before
        yield _level_handle(f"Stage {index + 1}, level", end, level, (*path, "stages", index, 1))
        begin = end


def _cooldown_handles(curve: Cooldown, path: _Path) -> Iterator[Handle]:
    at, total = curve.at, curve.total_steps
    yield _step_handle("Cooldown, start", curve, at, (*path, "at"), high=MAX_STEP - curve.steps)
    yield _step_handle("Cooldown, end", curve, total, (*path, "steps"), low=at + 1)
    high = max(curve(at), curve.to)
    yield _level_handle(
        "Cooldown, final learning rate", total, float(curve.to), (*path, "to"), high=high
    )


def _continuation_handles(curve: Then, path: _Path) -> Iterator[Handle]:
    first, scale = curve.curve.total_steps, float(curve.scale)
    other = curve.other
    # The scale's handle is at the highest level (the first of them, if several are equal).
    highest = max((row.begin for row in other.rows), key=lambda step: (other(step), -step))
    level = other(highest)
    if level:
        handle = _level_handle(
            "Continuation, scale", first + highest, scale * level, (*path, "scale")
        )
        yield replace(handle, value=scale, slope=level)
    for handle in _curve_handles(other, (*path, "other")):
        name = f"Continuation, {handle.name[0].lower()}{handle.name[1:]}"
        yield replace(_scaled(handle, scale), name=name, step=first + handle.step)


def _scaled(handle: Handle, scale: float) -> Handle:
    """Return a handle of a curve whose levels are multiplied by a factor."""
    return replace(handle, level=scale * handle.level, slope=scale * handle.slope)


def _step_handle(
    name: str, curve: Curve, step: int, path: _Path, *, low: int = 0, high: int = MAX_STEP
) -> Handle:
    return Handle(name, path, "step", step, curve(step), step, low, high)


def _level_handle(name: str, step: int, level: float, path: _Path, *, high: float = 1.0) -> Handle:
    return Handle(name, path, "level", step, level, level, 0.0, high)
