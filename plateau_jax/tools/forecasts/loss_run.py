"""`LossRun`: the losses of a training run and the curve that it was trained with."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.tools.forecasts.read_losses import (
    curve_of,
    peak_of,
    read_losses,
    warn_of_other_lrs,
)
from plateau_jax.tools.logged_lrs.compare_log import check_counts_updates
from plateau_jax.tools.logged_lrs.log_table import LogTable, read_log
from plateau_jax.tools.theory.step_bins import largest_multiplier

_MAX_FIRST_LOSS = 15
"""In nats; a uniform distribution over a million tokens has 14."""

_MAX_STAGES = 20
"""The most stages of a curve that `repr` shows."""

_PEAK_TOLERANCE = 1e-6
"""Relative: peaks may be rounded to float32."""

_LOGGED_PEAK_TOLERANCE = 0.05
"""Relative: the learning rates of a log may miss the peak."""


@dataclass(frozen=True, eq=False, repr=False)
class LossRun:
    """The losses of a training run, with its curve and its peak learning rate.

    Log a validation loss if you can, at 20 or more steps after the warmup. Training losses are
    noisier: log their mean since the last logged loss, not an EMA or a running mean.

    Args:
        curve: The curve of the learning rates.
        peak_value: The peak learning rate, positive; the run used peak_value · curve(step).
        steps: Integers, shape (n,), increasing: the loss at step t was measured after t updates.
        losses: Positive numbers, shape (n,), such as a mean cross-entropy in nats. A first loss
            above 15 looks like a perplexity and causes a `CurveWarning`.
        lrs_from: For a curve from the learning rates of a log, the step of the first of them.

    Attributes:
        curve, peak_value, lrs_from: As above; the peak is a Python float.
        steps: int64, shape (n,), a read-only copy.
        losses: float64, shape (n,), a read-only copy.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: A loss that is not finite or not positive as a float32; steps that do not
            increase, are below 1, or lie after the curve's end; no losses, or not as many steps as
            losses; a peak that is not positive; a curve from `BatchPlan.scale`.

    >>> from plateau_jax import LossRun, PlateauCurve
    >>> steps, losses = [250, 500, 750, 1000], [3.5, 3.2, 3.0, 2.9]
    >>> run = LossRun(PlateauCurve(1000), 1e-3, steps, losses)
    >>> run.losses
    array([3.5, 3.2, 3. , 2.9])
    """

    curve: Curve
    peak_value: float
    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    lrs_from: int | None

    def __init__(
        self,
        curve: Curve,
        peak_value: float,
        steps: ArrayLike,
        losses: ArrayLike,
        *,
        lrs_from: int | None = None,
    ) -> None:
        curve = check_curve("curve", curve)
        check_counts_updates(curve)
        peak = float(checks.number("peak_value", peak_value))
        if not checks.peak("peak_value", peak) > 0:
            raise ValueError(checks.must("peak_value", peak_value, "be positive"))
        step_array = _check_steps(steps, curve)
        loss_array = _check_losses(losses)
        if len(step_array) != len(loss_array):
            raise ValueError(f"steps has length {len(step_array)}, and losses {len(loss_array)}")
        if loss_array[0] > _MAX_FIRST_LOSS:
            problem = f"the first loss is {loss_array[0]:.4g}, as if the losses were perplexities"
            warn(f"{problem}: take the logarithm")
        # The dataclass is frozen.
        vars(self).update(
            curve=curve, peak_value=peak, steps=step_array, losses=loss_array, lrs_from=lrs_from
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for array in (self.steps, self.losses):  # copied or pickled arrays are writable
            array.flags.writeable = False

    @classmethod
    def read(
        cls,
        source: str | PathLike[str] | Iterable[Mapping[str, Any]],
        curve: Curve | None = None,
        peak_value: float | None = None,
        *,
        step: str | None = None,
        loss: str | None = None,
        lr: str | None = None,
    ) -> Self:
        """Read a run from a log.

        Leaves out rows without a step or a loss. Warns (`CurveWarning`) if it also leaves out
        losses that are not finite, losses of 0 in a log with other losses, the loss at step 0,
        losses at steps that a resumed run logged again, or a last line that may be incomplete; and
        if the log has learning rates that are not those of `curve` with `peak_value`, with the
        first that differs and the fault that explains them, as in `compare_log`.

        Args:
            source: The path of a file: CSV with commas or tabs, JSON lines or a list, or the lines
                of a console; in UTF-8, or in UTF-16 with a byte-order mark. Or rows: a list of
                dictionaries, such as that of a `MetricLog`, or a pandas data frame.
            curve: The curve of the run. Without it the learning rates of the log are used, with
                straight lines between them; the sums of the law then leave out the updates before
                the first logged learning rate.
            peak_value: The peak learning rate of the curve; by default, the one with which all
                learning rates of the log are on the curve.
            step: The column of steps, the numbers of updates: by default `step`, `global_step`,
                `train/global_step`, `trainer/global_step`, `num_updates`, `_step` or `applied`, or
                else `iter`, `iteration` or `update`.
            loss: The column of losses: `loss`, `train_loss` or `train/loss` by default.
            lr: The column of learning rates: by default `lr`, `learning_rate`, `train/lr` or
                `train/learning_rate`, or else a name with one of the first two, such as `lr-AdamW`.
                If a cell is a list, its first item is used.

        Raises:
            TypeError: `source` is neither a path nor rows.
            ValueError: No column has a usual name, or several have: the message names them, and the
                argument to pass. A cell is not a number, or a file is damaged: the message names
                the file and the line. Half of the losses or more are at steps that were logged
                again. Without a curve: learning rates are missing, or one is more than twice every
                other one. With a curve but without a peak: no peak explains the learning rates.
                `peak_value` is given without `curve`.
            OSError: The file cannot be read.

        >>> from plateau_jax import LossRun, PlateauCurve
        >>> rows = [{"step": 50, "loss": 3.4}, {"step": 100, "loss": 3.1}]
        >>> LossRun.read(rows, PlateauCurve(100), 1e-3).steps
        array([ 50, 100])
        """
        if curve is not None:
            curve = check_curve("curve", curve)
        elif peak_value is not None:
            raise ValueError("peak_value= without curve=: give both, or neither")
        table = LogTable.from_log(read_log(source), step)
        loss_by_step = read_losses(table, loss)
        is_peak_given = peak_value is not None
        lrs_from = None
        if curve is None:
            curve, peak_value, lrs_from = curve_of(table, lr, max(loss_by_step))
        elif peak_value is None:
            peak_value = peak_of(table, lr, curve)
        steps = list(loss_by_step)
        losses = list(loss_by_step.values())
        try:
            run = cls(curve, peak_value, steps, losses, lrs_from=lrs_from)
        except ValueError as error:
            raise ValueError(f"{table.name}: {error}") from None
        if is_peak_given:
            warn_of_other_lrs(table, lr, curve, run.peak_value)
        return run

    def __repr__(self) -> str:
        curve = repr(self.curve)
        if isinstance(self.curve, StagedCurve) and len(self.curve.stages) > _MAX_STAGES:
            # Typically a curve from the learning rates of a log.
            curve = f"<StagedCurve of {len(self.curve.stages)} stages>"
        steps = f"steps={self.steps[0]}…{self.steps[-1]}"
        losses = f"losses={self.losses[0]:.4g}…{self.losses[-1]:.4g}"
        source = ""
        if self.lrs_from is not None:
            source = f", learning rates of the log from step {self.lrs_from} on"
        return f"LossRun({curve}, {self.peak_value!r}, {steps}, {losses}{source})"


def _as_array(name: str, values: Any, dtype_kinds: str, requirement: str) -> NDArray[Any]:
    """Return a sequence of numbers as an array with a dtype of these kinds."""
    array = None
    with suppress(ValueError):  # from numbers next to lists
        array = np.asarray(values)
    if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in dtype_kinds):
        raise TypeError(checks.must(name, values, requirement))
    return array


def _check_steps(steps: Any, curve: Curve) -> NDArray[np.int64]:
    array = _as_array("steps", steps, "iu", "be a sequence of integers")
    if not array.size:
        raise ValueError("there are no logged losses")
    wrong = np.flatnonzero(array[1:] <= array[:-1])
    if wrong.size:
        index = int(wrong[0])
        raise ValueError(
            f"steps must increase: steps[{index}] = {array[index]}, steps[{index + 1}] = "
            f"{array[index + 1]}; a resumed run logs some steps twice: keep the later losses"
        )
    if array[0] < 1:
        raise ValueError(
            f"steps[0] = {array[0]} must be at least 1: a logged loss needs an update before it"
        )
    if array[-1] > curve.total_steps:
        raise ValueError(
            f"steps[-1] = {array[-1]} lies after the end of the curve, which has total_steps = "
            f"{curve.total_steps}: give the curve that the run was trained with, and count steps "
            "in updates"
        )
    array = array.astype(np.int64)
    array.flags.writeable = False
    return array


def _check_losses(losses: Any) -> NDArray[np.float64]:
    array = _as_array("losses", losses, "iuf", "be a sequence of real numbers")
    array = array.astype(np.float64)
    # A fit squares losses and divides by them.
    with np.errstate(over="ignore"):
        rounded = array.astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(rounded) & (rounded > 0)))
    if wrong.size:
        index = int(wrong[0])
        requirement = "be finite and positive as a float32"
        raise ValueError(checks.must(("losses", index), float(array[index]), requirement))
    array.flags.writeable = False
    return array


def last_step_of(run: LossRun) -> int:
    """Return the step of the last logged loss."""
    return int(run.steps[-1])


def largest_lr_of(run: LossRun) -> float:
    """Return the largest learning rate of the updates before the last logged loss."""
    return run.peak_value * largest_multiplier(run.curve, last_step_of(run))


def peaks_agree(peak: float, other_peak: float, *runs: LossRun) -> bool:
    """Return True if two peaks agree within the tolerance of the runs that they belong to."""
    tolerance = _PEAK_TOLERANCE
    if any(run.lrs_from is not None for run in runs):
        tolerance = _LOGGED_PEAK_TOLERANCE
    return math.isclose(peak, other_peak, rel_tol=tolerance)


def group_by_peak(runs: Sequence[LossRun]) -> dict[float, list[LossRun]]:
    """Group the runs whose largest learning rates agree with the highest of their group.

    Returns:
        Each group under the largest learning rate of its runs, from the lowest to the highest.
    """
    groups: dict[float, list[LossRun]] = {}
    # From the highest down, so that the first run of a group has the largest learning rate.
    for run in sorted(runs, key=largest_lr_of, reverse=True):
        for group in groups.values():
            if peaks_agree(largest_lr_of(run), largest_lr_of(group[0]), run, group[0]):
                group.append(run)
                break
        else:
            groups[largest_lr_of(run)] = [run]
    return dict(sorted(groups.items()))


def common_peak_value(runs: Sequence[LossRun]) -> float:
    """Return the `peak_value` that the runs have in common.

    Raises:
        ValueError: They have different ones. Their largest learning rates may still agree, if the
            curves have different largest multipliers.
    """
    largest = max(runs, key=lambda run: run.peak_value)
    for run in runs:
        if not peaks_agree(run.peak_value, largest.peak_value, run, largest):
            peaks = sorted({run.peak_value for run in runs})
            listed = ", ".join(f"{peak:g}" for peak in peaks)
            raise ValueError(f"the runs have several peak_value, {listed}: pass peak_value=")
    return largest.peak_value


def octaves_to_runs(peak: float, runs: Sequence[LossRun]) -> float:
    """Return log₂(peak / peak of the nearest run)."""
    octaves = [math.log2(peak / largest_lr_of(run)) for run in runs]
    return min(octaves, key=abs)
