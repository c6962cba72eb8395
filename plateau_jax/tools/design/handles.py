"""Handles on the picture of a curve: points that the user drags or moves with the arrow keys."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np

from plateau_jax.arguments.checks import MAX_STEP, Path
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Then
from plateau_jax.curves.plateau_curve import PlateauCurve, place_plateaus
from plateau_jax.curves.staged_curve import Stage, StagedCurve

MAX_HANDLES = 200
"""A curve with more handles gets none, since they would cover one another."""


@dataclass(frozen=True)
class Handle:
    """A point on the picture, and the number that changes with it."""

    name: str
    path: Path
    """The field that it changes by the same amount; or a plateau, which it moves as a whole."""
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
    # Those of a long curve take seconds.
    handles = list(islice(_curve_handles(curve, ("curve",)), MAX_HANDLES + 1))
    if len(handles) > MAX_HANDLES:
        handles = []
    handles.sort(key=lambda handle: handle.step)
    return [_peak_handle(peak), *_with_unique_names(handles)]


def _with_unique_names(handles: Sequence[Handle]) -> Iterator[Handle]:
    """Number repeated names, as of several cooldowns: screen readers announce handles by name."""
    counts = Counter[str]()
    for handle in handles:
        counts[handle.name] += 1
        count = counts[handle.name]
        if count > 1:
            handle = replace(handle, name=f"{handle.name} ({count})")
        yield handle


def _peak_handle(peak: float) -> Handle:
    return Handle(
        name="Peak learning rate",
        path=("peak",),
        axis="learning_rate",
        step=0,
        level=1.0,
        value=peak,
        low=0.0,
        high=max(1.0, 10 * peak),
    )


def _curve_handles(curve: Curve, path: Path) -> Iterator[Handle]:
    """Yield the handles of a curve whose arguments are at `path` of the page's JSON."""
    match curve:
        case PlateauCurve():
            yield from _plateau_curve_handles(curve, path)
        case StagedCurve():
            yield from _stage_handles(curve, path)
        case Cooldown():
            yield from _cooldown_handles(curve, path)
        case Then():
            yield from _continuation_handles(curve, path)
        case _:  # a curve that only JSON can describe on the page
            pass


def _step_handle(
    name: str, curve: Curve, step: int, path: Path, *, low: int = 0, high: int = MAX_STEP
) -> Handle:
    """Return a handle on the curve, whose value is its step."""
    return Handle(name, path, "step", step, level=curve(step), value=step, low=low, high=high)


def _level_handle(name: str, step: int, level: float, path: Path, *, high: float = 1.0) -> Handle:
    """Return a handle whose value is its level."""
    return Handle(name, path, "level", step, level, value=level, low=0.0, high=high)


# Plateau curves


def _plateau_curve_handles(curve: PlateauCurve, path: Path) -> Iterator[Handle]:
    total = curve.total_steps
    warmup = curve.warmup_steps
    initial = float(curve.init_lr_ratio)
    final = float(curve.min_lr_ratio)
    yield _step_handle("Warmup, end", curve, warmup, (*path, "warmup_steps"), high=total - 1)
    if warmup:
        yield _level_handle("Initial learning rate", 0, initial, (*path, "init_lr_ratio"))
    yield from _all_plateau_handles(curve, path)
    yield _step_handle("End of the curve", curve, total, (*path, "total_steps"), low=warmup + 1)
    yield _level_handle("Final learning rate", total, final, (*path, "min_lr_ratio"))


class _PlateauInSteps(NamedTuple):
    """A plateau in steps, with the argument that describes it and the index of its pair there."""

    first: int
    length: int
    argument: str
    pair_index: int

    @property
    def end(self) -> int:
        return self.first + self.length


class _Room(NamedTuple):
    """The steps that a plateau may occupy between its neighbors, and its greatest length."""

    begin: int
    end: int
    max_length: int


def _all_plateau_handles(curve: PlateauCurve, path: Path) -> Iterator[Handle]:
    plateaus = _plateaus_in_steps(curve)
    decay_begin = curve.warmup_steps
    # At least one step must remain to decay.
    occupied = sum(plateau.length for plateau in plateaus)
    spare = curve.total_steps - decay_begin - occupied - 1
    ends = [decay_begin, *(plateau.end for plateau in plateaus)]
    begins = [*(plateau.first for plateau in plateaus[1:]), curve.total_steps]
    for index, plateau in enumerate(plateaus):
        room = _Room(ends[index], begins[index], plateau.length + spare)
        yield from _plateau_handles(f"Plateau {index + 1}", curve, plateau, room, path)


def _plateaus_in_steps(curve: PlateauCurve) -> list[_PlateauInSteps]:
    """Return the plateaus of both arguments, from left to right."""
    plateaus: list[_PlateauInSteps] = []
    for index, pair in enumerate(curve.plateaus):
        ((first, length),) = place_plateaus(curve.total_steps, curve.warmup_steps, (pair,), ())
        plateaus.append(_PlateauInSteps(first, length, "plateaus", index))
    for index, (first, length) in enumerate(curve.absolute_plateaus):
        plateaus.append(_PlateauInSteps(first, length, "absolute_plateaus", index))
    return sorted(plateaus)


def _plateau_handles(
    name: str, curve: PlateauCurve, plateau: _PlateauInSteps, room: _Room, path: Path
) -> Iterator[Handle]:
    """Yield the handles at a plateau's start, middle and end."""
    first = plateau.first
    end = plateau.end
    level = curve(first)
    place = (*path, plateau.argument, plateau.pair_index)
    yield Handle(
        name=f"{name}, start",
        path=(*place, 0),
        axis="step",
        step=first,
        level=level,
        value=first,
        # The script also changes the length with the start, so that the end stays.
        low=max(room.begin, end - room.max_length),
        high=end,
    )
    yield Handle(
        name=f"{name}, place",
        path=place,
        axis="step",
        step=first + plateau.length // 2,
        level=level,
        value=first,
        low=room.begin,
        high=room.end - plateau.length,
    )
    yield Handle(
        name=f"{name}, end",
        path=(*place, 1),
        axis="step",
        step=end,
        level=level,
        value=end,
        low=first,
        high=min(room.end, first + room.max_length),
    )


# Staged curves


def _stage_handles(curve: StagedCurve, path: Path) -> Iterator[Handle]:
    begin = 0
    level = float(curve.start)
    yield _level_handle("Start", begin, level, (*path, "start"))
    for index, stage in enumerate(curve.stages):
        name = f"Stage {index + 1}"
        place = (*path, "stages", index)
        end = begin + stage.steps
        if stage.steps:
            # The script takes the steps that this stage gains from the next nonempty stage.
            following = _first_length(curve.stages[index + 1 :])
            high = MAX_STEP if following is None else end + following
            yield _step_handle(f"{name}, end", curve, end, (*place, 0), low=begin, high=high)
        if stage.to is not None:  # else the stage keeps the previous level
            level = float(stage.to)
        yield _level_handle(f"{name}, level", end, level, (*place, 1))
        begin = end


def _first_length(stages: Sequence[Stage]) -> int | None:
    """Return the steps of the first stage that is not empty; None if there is none."""
    for stage in stages:
        if stage.steps:
            return stage.steps
    return None


# Curves that are derived from another one


def _cooldown_handles(curve: Cooldown, path: Path) -> Iterator[Handle]:
    at = curve.at
    total = curve.total_steps
    for handle in _curve_handles(curve.curve, (*path, "curve")):
        if handle.step < at:
            yield handle
    yield _step_handle("Cooldown, start", curve, at, (*path, "at"), high=MAX_STEP - curve.steps)
    yield _step_handle("Cooldown, end", curve, total, (*path, "steps"), low=at + 1)
    final = float(curve.to)
    high = max(curve(at), curve.to)
    yield _level_handle("Cooldown, final learning rate", total, final, (*path, "to"), high=high)


def _continuation_handles(curve: Then, path: Path) -> Iterator[Handle]:
    yield from _curve_handles(curve.curve, (*path, "curve"))

    first = curve.curve.total_steps
    scale = float(curve.scale)
    other = curve.other
    # The handle of the scale is at the first step with the highest level.
    begins = [segment.begin for segment in other._exact_segments]
    highest = begins[np.argmax(other(begins))]
    level = other(highest)
    if level:
        handle = _level_handle(
            "Continuation, scale", first + highest, scale * level, (*path, "scale")
        )
        yield replace(handle, value=scale, slope=level)
    for handle in _curve_handles(other, (*path, "other")):
        yield replace(
            handle,
            name=f"Continuation, {handle.name[0].lower()}{handle.name[1:]}",
            step=first + handle.step,
            level=scale * handle.level,
            slope=scale * handle.slope,
        )
