"""The losses of a log, and the curve and the peak that its learning rates show."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import suppress_warnings, warn
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.tools.logged_lrs.compare_log import difference_from, find_peak
from plateau_jax.tools.logged_lrs.log_table import (
    Cell,
    LogTable,
    UnclearLogError,
    keep_latest,
    read_lr_cells,
)

_GIVE_CURVE = "give the run's curve and its peak"

_GAP_FACTOR = 10.0
"""A gap is more than this many times as long as the intervals before and after it."""

_MIN_GAP = 0.05
"""As a fraction of the run: less hardly changes a forecast."""

_PEAK_FACTOR = 2.0
"""The largest learning rate is at most this many times the second largest."""


def read_losses(table: LogTable, loss: str | None) -> dict[int, float]:
    """Return the losses by number of updates; warn of those that are left out."""
    column = table.find_column("loss", loss)
    logged = _usable_losses(table, column)
    has = f"{table.name} has {len(logged)} losses"
    kept, replaced = keep_latest(logged, has, "split, rank or run")
    losses = {cell.step: cell.value for cell in kept}
    if replaced:
        first_step = min(cell.step for cell in replaced)
        first = f"{len(replaced)} earlier losses are left out, from step {first_step} on"
        warn(f"{table.name}: steps repeat, as in a resumed run: {first}")
    initial = losses.pop(0, None)
    if not losses:
        raise ValueError(
            f"{table.name} has no positive loss after the first update, in "
            f"{checks.short_repr(column)} by {checks.short_repr(table.step)}"
        )
    if initial is not None:
        warn(f"{table.name}: the loss at step 0, before the first update, is left out")
    return losses


def _usable_losses(table: LogTable, column: str) -> list[Cell]:
    """Return the losses that are not 0, and finite as a float32; warn of the others.

    Some loggers write 0 at steps without an evaluation.
    """
    usable: list[Cell] = []
    left_out: list[int] = []
    for cell in table.cells(column):
        if cell.value == 0 or not math.isfinite(checks.metric(column, cell.value)):
            left_out.append(cell.step)
            continue
        if cell.value < 0:
            raise ValueError(f"{cell.place} = {cell.value} must be positive")
        usable.append(cell)
    if left_out:
        count = f"{len(left_out)}, the first at step {left_out[0]}"
        warn(f"{table.name}: losses that are 0 or not finite are left out ({count})")
    return usable


def curve_of(table: LogTable, lr: str | None, last_loss: int) -> tuple[Curve, float, int]:
    """Return a curve of lines between the logged learning rates, its peak, and its first step.

    It is 0 before the first learning rate, because those of the earlier updates are unknown. It
    keeps the last one until the last loss, for at most one interval of logging.
    """
    lrs = {cell.step: cell.value for cell in _read_cells(table, lr)}
    peak = max(lrs.values(), default=0.0)
    if not peak > 0:
        raise _unclear_curve(f"{table.name} has no learning rate above 0")
    _check_peak(table, lrs)
    first = min(lrs)
    last = max(lrs)
    end = max(last_loss, last)
    intervals = np.diff(list(lrs))
    if end - last > max(intervals[-1], np.median(intervals)):
        problem = f"{table.name} has learning rates only from step {first} to {last} of {end}"
        raise _unclear_curve(problem)
    gap = _find_gap(list(lrs), end)
    if gap is not None:
        problem = f"{table.name} has no learning rates between steps {gap[0]} and {gap[1]}"
        raise _unclear_curve(problem)

    levels = {step: lr / peak for step, lr in lrs.items()}
    stages: list[Any] = []
    start = levels[first]
    if first > 0:
        stages = [(first,), (0, start)]
        start = 0.0
    levels[end] = levels[last]
    for (step, _), (next_step, level) in pairwise(levels.items()):
        stages.append((next_step - step, level, "linear"))
    with suppress_warnings():
        return StagedCurve(stages, start=start), peak, first


def _check_peak(table: LogTable, lrs: Mapping[int, float]) -> None:
    """Reject a peak that only one row has: it may be damaged."""
    if len(lrs) == 1:
        raise _unclear_curve(f"{table.name} has only one learning rate")
    second, first = sorted(lrs, key=lambda step: lrs[step])[-2:]
    if lrs[first] > _PEAK_FACTOR * lrs[second]:
        problem = f"{lrs[first]:g}, at step {first}, is more than twice every other learning rate"
        raise _unclear_curve(f"{table.name}: {problem}")


def _find_gap(steps: Sequence[int], last: int) -> tuple[int, int] | None:
    """Return the first two logged steps with an unusually long gap between them, or None.

    A gap is far longer than the intervals before and after it, and not a small part of the run.

    >>> _find_gap([10, 20, 30, 230, 240, 250], 250)
    (30, 230)
    >>> _find_gap([10, 20, 30, 230, 430, 630], 630)
    """
    intervals = np.diff(steps)
    padded = np.pad(intervals, 1)
    neighbors = np.maximum(padded[:-2], padded[2:])
    is_long = intervals > np.maximum(_MIN_GAP * last, _GAP_FACTOR * neighbors)
    gaps = np.flatnonzero(is_long & (neighbors > 0))
    if not gaps.size:
        return None
    index = int(gaps[0])
    return steps[index], steps[index + 1]


def peak_of(table: LogTable, lr: str | None, curve: Curve) -> float:
    """Return the peak with which all logged learning rates are on the curve."""
    cells = _read_cells(table, lr)
    peak = None
    if cells:
        peak = find_peak(cells, curve)
    if peak is None:
        problem = f"{table.name} has no learning rates that show the peak of this curve"
        raise UnclearLogError(problem, "peak_value", (), "give the run's peak")
    return peak


def warn_of_other_lrs(table: LogTable, lr: str | None, curve: Curve, peak: float) -> None:
    """Warn if the log has learning rates that are not those of the curve."""
    try:
        cells = read_lr_cells(table, lr)
    except ValueError:
        if lr is not None:
            raise
        return  # a fit needs none of them
    if cells:
        difference = difference_from(cells, curve, peak)
        if difference:
            warn(f"{table.name}: {difference}. Give the run's curve and its peak, or neither")


def _read_cells(table: LogTable, lr: str | None) -> list[Cell]:
    """Return the learning rate at each logged step; of several groups, that of the first."""
    try:
        return read_lr_cells(table, lr)
    except UnclearLogError as error:
        advice = f"{_GIVE_CURVE}; or {error.advice}"
        raise UnclearLogError(error.problem, error.argument, error.columns, advice) from None


def _unclear_curve(problem: str) -> UnclearLogError:
    return UnclearLogError(problem, "curve", (), _GIVE_CURVE)
