"""The learning rates in a log: as a curve, as a peak, and next to the curve that the user gives."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.validation.curve_warning import suppress_warnings, warn

_CLEAR_DIFFERENCE = 0.02
"""Fraction of the peak by which a logged learning rate differs clearly from a curve's."""

_LATEST_FIRST_LR = 0.1
"""Fraction of the steps by which a log without a curve must have its first learning rate."""


class UnclearLogError(ValueError):
    """A log leaves open what an argument of `LossRun.read` says.

    Attributes:
        problem: What is missing or unclear.
        argument: The argument that helps.
        columns: The columns that it may name; empty for `curve` and `peak_value`.
    """

    def __init__(self, problem: str, argument: str, columns: Sequence[str] = ()) -> None:
        super().__init__(problem, argument, columns)
        self.problem, self.argument, self.columns = problem, argument, tuple(columns)

    def __str__(self) -> str:
        if not self.columns:
            return f"{self.problem}: give the run's curve and its peak"
        argument = f"LossRun.read(..., {self.argument}=...)"
        return f"{self.problem}; name one of {listed(self.columns)} with {argument}"


def listed(columns: Sequence[str]) -> str:
    more = ", ..." if len(columns) > 20 else ""
    return "the columns " + ", ".join(map(repr, columns[:20])) + more


def curve_of(lrs: Mapping[int, float], last_loss: int, name: str) -> tuple[Curve, float]:
    """Return a curve of straight lines between learning rates, and its peak.

    The first one is 0 if none was logged at step 0. The last one holds until the last loss, for at most one
    interval of logging.
    """
    first, last, end = min(lrs), max(lrs), max(last_loss, *lrs)
    intervals = np.diff([0, *lrs])
    if first > _LATEST_FIRST_LR * end or end - last > max(intervals[-1], np.median(intervals)):
        raise UnclearLogError(f"{name} has learning rates only from step {first} to {last} of {end}", "curve")
    peak = max(lrs.values())
    levels = {step: lr / peak for step, lr in ({0: 0.0} | dict(lrs) | {end: lrs[last]}).items()}
    stages = [(after - before, level, "linear") for (before, _), (after, level) in pairwise(levels.items())]
    with suppress_warnings():
        return StagedCurve(stages, start=levels[0]), peak


def peak_of(lrs: Mapping[int, float], curve: Curve, name: str) -> float:
    """Return the peak with which a curve gives the logged learning rates."""
    steps, values = np.array(list(lrs)), np.array(list(lrs.values()))
    peaks: list[tuple[float, float]] = []
    # Most trainers log the learning rate of the last update, some that of the next one: one of them fits.
    for offset in (1, 0):
        multipliers = np.asarray(curve(np.maximum(steps - offset, 0)), np.float64)
        if multipliers.any():
            # Small multipliers change much from one step to the next.
            near_peak = multipliers >= 0.5 * multipliers.max()
            ratios = values[near_peak] / multipliers[near_peak]
            peaks.append((float(np.abs(ratios - np.median(ratios)).mean()), float(np.median(ratios))))
    if not peaks:
        raise UnclearLogError(f"{name} has learning rates only where the curve is 0", "peak_value")
    return min(peaks)[1]


def warn_if_lrs_differ(lrs: Mapping[int, float], curve: Curve, peak_value: float, name: str) -> None:
    """Warn about the first of the learning rates that clearly is not that of the curve."""
    if not lrs:
        return
    steps, values = np.array(list(lrs)), np.array(list(lrs.values()))
    # Trainers log the learning rate of the last update or of the next one.
    near = peak_value * np.asarray(curve(np.maximum(steps[:, None] + np.arange(-1, 2), 0)), np.float64)
    # Half a unit in the last decimal, if all learning rates were rounded to few of them.
    rounding = 0.5 * 10.0 ** min(int(Decimal(repr(lr)).as_tuple().exponent) for lr in values.tolist())
    margin = _CLEAR_DIFFERENCE * peak_value + rounding
    wrong = np.flatnonzero((values < near.min(axis=1) - margin) | (values > near.max(axis=1) + margin))
    if wrong.size:
        index = int(wrong[0])
        warn(
            f"{name} has the learning rate {values[index]:.4g} at step {steps[index]}, and the curve with "
            f"the peak {peak_value:.4g} has {near[index, 1]:.4g}: give the curve and the peak of this run"
        )
