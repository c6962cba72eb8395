"""What can be dragged on the picture of a curve, or moved by arrow keys."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Then
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.curves.plateaus import place_plateaus
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.validation.checks import MAX_STEP

_Path = tuple[str | int, ...]

MOST = 200
"""A curve with more handles gets none: they would cover one another."""


@dataclass(frozen=True)
class Handle:
    """A point of the picture. Moving it changes one number, and the fields that follow it."""

    name: str
    text: str
    """The value in words."""
    look: Literal["knob", "bar", "tag"]
    axis: Literal["step", "level", "rate"]
    """The direction in which it moves."""
    step: int
    level: float
    """Where it is, as a multiplier."""
    value: float
    low: float
    high: float
    drag: float
    """Values that are dragged are multiples of this one."""
    arrow: float
    """What an arrow key adds."""
    page: float
    """What Page Up adds."""
    per: float
    """What one step, level or rate of the picture adds to the value."""
    moves: tuple[tuple[_Path, int], ...]
    """The fields that change with the value: 1 for as much, -1 for as much the other way."""


def handles_of(curve: Curve, peak: float) -> list[Handle]:
    """The handles of a curve and of its peak, from left to right."""
    found = list(_of(curve, ("curve",)))
    if len(found) > MOST:
        found = []
    found.sort(key=lambda handle: handle.step)
    return [_peak(peak), *_with_own_names(found)]


def _with_own_names(handles: Sequence[Handle]) -> Iterator[Handle]:
    """A curve may have several cooldowns: each handle has a name that no other has."""
    seen = Counter[str]()
    for handle in handles:
        seen[handle.name] += 1
        many = seen[handle.name]
        yield handle if many == 1 else replace(handle, name=f"{handle.name} ({many})")


def _peak(peak: float) -> Handle:
    order = 10.0 ** math.floor(math.log10(peak)) if peak else 1e-3
    return Handle(
        name="Peak learning rate",
        text=f"{peak:.6g}",
        look="tag",
        axis="rate",
        step=0,
        level=1.0,
        value=peak,
        low=0.0,
        high=max(1.0, 10 * peak),
        drag=order / 100,
        arrow=order / 10,
        page=order,
        per=1.0,
        moves=((("peak",), 1),),
    )


def _of(curve: Curve, path: _Path) -> Iterator[Handle]:
    match curve:
        case PlateauCurve():
            yield from _of_plateau_curve(curve, path)
        case StagedCurve():
            yield from _of_stages(curve, path)
        case Cooldown():
            inner = _of(curve.curve, (*path, "curve"))
            yield from (handle for handle in inner if handle.step < curve.at)
            yield from _of_cooldown(curve, path)
        case Then():
            yield from _of(curve.curve, (*path, "curve"))
            yield from _of_continuation(curve, path)
        case _:
            pass


def _of_plateau_curve(curve: PlateauCurve, path: _Path) -> Iterator[Handle]:
    total, warmup = curve.total_steps, curve.warmup_steps
    yield _step("Warmup, end", curve, warmup, total, ((*path, "warmup_steps"),), high=total - 1)
    if warmup:
        yield _level("First rate", 0, float(curve.init_lr_ratio), (*path, "init_lr_ratio"))
    yield from _of_plateaus(curve, path)
    yield _step("End of the curve", curve, total, total, ((*path, "total_steps"),), low=warmup + 1)
    yield _level("Last rate", total, float(curve.min_lr_ratio), (*path, "min_lr_ratio"))


def _of_plateaus(curve: PlateauCurve, path: _Path) -> Iterator[Handle]:
    total, warmup = curve.total_steps, curve.warmup_steps
    after_warmup = total - warmup
    found: list[tuple[int, int, str, int]] = []
    for index, pair in enumerate(curve.plateaus):
        ((first, length),) = place_plateaus(total, warmup, (pair,), ())
        found.append((first, length, "plateaus", index))
    for index, (first, length) in enumerate(curve.absolute_plateaus):
        found.append((first, length, "absolute_plateaus", index))
    found.sort()
    spare = after_warmup - sum(length for _, length, *_ in found) - 1  # one step must be left to decay
    for number, (first, length, kind, index) in enumerate(found):
        before = found[number - 1][0] + found[number - 1][1] if number else warmup
        after = found[number + 1][0] if number + 1 < len(found) else total
        room = before, after, length + spare
        yield from _of_plateau(curve, number, (first, length), room, (*path, kind, index))


def _of_plateau(
    curve: PlateauCurve,
    number: int,
    place: tuple[int, int],
    room: tuple[int, int, int],
    path: _Path,
) -> Iterator[Handle]:
    """The left end, the whole, the right end of a plateau: in percent, if it was written so.

    Args:
        curve: The curve that has it.
        number: Which plateau it is, from 0.
        place: Its first step and its length.
        room: Where the plateau before it ends, where the next one begins, and how long it may be.
        path: Where the pair is.
    """
    is_percent = path[-2] == "plateaus"
    per = 100 / (curve.total_steps - curve.warmup_steps) if is_percent else 1.0
    origin = curve.warmup_steps if is_percent else 0
    unit = 0.1 if is_percent else _unit(curve.total_steps)
    first, length = place
    start, duration = (curve.plateaus if is_percent else curve.absolute_plateaus)[int(path[-1])]

    def value(step: int) -> float:
        return (step - origin) * per

    def handle(what: str, step: int, own: float, low: float, high: float, *moves: tuple[int, int]) -> Handle:
        return Handle(
            name=f"Plateau {number + 1}, {what}",
            text=f"{own:.6g} %, step {step}" if is_percent else f"step {step}",
            look="knob",
            axis="step",
            step=step,
            level=curve(first),
            value=own,
            # Percentages are rounded to steps: the ends are taken to whole units that surely fit.
            low=min(own, round(math.ceil(low / unit - 1e-9) * unit, 6)),
            high=max(own, round(math.floor(high / unit + 1e-9) * unit, 6)),
            drag=unit,
            arrow=10 * unit,
            page=100 * unit,
            per=per,
            moves=tuple(((*path, item), sign) for item, sign in moves),
        )

    end = float(start + duration)
    lowest, highest = value(room[0]), value(room[1])
    longest = max(duration, room[2] * per)
    yield handle("start", first, start, max(lowest, end - longest), end, (0, 1), (1, -1))
    yield replace(
        handle("place", first + length // 2, start, lowest, highest - duration, (0, 1)),
        look="bar",
        text=f"{start:.6g} %, steps {first} to {first + length}"
        if is_percent
        else f"steps {first} to {first + length}",
    )
    yield handle("end", first + length, end, start, min(highest, start + longest), (1, 1))


def _of_stages(curve: StagedCurve, path: _Path) -> Iterator[Handle]:
    stages = [(stage[0], stage[1]) for stage in curve.stages]
    yield _level("Start", 0, float(curve.start), (*path, "start"))
    begin = 0
    for index, (steps, to) in enumerate(stages):
        end = begin + steps
        if steps:
            following = next((at for at in range(index + 1, len(stages)) if stages[at][0]), None)
            moved = [(*path, "stages", index, 0)]
            high = MAX_STEP
            if following is not None:
                moved.append((*path, "stages", following, 0))
                high = end + stages[following][0]
            yield _step(f"Stage {index + 1}, end", curve, end, curve.total_steps, moved, low=begin, high=high)
        if to is not None:
            yield _level(f"Stage {index + 1}, level", end, float(to), (*path, "stages", index, 1))
        begin = end


def _of_cooldown(curve: Cooldown, path: _Path) -> Iterator[Handle]:
    at, total = curve.at, curve.total_steps
    yield _step("Cooldown, start", curve, at, total, ((*path, "at"),), high=MAX_STEP - curve.steps)
    yield _step("Cooldown, end", curve, total, total, ((*path, "steps"),), low=at + 1)
    yield _level("Cooldown, last rate", total, float(curve.to), (*path, "to"), high=max(curve(at), curve.to))


def _of_continuation(curve: Then, path: _Path) -> Iterator[Handle]:
    first, scale = curve.curve.total_steps, float(curve.scale)
    other = curve.other
    highest = max((row.begin for row in other.rows), key=lambda step: (other(step), -step))
    level = other(highest)
    if level:
        handle = _level("Continuation, scale", first + highest, scale * level, (*path, "scale"))
        yield replace(handle, value=scale, per=1 / level)
    for handle in _of(other, (*path, "other")):
        yield replace(
            handle,
            name=f"Continuation, {handle.name[0].lower()}{handle.name[1:]}",
            step=first + handle.step,
            level=scale * handle.level,
            # JSON has no infinity, which a tiny scale gives.
            per=min(handle.per / scale, sys.float_info.max) if handle.axis == "level" else handle.per,
        )


def _step(
    name: str,
    curve: Curve,
    step: int,
    total: int,
    paths: Sequence[Any],
    *,
    low: int = 0,
    high: int = MAX_STEP,
) -> Handle:
    """A border, at its own step. Of two paths the second loses what the first gains."""
    unit = _unit(total)
    return Handle(
        name=name,
        text=f"step {step}",
        look="knob",
        axis="step",
        step=step,
        level=curve(step),
        value=step,
        low=low,
        high=high,
        drag=unit,
        arrow=10 * unit,
        page=100 * unit,
        per=1.0,
        moves=tuple(zip(paths, (1, -1), strict=False)),
    )


def _level(name: str, step: int, level: float, path: _Path, *, high: float = 1.0) -> Handle:
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
        drag=0.01,
        arrow=0.01,
        page=0.1,
        per=1.0,
        moves=((path, 1),),
    )


def _unit(total: int) -> int:
    """1, 2 or 5 times a power of ten: about a thousandth of the total."""
    size = 10 ** max(0, math.floor(math.log10(total)) - 3)
    return next(size * times for times in (5, 2, 1) if size * times * 1000 <= total or times == 1)
