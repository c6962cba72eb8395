"""The learning rates in a log: as a curve, as a peak, and next to the curve that the user gives."""

import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.validation.curve_warning import suppress_warnings, warn
from plateau_jax.validation.messages import Keyword, Message, Part, Wording

_CLEAR_DIFFERENCE = 0.02
"""Fraction of the peak by which a logged learning rate differs clearly from a curve's."""

_SAME_LEVEL = 1e-3
"""Fraction of the peak by which parameter groups may differ; they may be rounded, to float32 for example."""

LATEST_FIRST_LR = 0.1
"""Fraction of the steps by which a log without a curve must have its first learning rate."""

CURVE_AND_PEAK = Wording(
    ("give ", Keyword("curve"), " and ", Keyword("peak_value")), "choose the run's curve and its peak"
)
GIVE_CURVE = Message(": ", CURVE_AND_PEAK)
GIVE_PEAK = Message(": give ", Keyword("peak_value"))


class UnclearLogError(ValueError):
    """A log leaves open what an argument of `LossRun.read` says.

    Attributes:
        problem: What is missing or unclear.
        argument: The argument that helps.
        columns: The columns that it may name; empty for `curve` and `peak_value`.
    """

    def __init__(self, problem: Part, advice: Part, argument: str, columns: Sequence[str] = ()) -> None:
        super().__init__(Message(problem, advice))
        self._arguments = problem, advice, argument, columns
        self.problem = Message(problem)
        self.argument = argument
        self.columns = tuple(columns)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle would call the class with the message alone.
        return type(self), self._arguments


def first_group(cells: Sequence[Any], name: str) -> Sequence[Any]:
    """Return the learning rates of the first parameter group, if a `MetricLog` has lists of several."""
    lists: list[Sequence[Any]] = [cell for cell in cells if isinstance(cell, list | tuple)]
    try:
        first, *others = np.array(lists, np.float64).T
        levels = first / (first.max() or 1)
    except (TypeError, ValueError):  # no lists, or not of numbers
        return cells
    if any(np.abs(other / other.max() - levels).max() > _SAME_LEVEL for other in others if other.any()):
        problem = f"{name} has parameter groups whose learning rates are not proportional"
        raise ValueError(Message(problem, GIVE_CURVE))
    return [cell[0] if isinstance(cell, list | tuple) else cell for cell in cells]


def check_lrs(logged: Sequence[tuple[int, float]], name: str) -> None:
    for step, lr in logged:
        if not 0 <= lr < math.inf:
            problem = f"{name} has the learning rate {lr} at step {step}; it must be finite and at least 0"
            raise ValueError(problem + (": leave it out if none was logged" if math.isnan(lr) else ""))


def interpolate_lrs(logged: list[tuple[int, float]], last_step: int, name: str) -> tuple[Curve, float]:
    """Return a curve of straight lines between learning rates, and its peak.

    The first one is 0 if none was logged at step 0. The last one holds until the last step, for at most one
    interval of logging.
    """
    lrs = dict(logged)
    first, last = min(lrs), max(last_step, *lrs)
    if first > LATEST_FIRST_LR * last:
        problem = f"{name} has its first learning rate at step {first} of {last}, too late to know the warmup"
        raise UnclearLogError(problem, GIVE_CURVE, "curve")
    gaps = np.diff([0, *(step for step in lrs if step)])
    if last - max(lrs) > (max(gaps[-1], np.median(gaps)) if len(gaps) else 0):
        problem = f"{name} has its last learning rate at step {max(lrs)} of {last}"
        advice = Message(": log it up to the last loss, or ", CURVE_AND_PEAK)
        raise UnclearLogError(problem, advice, "curve")
    peak = max(lrs.values())
    levels = {step: lr / peak for step, lr in ({0: 0.0} | lrs | {last: lrs[max(lrs)]}).items()}
    stages = [(after - before, level, "linear") for (before, _), (after, level) in pairwise(levels.items())]
    with suppress_warnings():
        return StagedCurve(stages, start=levels[0]), peak


def peak_of_lrs(logged: list[tuple[int, float]], curve: Curve, name: str) -> float:
    """Return the peak with which a curve gives the logged learning rates."""
    steps, lrs = (np.array(values, np.float64) for values in zip(*logged, strict=True))
    peaks: dict[float, float] = {}
    # Most trainers log the learning rate of the last update, some that of the next one: one of them fits.
    for offset in (1, 0):
        multipliers = np.asarray(curve(np.maximum(steps.astype(np.int64) - offset, 0)), np.float64)
        if multipliers.any():
            # Small multipliers change much from one step to the next.
            near_peak = multipliers >= 0.5 * multipliers.max()
            ratios = lrs[near_peak] / multipliers[near_peak]
            peak = float(np.median(ratios))
            peaks.setdefault(float(np.abs(ratios - peak).mean()), peak)
    if not peaks:
        problem = f"{name} has learning rates only at steps at which the curve is 0"
        raise UnclearLogError(problem, GIVE_PEAK, "peak_value")
    return peaks[min(peaks)]


def warn_if_lrs_differ(
    logged: Sequence[tuple[int, float]], curve: Curve, peak_value: float, name: str
) -> None:
    """Warn about the first of the learning rates that clearly is not that of the curve."""
    finite = [(step, lr) for step, lr in logged if math.isfinite(lr)]
    if not finite:
        return
    steps, lrs = (np.array(values) for values in zip(*finite, strict=True))
    # Trainers log the learning rate of the last update or of the next one.
    near = peak_value * np.asarray(curve(np.maximum(steps[:, None] + np.arange(-1, 2), 0)), np.float64)
    # Half a unit in the last decimal, if all learning rates were rounded to few of them.
    rounding = 0.5 * 10.0 ** min(int(Decimal(repr(value)).as_tuple().exponent) for value in lrs.tolist())
    margin = _CLEAR_DIFFERENCE * peak_value + rounding
    wrong = np.flatnonzero((lrs < near.min(axis=1) - margin) | (lrs > near.max(axis=1) + margin))
    if wrong.size:
        first = int(wrong[0])
        warn(
            f"{name} has the learning rate {lrs[first]:.4g} at step {steps[first]}, and the curve with "
            f"the peak {peak_value:.4g} has {near[first, 1]:.4g}: give the curve and the peak of this run"
        )
