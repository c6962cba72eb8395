"""`compare_log`: the learning rates of a log against a curve."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Message
from plateau_jax.curves.curve import AnyCurve, Curve, as_curve
from plateau_jax.logged_lrs.faults import (
    Fault,
    Group,
    factor_limits,
    find_faults,
)
from plateau_jax.logged_lrs.logs import Cell, open_lrs
from plateau_jax.logged_lrs.printed import PrintedLrs
from plateau_jax.logged_lrs.step_ranges import lrs_at


@dataclass(frozen=True)
class LogComparison:
    """How the learning rates of a log compare with a curve: see `compare_log`.

    Attributes:
        num_lrs: The number of logged learning rates.
        digits: The number of significant digits that the log prints.
        counts_from: 1 if the log is explained only if it counts updates from 1, or if it is then on
            the curve for longer; else 0. Updates in the texts of the faults count from 0. If the
            log is explained in both ways, this is 0, and `faults` also has those from 1.
        first_difference: The first step in the log at which the learning rate is not on the curve;
            None if all are.
        logged, expected: The learning rate there in the log, and that of the curve; None if all are
            on the curve.
        faults: Each fault that explains every learning rate of the log, with at most eight ranges
            of its number; empty if all are on the curve up to its end, or if no known fault
            explains them. A fault is a named tuple of `name`, `text`, and `least` and `most`, the
            limits of its number.
    """

    num_lrs: int
    digits: int
    counts_from: int
    first_difference: int | None
    logged: float | None
    expected: float | None
    faults: tuple[Fault, ...]

    @property
    def fault(self) -> Fault | None:
        """The fault, if exactly one explains the log."""
        if len(self.faults) == 1:
            return self.faults[0]
        return None

    def __str__(self) -> str:
        lrs = f"{self.num_lrs} learning rates with up to {self.digits} digits"
        texts = [fault.text for fault in self.faults]
        if self.logged is None or self.expected is None:
            lines = [f"{lrs}: all are on the curve", *texts]
            return "\n".join(lines)
        difference = f"the first that is not on the curve is at step {self.first_difference}"
        if self.counts_from == 1:
            difference = f"if the log counts updates from 1, {difference}"
        _, expected = _as_different_texts(self.logged, self.expected)
        lines = [f"{lrs}: {difference}, {self.logged!r} instead of {expected}"]
        if not texts:
            lines.append(
                "no fault is named: none that this function knows explains all of them, or fewer "
                "than three are not on the curve"
            )
        elif self.faults[0].name == "past the end":
            lines += texts
        elif len(texts) == 1:
            lines.append(f"this fault explains all of them: {texts[0]}")
        else:
            lines.append(f"{len(texts)} faults explain all of them, and later rows may decide:")
            lines += [f"- {text}" for text in texts]
        return "\n".join(lines)


def compare_log(
    source: str | PathLike[str] | Iterable[Mapping[str, Any]],
    curve: AnyCurve,
    peak_value: float,
    *,
    groups: Sequence[tuple[AnyCurve, float]] = (),
    step: str | None = None,
    lr: str | None = None,
) -> LogComparison:
    """Compare the learning rates of a log with a curve, and find the fault that explains them.

    A learning rate r of the log is on the curve if

        |r - lr(step)| <= u/2 + 3·2^-24·r + 4·2^-24·r_max

    with lr(step) = float32(float32(peak_value) · curve(step)), and u the place of the last digit of
    r: the column has a number of significant digits, that of the cell with the most, and a last
    decimal, that of the cell with the most decimals; the larger place counts. The other terms allow
    for float32, in the multiplier and in the schedules of other libraries; r_max is the largest
    learning rate of the log. Provisional: a minor release may change this function.

    If some rows are not on the curve, these faults are tried, each at every row, with the learning
    rate lr(m) at update n:

        late, early          m = n - k, n + k
        too fast, too slow   m = k·n, n // k
        restarted            m = n, from update k on n - k
        stopped              m = n, from update k on k
        peak                 m = n, with a different peak
        group                the curve and the peak of a different parameter group
        warmup               a warmup k times as long, or as short
        past the end         m = n up to the end of the curve

    A fault is named only if it explains every row, and at least three rows are not on the curve.
    The exception is "past the end": it is named if the log continues after the end of the curve and
    all rows before it are on the curve, unless a different fault explains the log. If no fault
    does, the result says so.

    Args:
        source: The path of a log, or its rows, as in `LossRun.read`. Its steps are numbers of
            updates: the row of step n should have the learning rate at step n of the curve. If the
            log counts from 1, the result says that the learning rates are one update late.
        curve: The curve that the run should have followed, or a mapping that describes it.
        peak_value: Its peak learning rate.
        groups: The curves and the peaks of the other parameter groups, if there are any.
        step: The column of steps, as in `LossRun.read`.
        lr: The column of learning rates, as in `LossRun.read`. If a cell is a list, its first item
            is used.

    Returns:
        A `LogComparison` with the attributes `first_difference`, `logged` and `expected`, `fault`
        (None if there is none, or if several explain the log), `faults`, `counts_from`, `num_lrs`
        and `digits`. As text it is a report.

    Raises:
        TypeError: `source` is neither a path nor rows; `curve` is not a curve; `groups` is not a
            sequence of pairs.
        ValueError: The log has no learning rates, or no column or several have a usual name: the
            message says which argument to pass. A cell is not a number, or a file is damaged.
            Later rows replace half of the learning rates or more, as if the log had several runs or
            were not sorted by step.
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
    curve = _checked_curve("curve", curve)
    peak = _checked_peak("peak_value", peak_value)
    checked: list[Group] = []
    for path, group_curve, group_peak in checks.pairs("groups", groups, "(curve, peak_value)"):
        group_curve = _checked_curve((*path, "curve"), group_curve)
        checked.append(Group(group_curve, _checked_peak((*path, "peak_value"), group_peak)))
    name, cells = open_lrs(source, step, lr, "compare_log")
    logged = PrintedLrs.from_cells(cells)
    if logged.are_too_coarse:
        raise ValueError(
            f"the learning rates of {name} are all {cells[0].text}, which may stand for "
            "different numbers: log them with more digits, as in f'{lr:.3e}'"
        )
    return compare_lrs(logged, curve, peak, checked)


def _checked_curve(path: checks.Path | str, curve: Any) -> Curve:
    curve = as_curve(path, curve)
    if curve.unit is not None:
        units = f"a step is {curve.unit} samples or tokens, but a log counts updates"
        raise ValueError(Message(path, f" is from BatchPlan.scale: {units}"))
    return curve


def _checked_peak(path: checks.Path | str, value: Any) -> float:
    if not checks.peak(path, value) > 0:
        raise ValueError(checks.must(path, value, "be positive"))
    return float(checks.number(path, value))  # without float32's digits in the report


def compare_lrs(
    logged: PrintedLrs, curve: Curve, peak: float, groups: Sequence[Group] = ()
) -> LogComparison:
    """Compare printed learning rates with a curve; the log may count updates from 0 or from 1."""
    from_zero = _compare(logged, curve, peak, groups, counts_from=0)
    if from_zero.first_difference is None or logged.steps[0] == 0:
        return from_zero
    from_one = _compare(logged, curve, peak, groups, counts_from=1)
    if from_one.first_difference is None:
        return from_zero  # one update late, or fewer rows differ than a fault needs
    if from_zero.faults:
        further = _only_if_counted_from_one(from_zero.faults, from_one.faults)
        return replace(from_zero, faults=from_zero.faults + further)
    if from_one.faults or from_one.first_difference > from_zero.first_difference:
        return from_one
    return from_zero


def _only_if_counted_from_one(
    from_zero: Sequence[Fault], from_one: Sequence[Fault]
) -> tuple[Fault, ...]:
    """Return the faults that explain a log only if it counts from 1, with a text that says so."""
    further: list[Fault] = []
    for fault in from_one:
        # From 0, these three explain the log too, by one update more or less.
        is_the_same_from_zero = fault.name in ("late", "early", "past the end")
        if is_the_same_from_zero:
            continue
        if not any(_is_within(fault, fault_from_zero) for fault_from_zero in from_zero):
            text = f"if the log counts updates from 1: {fault.text}"
            further.append(fault._replace(text=text))
    return tuple(further)


def _is_within(fault: Fault, wider: Fault) -> bool:
    return fault.name == wider.name and wider.least <= fault.least <= fault.most <= wider.most


def _compare(
    logged: PrintedLrs, curve: Curve, peak: float, groups: Sequence[Group], counts_from: int
) -> LogComparison:
    updates = replace(logged, steps=logged.steps - counts_from)
    expected = lrs_at(updates.steps, curve, peak)
    faults = tuple(find_faults(updates, expected, curve, peak, groups))
    is_off = ~logged.contain(expected)
    if not is_off.any():
        return LogComparison(len(logged), logged.digits, counts_from, None, None, None, faults)
    row = int(np.argmax(is_off))
    return LogComparison(
        len(logged),
        logged.digits,
        counts_from,
        int(logged.steps[row]),
        float(logged.values[row]),
        float(expected[row]),
        faults,
    )


def difference_from(
    cells: Sequence[Cell], curve: Curve, peak: float, *, has_peak_from_log: bool
) -> str:
    """Return how logged learning rates differ from a curve; "" if they do not.

    The log may count updates from 0 or from 1.

    Args:
        cells: The learning rates, at least one.
        curve: The curve.
        peak: Its peak.
        has_peak_from_log: The peak was read from the log, so a different one is no difference.
    """
    logged = PrintedLrs.from_cells(cells)
    if logged.are_too_coarse:
        return ""
    from_one = replace(logged, steps=logged.steps - 1)
    for counted in (logged, from_one):
        values = lrs_at(counted.steps, curve, peak)
        if counted.contain(values).all():
            return ""
        if has_peak_from_log and factor_limits(counted, values) is not None:
            return ""
    comparison = compare_lrs(logged, curve, peak)
    if comparison.logged is None or comparison.expected is None:
        return ""
    lr, expected = _as_different_texts(comparison.logged, comparison.expected)
    text = (
        f"the learning rate at step {comparison.first_difference} is {lr}, not {expected} as on "
        "the curve"
    )
    if comparison.counts_from == 1:
        text += " (if the log counts updates from 1)"
    if comparison.fault is not None:
        text += f": {comparison.fault.text}"
    return text


def _as_different_texts(logged: float, expected: float) -> tuple[str, str]:
    """Return two learning rates with six digits, or with nine if these are the same."""
    lr, expected_lr = f"{logged:.6g}", f"{expected:.6g}"
    if lr == expected_lr:
        return f"{logged:.9g}", f"{expected:.9g}"
    return lr, expected_lr
