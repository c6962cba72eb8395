"""Handles on the picture of a curve: points that the user drags or moves with the arrow keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from plateau_jax.arguments.checks import MAX_STEP, Path
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Then
from plateau_jax.curves.plateau_curve import PlateauCurve, place_plateaus
from plateau_jax.curves.staged_curve import StagedCurve

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
    """The number it changes."""
    low: float
    high: float
    """The limits of a drag, which other arguments may narrow further."""


def curve_and_peak_handles(curve: Curve, peak: float) -> list[Handle]:
    """Return the handle of the peak, then those of the curve from left to right."""
    # Those of a long curve take seconds.
    handles = list(islice(_curve_handles(curve, ("curve",)), MAX_HANDLES + 1))
    if len(handles) > MAX_HANDLES:
        handles = []
    # The page finds a handle by its name. Of several cooldowns, the last one has handles.
    by_name = {handle.name: handle for handle in handles}
    return [_peak_handle(peak), *sorted(by_name.values(), key=lambda handle: handle.step)]


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
            yield from _curve_handles(curve.curve, (*path, "curve"))
        case _:  # its fields alone change it
            pass


def _step_handle(
    name: str, curve: Curve, step: int, path: Path, *, low: int = 0, high: int = MAX_STEP
) -> Handle:
    """Return a handle on the curve, whose value is its step."""
    return Handle(name, path, "step", step, level=curve(step), value=step, low=low, high=high)


def _level_handle(name: str, step: int, level: float, path: Path, high: float = 1.0) -> Handle:
    """Return a handle whose value is its level."""
    return Handle(name, path, "level", step, level, value=level, low=0.0, high=high)


def _plateau_curve_handles(curve: PlateauCurve, path: Path) -> Iterator[Handle]:
    total = curve.total_steps
    warmup = curve.warmup_steps
    initial = float(curve.init_lr_ratio)
    final = float(curve.min_lr_ratio)
    yield _step_handle("Warmup, end", curve, warmup, (*path, "warmup_steps"), high=total - 1)
    if warmup:
        yield _level_handle("Initial learning rate", 0, initial, (*path, "init_lr_ratio"))
    yield from _plateau_handles(curve, path)
    yield _step_handle("End of the curve", curve, total, (*path, "total_steps"), low=warmup + 1)
    yield _level_handle("Final learning rate", total, final, (*path, "min_lr_ratio"))


def _plateau_handles(curve: PlateauCurve, path: Path) -> Iterator[Handle]:
    """Yield the handles at the start, in the middle and at the end of each plateau."""
    warmup = curve.warmup_steps
    plateaus: list[tuple[int, int, Path]] = []
    for index, pair in enumerate(curve.plateaus):
        ((first, length),) = place_plateaus(curve.total_steps, warmup, (pair,), ())
        plateaus.append((first, length, (*path, "plateaus", index)))
    for index, (first, length) in enumerate(curve.absolute_plateaus):
        plateaus.append((first, length, (*path, "absolute_plateaus", index)))

    plateaus.sort()
    # Each moves between its neighbors. Past them, it would have their names.
    lows = [warmup, *(first + length for first, length, _ in plateaus)]
    highs = [*(first for first, _, _ in plateaus[1:]), curve.total_steps]
    # At least one step must remain to decay.
    spare = curve.total_steps - warmup - sum(length for _, length, _ in plateaus) - 1
    for index, (first, length, place) in enumerate(plateaus):
        name = f"Plateau {index + 1}"
        end = first + length
        low = lows[index]
        high = highs[index]
        # The script also changes the length with the start, so that the end stays.
        lowest = max(low, first - spare)
        yield _step_handle(f"{name}, start", curve, first, (*place, 0), low=lowest, high=end)
        yield Handle(
            name=f"{name}, place",
            path=place,
            axis="step",
            step=first + length // 2,
            level=curve(first),
            value=first,
            low=low,
            high=high - length,
        )
        highest = min(high, end + spare)
        yield _step_handle(f"{name}, end", curve, end, (*place, 1), low=first, high=highest)


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
            later = [stage.steps for stage in curve.stages[index + 1 :] if stage.steps]
            high = end + later[0] if later else MAX_STEP
            yield _step_handle(f"{name}, end", curve, end, (*place, 0), low=begin, high=high)
        if stage.to is not None:  # else the stage keeps the previous level
            level = float(stage.to)
        yield _level_handle(f"{name}, level", end, level, (*place, 1))
        begin = end


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
    yield _level_handle("Cooldown, final learning rate", total, final, (*path, "to"), high)
