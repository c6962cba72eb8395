"""Handles on the picture of a curve: points that the user drags or moves with the arrow keys."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Part, Then
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.curves.plateaus import place_plateaus
from plateau_jax.curves.scaled_curve import ScaledCurve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.validation.checks import MAX_STEP

_Path = tuple[str | int, ...]

MAX_HANDLES = 200
"""A curve with more handles gets none: they would cover one another."""


class Move(NamedTuple):
    """A field that changes with the value of a handle."""

    path: _Path
    sign: int = 1
    """1 if it changes by the same amount, -1 if by its negative: in steps, also if it holds a percentage."""


@dataclass(frozen=True)
class Handle:
    """A point on the picture. Moving it changes one number, and the fields tied to that number."""

    name: str
    text: str
    """The value in words."""
    look: Literal["knob", "bar", "tag"]
    axis: Literal["step", "level", "learning_rate"]
    """The coordinate along which it moves."""
    step: int
    level: float
    """Its height, as a multiplier of the peak."""
    value: float
    """The number it changes, which lies between `low` and `high`."""
    low: float
    high: float
    drag_unit: float
    """Dragging with Shift rounds the value to multiples of this unit."""
    arrow_change: float
    """An arrow key moves the value to the next multiple of this; dragging rounds to its multiples."""
    value_per_unit: float
    """Change of the value per unit along the axis."""
    moves: tuple[Move, ...]


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
    order = 10.0 ** math.floor(math.log10(peak)) if peak else 1e-3
    return Handle(
        name="Peak learning rate",
        text=f"{peak:.6g}",
        look="tag",
        axis="learning_rate",
        step=0,
        level=1.0,
        value=peak,
        low=0.0,
        high=max(1.0, 10 * peak),
        drag_unit=order / 100,
        arrow_change=order / 10,
        value_per_unit=1.0,
        moves=(Move(("peak",)),),
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
                yield _scaled(handle, curve(handle.step) / level) if level else handle
        case _:
            pass


def _plateau_curve_handles(curve: PlateauCurve, path: _Path) -> Iterator[Handle]:
    total, warmup = curve.total_steps, curve.warmup_steps
    yield _step_handle("Warmup, end", curve, warmup, total, ((*path, "warmup_steps"),), high=total - 1)
    if warmup:
        yield _level_handle("Initial learning rate", 0, float(curve.init_lr_ratio), (*path, "init_lr_ratio"))
    yield from _all_plateau_handles(curve, path)
    yield _step_handle("End of the curve", curve, total, total, ((*path, "total_steps"),), low=warmup + 1)
    yield _level_handle("Final learning rate", total, float(curve.min_lr_ratio), (*path, "min_lr_ratio"))


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
    is_percent = plateau.argument == "plateaus"
    first, end = plateau.first, plateau.end
    start, duration = (curve.plateaus if is_percent else curve.absolute_plateaus)[plateau.position]

    def handle(part: str, step: int, percent: float, paths: Sequence[int], low: int, high: int) -> Handle:
        fields = [(*path, plateau.argument, plateau.position, item) for item in paths]
        name = f"Plateau {number + 1}, {part}"
        knob = _step_handle(name, curve, step, curve.total_steps, fields, low=low, high=high)
        text = f"{percent:.6g} %, {knob.text}" if is_percent else knob.text
        return replace(knob, text=text, level=curve(first))

    steps = f"steps {_grouped(first)} to {_grouped(end)}"
    # The pair is (start, duration): the start moves at the cost of the duration, so that the end stays.
    yield handle("start", first, start, (0, 1), max(room.begin, end - room.max_length), end)
    yield replace(
        handle("place", first, start, (0,), room.begin, room.end - plateau.length),
        look="bar",
        step=first + plateau.length // 2,
        text=f"{start:.6g} %, {steps}" if is_percent else steps,
    )
    yield handle("end", end, start + duration, (1,), first, min(room.end, first + room.max_length))


def _stage_handles(curve: StagedCurve, path: _Path) -> Iterator[Handle]:
    stages = [(stage[0], stage[1]) for stage in curve.stages]
    yield _level_handle("Start", 0, float(curve.start), (*path, "start"))
    begin, level = 0, float(curve.start)
    for index, (steps, to) in enumerate(stages):
        end = begin + steps
        if steps:
            # A border takes from the next stage what it gives to this one. Empty stages have nothing to give.
            following = next((later for later in range(index + 1, len(stages)) if stages[later][0]), None)
            moved = [(*path, "stages", index, 0)]
            high = MAX_STEP
            if following is not None:
                moved.append((*path, "stages", following, 0))
                high = end + stages[following][0]
            yield _step_handle(
                f"Stage {index + 1}, end", curve, end, curve.total_steps, moved, low=begin, high=high
            )
        level = level if to is None else float(to)  # a stage without a level holds that of the one before
        yield _level_handle(f"Stage {index + 1}, level", end, level, (*path, "stages", index, 1))
        begin = end


def _cooldown_handles(curve: Cooldown, path: _Path) -> Iterator[Handle]:
    at, total = curve.at, curve.total_steps
    yield _step_handle("Cooldown, start", curve, at, total, ((*path, "at"),), high=MAX_STEP - curve.steps)
    yield _step_handle("Cooldown, end", curve, total, total, ((*path, "steps"),), low=at + 1)
    high = max(curve(at), curve.to)
    yield _level_handle("Cooldown, final learning rate", total, float(curve.to), (*path, "to"), high=high)


def _continuation_handles(curve: Then, path: _Path) -> Iterator[Handle]:
    first, scale = curve.curve.total_steps, float(curve.scale)
    other = curve.other
    # The scale's handle is at the highest level (the first of them, if several are equal).
    highest = max((row.begin for row in other.rows), key=lambda step: (other(step), -step))
    level = other(highest)
    if level:
        handle = _level_handle("Continuation, scale", first + highest, scale * level, (*path, "scale"))
        yield replace(handle, value=scale, value_per_unit=1 / level)
    for handle in _curve_handles(other, (*path, "other")):
        name = f"Continuation, {handle.name[0].lower()}{handle.name[1:]}"
        yield replace(_scaled(handle, scale), name=name, step=first + handle.step)


def _scaled(handle: Handle, scale: float) -> Handle:
    """Return a handle of a curve whose levels are multiplied by a factor."""
    if handle.axis != "level":
        return replace(handle, level=scale * handle.level)
    # A tiny scale would make this infinite, and JSON has no infinity.
    per_unit = min(handle.value_per_unit / scale, sys.float_info.max)
    return replace(handle, level=scale * handle.level, value_per_unit=per_unit)


def _step_handle(
    name: str,
    curve: Curve,
    step: int,
    total: int,
    paths: Sequence[Any],
    *,
    low: int = 0,
    high: int = MAX_STEP,
) -> Handle:
    """Return the handle of a border at `step`. Of two paths, the second loses what the first gains."""
    return Handle(
        name=name,
        text=f"step {_grouped(step)}",
        look="knob",
        axis="step",
        step=step,
        level=curve(step),
        value=step,
        low=low,
        high=high,
        drag_unit=_round_part(total, 1000),
        arrow_change=_round_part(total, 100),
        value_per_unit=1.0,
        moves=tuple(map(Move, paths, (1, -1))),
    )


def _level_handle(name: str, step: int, level: float, path: _Path, *, high: float = 1.0) -> Handle:
    return Handle(
        name=name,
        text=f"{level:.6g} of the peak",
        look="knob",
        axis="level",
        step=step,
        level=level,
        value=level,
        low=0.0,
        high=high,
        drag_unit=0.01,
        arrow_change=0.01,
        value_per_unit=1.0,
        moves=(Move(path),),
    )


def _grouped(step: int) -> str:
    """Return the step as the page shows it, with a narrow space before each group of three digits."""
    return f"{step:,}".replace(",", "\u202f")


def _round_part(total: int, parts: int) -> int:
    """Return about total / parts: 1, 2 or 5 times a power of ten, such as 200 for 30 000 and 100."""
    part = max(1, total // parts)
    power = 10 ** (len(str(part)) - 1)
    return next(power * times for times in (5, 2, 1) if power * times <= part)
