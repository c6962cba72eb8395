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
from plateau_jax.tools.logged_lrs.comparison import difference_from
from plateau_jax.tools.logged_lrs.logs import (
    Cell,
    LogTable,
    UnclearLogError,
    keep_latest,
    read_lr_cells,
)

_GIVE_CURVE = "give the run's curve and its peak"

_GAP_FACTOR = 10.0
"""A gap is more than this many times as long as the intervals before and after it."""

_LEAST_GAP = 0.05
"""As a fraction of the run: less hardly changes a forecast."""

_PEAK_FACTOR = 2.0
"""Without a fall, the largest learning rate is at most this many times the second largest."""

_STEEP_FALL = 0.8
"""A fall from a peak that only one row has continues by at least this factor to the next row.

A fall like t^-P to less than half continues by (2 - 2^(-1/P))^-P: 0.67 for P = 1, 0.76 for 0.5.
"""

_PEAK_TOLERANCE = 0.05
"""Relative: a log may have the learning rate of the update before its step, or of that after it."""


def read_losses(table: LogTable, loss: str | None) -> dict[int, float]:
    """Return the losses by number of updates; warn of those that are left out."""
    column = table.find_column("loss", loss)
    logged = _without_zeros(table, _finite_losses(table, column))
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
            f"{table.name} has no finite loss after the first update, in "
            f"{checks.short_repr(column)} by {checks.short_repr(table.step)}"
        )
    if initial is not None:
        warn(f"{table.name}: the loss at step 0, before the first update, is left out")
    gap = _find_gap(table.steps(), max(losses))  # rows without a finite loss are no gap
    if gap is not None:
        problem = f"{table.name}: the steps jump from {gap[0]} to {gap[1]}"
        warn(f"{problem}: if these are not steps of one run, counted in updates, correct them")
    return losses


def _finite_losses(table: LogTable, column: str) -> list[Cell]:
    """Return the losses that are finite as a float32; warn of the others."""
    finite: list[Cell] = []
    left_out: list[int] = []
    for cell in table.cells(column):
        if not math.isfinite(checks.metric(column, cell.value)):
            left_out.append(cell.step)
            continue
        if cell.value < 0:
            raise ValueError(f"{cell.place} = {cell.value} must be positive")
        finite.append(cell)
    _warn_left_out(table, "losses that are not finite", left_out)
    return finite


def _without_zeros(table: LogTable, losses: Sequence[Cell]) -> Sequence[Cell]:
    """Leave out losses of 0 with a warning, unless every loss is 0.

    Some loggers write 0 at steps without an evaluation.
    """
    nonzero = [cell for cell in losses if cell.value != 0]
    if not nonzero:
        return losses
    zeros = [cell.step for cell in losses if cell.value == 0]
    _warn_left_out(table, "losses of 0, which count as missing,", zeros)
    return nonzero


def _warn_left_out(table: LogTable, losses: str, steps: Sequence[int]) -> None:
    if steps:
        count = f"{len(steps)}, the first at step {steps[0]}"
        warn(f"{table.name}: {losses} are left out ({count})")


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
    is_long = intervals > np.maximum(_LEAST_GAP * last, _GAP_FACTOR * neighbors)
    gaps = np.flatnonzero(is_long & (neighbors > 0))
    if not gaps.size:
        return None
    index = int(gaps[0])
    return steps[index], steps[index + 1]


def read_lrs(table: LogTable, lr: str | None) -> dict[int, float]:
    """Return the learning rate at each logged step; of several groups, that of the first."""
    try:
        cells = read_lr_cells(table, lr)
    except UnclearLogError as error:
        advice = f"{_GIVE_CURVE}; or {error.advice}"
        raise UnclearLogError(error.problem, error.argument, error.columns, advice) from None
    return {cell.step: cell.value for cell in cells}


def _unclear_curve(problem: str) -> UnclearLogError:
    return UnclearLogError(problem, "curve", (), _GIVE_CURVE)


def warn_of_other_lrs(
    table: LogTable, lr: str | None, curve: Curve, peak: float, *, has_peak_from_log: bool
) -> None:
    """Warn if the log has learning rates that are not those of the curve.

    Those of a curve from `BatchPlan.scale` are not compared, because its steps are not updates.
    """
    if curve.unit is not None:
        return
    try:
        cells = read_lr_cells(table, lr)
    except ValueError:
        if lr is not None:
            raise
        return  # a fit needs none of them
    if cells:
        difference = difference_from(cells, curve, peak, has_peak_from_log=has_peak_from_log)
        if difference:
            warn(f"{table.name}: {difference}. Give the run's curve and its peak, or neither")


def curve_of(table: LogTable, lrs: Mapping[int, float], last_loss: int) -> tuple[Curve, float]:
    """Return a curve of straight lines between the logged learning rates, and its peak.

    It is 0 before the first learning rate, because those of the earlier updates are unknown. It
    keeps the last one until the last loss, for at most one interval of logging.
    """
    peak = max(lrs.values(), default=0.0)
    if not peak > 0:
        raise _unclear_curve(f"{table.name} has no learning rate above 0")
    _check_peak(table, lrs)
    first = min(lrs)
    last = max(lrs)
    end = max(last_loss, last)
    if end - last > _logging_interval(lrs):
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
        return StagedCurve(stages, start=start), peak


def _logging_interval(lrs: Mapping[int, float]) -> float:
    if len(lrs) == 1:
        return 0.0
    intervals = np.diff(list(lrs))
    return max(intervals[-1], np.median(intervals))


def _check_peak(table: LogTable, lrs: Mapping[int, float]) -> None:
    """Reject a peak that only one row has, unless a steep fall begins there: it may be damaged."""
    if len(lrs) == 1:
        raise _unclear_curve(f"{table.name} has only one learning rate")
    second, first = sorted(lrs, key=lambda step: lrs[step])[-2:]
    if lrs[first] > _PEAK_FACTOR * lrs[second] and not _begins_a_steep_fall(lrs, first):
        problem = f"{lrs[first]:g}, at step {first}, is more than twice every other learning rate"
        raise _unclear_curve(f"{table.name}: {problem}")


def _begins_a_steep_fall(lrs: Mapping[int, float], peak_step: int) -> bool:
    """Return True if the learning rate falls from its peak, then at least a fifth further.

    The row before the peak must be lower than the row after it: a damaged row within a fall is not
    a peak.

    >>> _begins_a_steep_fall({100: 1.0, 200: 0.08, 300: 0.04}, 100)
    True
    >>> _begins_a_steep_fall({100: 1.0, 200: 0.08, 300: 0.07}, 100)
    False
    >>> _begins_a_steep_fall({100: 0.3, 200: 1.0, 300: 0.1, 400: 0.0}, 200)
    False
    """
    values = list(lrs.values())
    index = list(lrs).index(peak_step)
    if len(values) < index + 3:
        return False
    after = values[index + 1]
    later = values[index + 2]
    if index > 0 and values[index - 1] >= after:
        return False
    return later <= _STEEP_FALL * after


def peak_of(table: LogTable, lrs: Mapping[int, float], curve: Curve) -> float:
    """Return the peak with which a curve reaches the two largest of the logged learning rates.

    If only one is above 0, the curve must be 0 at the steps of the others, and a warning says so.
    """
    peaks: dict[int, float] = {}
    for step in sorted(lrs, key=lambda step: lrs[step], reverse=True)[:2]:
        if lrs[step] == 0:
            continue
        multiplier = float(curve(step))
        if multiplier == 0:
            problem = f"{table.name} has the learning rate {lrs[step]:g} at step {step}"
            raise _unclear_curve(f"{problem}, where the curve is 0")
        peaks[step] = lrs[step] / multiplier
    if not peaks:
        raise _unclear_curve(f"{table.name} has no learning rate above 0")
    (step, peak), *others = peaks.items()
    if not others:
        _check_zeros(table, lrs, curve)
        problem = f"only the learning rate at step {step} shows the peak, {peak:g}"
        warn(f"{table.name}: {problem}: if it is wrong, give the run's peak")
    for other_step, other_peak in others:
        if not math.isclose(peak, other_peak, rel_tol=_PEAK_TOLERANCE):
            problem = f"the learning rates at steps {step} and {other_step} imply different peaks"
            raise _unclear_curve(f"{table.name}: {problem}, {peak:g} and {other_peak:g}")
    return peak


def _check_zeros(table: LogTable, lrs: Mapping[int, float], curve: Curve) -> None:
    """Reject learning rates of 0 where the curve is above 0."""
    for step, lr in lrs.items():
        if lr == 0 and float(curve(step)) > 0:
            problem = f"{table.name} has the learning rate 0 at step {step}"
            raise _unclear_curve(f"{problem}, where the curve is above 0")
