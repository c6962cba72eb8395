"""`compare_log`: the learning rates of a log against a curve."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Message
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.tools.logged_lrs.faults import Fault, find_faults
from plateau_jax.tools.logged_lrs.log_table import read_lrs
from plateau_jax.tools.logged_lrs.printed import PrintedLrs


@dataclass(frozen=True)
class LogComparison:
    """How the learning rates of a log compare with a curve: `compare_log` describes it."""

    num_lrs: int
    digits: int | None
    counts_from: int
    first_difference: int | None
    logged: float | None
    expected: float | None
    faults: tuple[Fault, ...]
    not_logged: str

    @property
    def fault(self) -> Fault | None:
        """The fault, if exactly one explains the log."""
        if len(self.faults) == 1:
            return self.faults[0]
        return None

    @property
    def _is_explained(self) -> bool:
        return self.first_difference is None or bool(self.faults)

    def __str__(self) -> str:
        digits = "whose digits are not known"
        if self.digits is not None:
            digits = f"with up to {checks.plural(self.digits, 'digit')}"
        lines = [f"the log has {checks.plural(self.num_lrs, 'learning rate')} {digits}"]
        if self.counts_from == 1:
            lines.append("if it counts updates from 1:")
        if self.first_difference is None:
            lines += ["all are on the curve", *[fault.text for fault in self.faults]]
        else:
            lr = f"the learning rate at step {self.first_difference}"
            lines.append(f"{lr} is {self.logged:.7g}, not {self.expected:.7g} as on the curve")
            lines += _explanation(self.faults)
        if self.not_logged:
            lines.append(self.not_logged)
        return "\n".join(lines)


def _explanation(faults: Sequence[Fault]) -> list[str]:
    if not faults:
        why = "fewer than three rows differ, or no known fault explains all rows"
        return [f"no fault is named: {why}"]
    if len(faults) == 1:
        return [f"this fault explains all rows: {faults[0].text}"]
    listed = [f"- {fault.text}" for fault in faults]
    return [f"{len(faults)} faults explain all rows; later rows may decide:", *listed]


def compare_log(
    source: str | PathLike[str] | BinaryIO | Iterable[Mapping[str, Any]],
    curve: Curve,
    peak_value: float,
    *,
    step: str | None = None,
    lr: str | None = None,
) -> LogComparison:
    """Compare the learning rates of a log with a curve, and find the fault that explains them.

    A learning rate r of the log is on the curve if

        |r - lr(step)| <= u/2 + 3·2^-24·r + 4·2^-24·r_max

    with lr(step) = float32(float32(peak_value) · curve(step)), and u the place of the last digit of
    r. The other terms allow for float32, in the multiplier and in the schedules of other libraries;
    r_max is the largest learning rate of the log.

    If three rows or more are not on the curve, each known fault that explains every row is named.
    If only rows after the end of the curve differ, the fault is "past the end".

    Args:
        source: The path of a file: CSV with commas or tabs, JSON lines or a list, or the lines of a
            console; in UTF-8, or in UTF-16 with a byte-order mark. Or an open binary file. Or rows:
            a list of dictionaries, such as that of a `MetricLog`, or a pandas data frame. Its steps
            are numbers of updates: the row of step n should have the learning rate at step n of the
            curve. If the log counts from 1, its learning rates are one update late. Rows without a
            step or a learning rate are left out, and so is, with a `CurveWarning`, a last line
            that may be incomplete.
        curve: The curve that the run should have followed.
        peak_value: Its peak learning rate.
        step: The column of steps: by default `step`, `global_step`, `train/global_step`,
            `trainer/global_step`, `num_updates` or `applied`, or else `_step`, or else `iter`,
            `iteration` or `update`.
        lr: The column of learning rates: by default `lr`, `learning_rate`, `train/lr` or
            `train/learning_rate`, or else a name with one of the first two, such as `lr-AdamW`, or
            else `Value`, as TensorBoard writes. If a cell is a list, its first item is used.

    Returns:
        A dataclass with these attributes; `print` shows it as a report:

        - `first_difference`: The first step in the log at which the learning rate is not on the
          curve; None if all are.
        - `logged`, `expected`: The learning rate there in the log, and that of the curve; None if
          all are on the curve.
        - `fault`: The fault, if exactly one explains the log; else None.
        - `faults`: The faults that explain every learning rate of the log, without those that
          another one includes; at most eight ranges each. Empty if no known fault does, or if all
          are on the curve and the log does not continue past its end. A fault is a named tuple of
          `name`, `text`, and `least` and `most`, the limits of its number.
        - `counts_from`: 1 if the log is explained only if it counts updates from 1; else 0. Updates
          in the texts of the faults count from 0.
        - `num_lrs`: The number of logged learning rates.
        - `digits`: The number of significant digits that the log prints; None if it does not show
          them.
        - `not_logged`: A text that names the steps of the curve before the first row and after the
          last; "" if there are none.

    Raises:
        TypeError: `source` is neither a path nor rows, or `curve` is not a curve.
        ValueError: No column or several have a usual name, a cell is not a number, the log has
            several runs or is not sorted by step, or its learning rates have too few digits.
            `peak_value` is not positive. A curve is from `BatchPlan.scale`: its steps are samples
            or tokens.
        OSError: The file cannot be read.

    >>> from plateau_jax import PlateauCurve, compare_log
    >>> curve = PlateauCurve(1000, warmup_steps=100)
    >>> rows = []
    >>> for update in range(0, 250, 10):
    ...     lr = curve.learning_rate(4 * update, 3e-4)  # as on four processes under accelerate
    ...     rows.append({"step": update, "lr": f"{lr:.2e}"})
    >>> comparison = compare_log(rows, curve, 3e-4)
    >>> comparison.first_difference, comparison.fault.name, comparison.fault.most
    (10, 'too fast', 4)
    """
    checked = check_curve("curve", curve)
    if checked.unit is not None:
        problem = f"a step is {checked.unit} samples or tokens, but a log counts updates"
        raise ValueError(Message("curve", f" is from BatchPlan.scale: {problem}"))
    if not checks.peak("peak_value", peak_value) > 0:
        raise ValueError(checks.must("peak_value", peak_value, "be positive"))
    # Not rounded to float32: the report shows the peak as the user wrote it.
    peak = float(checks.number("peak_value", peak_value))
    cells = read_lrs(source, step, lr)
    logged = PrintedLrs.from_cells(cells)
    comparison = _compare(logged, checked, peak, counts_from=0)
    if not comparison._is_explained and logged.steps[0] > 0:
        from_one = _compare(logged, checked, peak, counts_from=1)
        if from_one._is_explained:
            return from_one
    return comparison


def _compare(logged: PrintedLrs, curve: Curve, peak: float, *, counts_from: int) -> LogComparison:
    steps = logged.steps - counts_from
    expected = curve.learning_rate(steps, peak).astype(np.float64)
    differing = np.flatnonzero(~logged.contain(expected))
    # Within 0.5 %: a number such as 0.001 may stand for 0.00100, with three digits.
    is_near = np.abs(logged.values - expected) <= 0.005 * logged.values
    if not differing.size and logged.digits is None and not is_near.all():
        raise ValueError(
            "the learning rates of the log have too few digits: as they are printed, all may be on "
            "the curve, but with further zeros they are not. Log them as in f'{lr:.3e}'"
        )
    faults = find_faults(replace(logged, steps=steps), expected, curve, peak)
    step, lr, expected_lr = None, None, None
    if differing.size:
        first = differing[0]
        step = int(logged.steps[first])
        lr = float(logged.values[first])
        expected_lr = float(expected[first])
    return LogComparison(
        num_lrs=len(logged),
        digits=logged.digits,
        counts_from=counts_from,
        first_difference=step,
        logged=lr,
        expected=expected_lr,
        faults=tuple(faults),
        not_logged=_not_logged(logged, curve),
    )


def _not_logged(logged: PrintedLrs, curve: Curve) -> str:
    places: list[str] = []
    if logged.steps[0] > 1:
        places.append(f"before step {logged.steps[0]}")
    if logged.steps[-1] < curve.total_steps - 1:
        places.append(f"after step {logged.steps[-1]}")
    if not places:
        return ""
    return f"not in the log: the learning rates {' and '.join(places)}"
