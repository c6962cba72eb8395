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
from plateau_jax.tools.logged_lrs.printed import Floats, PrintedLrs


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

    def __str__(self) -> str:
        digits = "whose digits are not known"
        if self.digits is not None:
            digits = f"with up to {checks.plural(self.digits, 'digit')}"
        lines = [f"the log has {checks.plural(self.num_lrs, 'learning rate')} {digits}"]
        if self.first_difference is None:
            on_curve = "all are on the curve"
            if self.counts_from == 1:
                on_curve += ", if the log counts updates from 1"
            lines += [on_curve, *[fault.text for fault in self.faults]]
        else:
            lines += [self._difference(), *_explanation(self.faults)]
        if self.not_logged:
            lines.append(self.not_logged)
        return "\n".join(lines)

    def _difference(self) -> str:
        logged, expected = f"{self.logged:.6g}", f"{self.expected:.6g}"
        if logged == expected:
            logged, expected = f"{self.logged:.9g}", f"{self.expected:.9g}"
        lr = f"the learning rate at step {self.first_difference}"
        difference = f"{lr} is {logged}, not {expected} as on the curve"
        if self.counts_from == 1:
            return f"if the log counts updates from 1, {difference}"
        return difference


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

    If three rows or more are not on the curve, faults are tried. Most are a formula f(n, k): the
    row of update n shows the learning rate at step f(n, k) of the curve. For example, a log that is
    "late" shows f(n, k) = n - k. A fault is named only if it explains every row, and a cause only
    if it can have the number k. If only rows after the end of the curve differ, the fault is "past
    the end".

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
        - `counts_from`: 1 if the log is explained only if it counts updates from 1, or if it is
          then on the curve for longer; else 0. Updates in the texts of the faults count from 0. If
          the log is explained in both ways, this is 0, and `faults` also has those from 1.
        - `num_lrs`: The number of logged learning rates.
        - `digits`: The number of significant digits that the log prints; None if it does not show
          them.
        - `not_logged`: A text that names the steps of the curve before the first row and after the
          last; "" if there are none.

    Raises:
        TypeError: `source` is neither a path nor rows, or `curve` is not a curve.
        ValueError: The log has no learning rates, or no column or several have a usual name: the
            message says which argument to pass. A cell is not a number, or a file is damaged.
            Later rows replace half of the learning rates or more, as if the log had several runs or
            were not sorted by step. Digits that the log does not show decide whether its learning
            rates are on the curve. `peak_value` is not positive. A curve is from `BatchPlan.scale`:
            its steps are samples or tokens.
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
    starts = [0]
    if logged.steps[0] > 0:
        starts.append(1)
    expected = [
        checked.learning_rate(logged.steps - start, peak).astype(np.float64) for start in starts
    ]
    exact = PrintedLrs.from_cells(cells, are_exact=True)
    if _contain_any(logged, expected) and not _contain_any(exact, expected):
        raise ValueError(
            "the learning rates of the log have too few digits: as they are printed, all may be on "
            "the curve, but with further zeros they are not. Log them as in f'{lr:.3e}'"
        )
    comparisons = [
        _compare(logged, lrs, checked, peak, start)
        for start, lrs in zip(starts, expected, strict=True)
    ]
    return _better(comparisons[0], comparisons[-1])


def _contain_any(intervals: PrintedLrs, expected: Sequence[Floats]) -> bool:
    return any(intervals.contain(lrs).all() for lrs in expected)


def _compare(
    logged: PrintedLrs, expected: Floats, curve: Curve, peak: float, counts_from: int
) -> LogComparison:
    steps = logged.steps - counts_from
    faults = find_faults(replace(logged, steps=steps), expected, curve, peak)
    if counts_from == 1:
        prefix = "if the log counts updates from 1: "
        faults = [fault._replace(text=prefix + fault.text) for fault in faults]
    step, lr, expected_lr = None, None, None
    differing = np.flatnonzero(~logged.contain(expected))
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


def _better(from_zero: LogComparison, from_one: LogComparison) -> LogComparison:
    """Return the comparison that explains the log; faults that explain it in both ways, once."""
    if from_zero.first_difference is None or from_one.counts_from == 0:
        return from_zero
    if from_one.first_difference is None:
        # One update late.
        return from_zero if from_zero.faults else from_one
    further = [fault for fault in from_one.faults if _is_new(fault, from_zero.faults)]
    if from_zero.faults:
        return replace(from_zero, faults=(*from_zero.faults, *further))
    if further or from_one.first_difference > from_zero.first_difference:
        return from_one
    return from_zero


def _is_new(fault: Fault, faults: Sequence[Fault]) -> bool:
    """Return True for a fault that explains a log only if it counts from 1."""
    is_within = any(
        fault.name == wider.name and wider.least <= fault.least <= fault.most <= wider.most
        for wider in faults
    )
    # Counting from 0 only changes the number of these by one.
    return fault.name not in ("late", "early", "past the end") and not is_within


def _not_logged(logged: PrintedLrs, curve: Curve) -> str:
    places: list[str] = []
    if logged.steps[0] > 1:
        places.append(f"before step {logged.steps[0]}")
    if logged.steps[-1] < curve.total_steps - 1:
        places.append(f"after step {logged.steps[-1]}")
    if not places:
        return ""
    return f"not in the log: the learning rates {' and '.join(places)}"
