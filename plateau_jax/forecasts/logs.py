"""Read the steps, losses and learning rates of a log: see `LossRun.read`."""

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.validation import checks
from plateau_jax.validation.curve_warning import suppress_warnings, warn

_NAMES = {
    "step": (
        "step",
        "global_step",
        "train/global_step",
        "trainer/global_step",
        "iter",
        "_step",
        "applied",
    ),
    "loss": ("loss", "train_loss", "train/loss"),
    "lr": ("lr", "learning_rate", "train/lr", "train/learning_rate"),
}
"""The usual column names for each argument. A `MetricLog` has `applied`."""

_GIVE_CURVE = "give the run's curve and its peak"

_LONGEST_LIST = 1000
"""Number of characters of a list of columns in a message."""

_Row = Mapping[str, Any]


class UnclearLogError(ValueError):
    """The log leaves an argument of `LossRun.read` unclear.

    Attributes:
        problem: What is missing or unclear.
        argument: The argument to pass.
        columns: The columns that it may name; empty for `curve`.
    """

    def __init__(self, problem: str, argument: str, columns: Sequence[str] = ()) -> None:
        super().__init__(problem, argument, columns)
        self.problem = problem
        self.argument = argument
        self.columns = tuple(columns)

    def __str__(self) -> str:
        if self.argument == "curve":
            return f"{self.problem}: {_GIVE_CURVE}"
        advice = f"name one with LossRun.read(..., {self.argument}=...)"
        if self.argument == "lr":
            advice = f"{_GIVE_CURVE}; or {advice}"
        return f"{self.problem}: {advice}"


@dataclass(frozen=True)
class LogTable:
    """The rows of a log.

    Attributes:
        name: Its name in messages.
        rows: Mappings from columns to cells.
        step: The column of steps.
    """

    name: str
    rows: Sequence[_Row]
    step: str

    @classmethod
    def read(cls, source: Any, step: str | None) -> Self:
        """Read rows or a file, with the column of steps that the user chose or the usual one."""
        name, rows = read_rows(source)
        return cls(name, rows, _find_column(rows, name, "step", step))

    def find_column(self, argument: str, chosen: str | None) -> str:
        return _find_column(self.rows, self.name, argument, chosen)

    def cells(self, column: str) -> list[tuple[int, float]]:
        """Return the steps of the rows and the numbers in a column, without missing cells."""
        cells: list[tuple[int, float]] = []
        for number, row in enumerate(self.rows, 1):
            step = row.get(self.step)
            cell = row.get(column)
            if _is_missing(step) or _is_missing(cell):
                continue
            place = f"{self.name}, row {number}"
            value = _number(cell, f"{place}: {_shown(column)}")
            cells.append((_checked_step(step, f"{place}: {_shown(self.step)}"), value))
        return cells


def read_losses(table: LogTable, loss: str | None) -> dict[int, float]:
    """Return the losses by number of updates; warn of those that are left out."""
    column = table.find_column("loss", loss)
    logged = _without_zeros(table, _finite_losses(table, column))
    losses = _without_replaced(logged)
    # A repeated value replaces nothing: some trainers evaluate twice after the last update.
    replaced = [step for step, value in logged if losses.get(step) != value]
    if 2 * len(replaced) >= len(logged) > 0:
        problem = f"{table.name} has {len(logged)} losses at {len(dict(logged))} steps"
        raise ValueError(f"{problem}: keep those of one split, rank or run, sorted by step")
    if replaced:
        first = f"{len(replaced)} earlier losses are left out, from step {min(replaced)} on"
        warn(f"{table.name}: steps repeat, as in a resumed run: {first}")
    initial = losses.pop(0, None)
    if not losses:
        raise ValueError(
            f"{table.name} has no finite loss after the first update, in "
            f"{checks.short_repr(column)} by {checks.short_repr(table.step)}"
        )
    if initial is not None:
        warn(f"{table.name}: the loss at step 0, before the first update, is left out")
    return losses


def _finite_losses(table: LogTable, column: str) -> list[tuple[int, float]]:
    """Return the losses that are finite as a float32, with their steps; warn of the others."""
    finite: list[tuple[int, float]] = []
    left_out: list[int] = []
    for step, value in table.cells(column):
        if math.isfinite(checks.metric(column, value)):
            finite.append((step, value))
        else:
            left_out.append(step)
    _warn_left_out(table, "losses that are not finite", left_out)
    return finite


def _without_zeros(
    table: LogTable, losses: Sequence[tuple[int, float]]
) -> Sequence[tuple[int, float]]:
    """Leave out losses of 0 with a warning, unless every loss is 0.

    Some loggers write 0 at steps without an evaluation.
    """
    nonzero = [(step, value) for step, value in losses if value != 0]
    if not nonzero:
        return losses
    zeros = [step for step, value in losses if value == 0]
    _warn_left_out(table, "losses of 0, which count as missing,", zeros)
    return nonzero


def _warn_left_out(table: LogTable, losses: str, steps: Sequence[int]) -> None:
    if steps:
        count = f"{len(steps)}, the first at step {steps[0]}"
        warn(f"{table.name}: {losses} are left out ({count})")


def read_lrs(table: LogTable, lr: str | None) -> dict[int, float]:
    """Return the learning rate at each logged step."""
    column = table.find_column("lr", lr)
    rows = [_first_group(row, column) for row in table.rows]
    cells = replace(table, rows=rows).cells(column)
    lrs = _without_replaced((step, value) for step, value in cells if not math.isnan(value))
    for step, value in lrs.items():
        if not 0 <= value < math.inf:
            raise ValueError(
                f"{table.name}: {_shown(column)} = {value} at step {step} must be finite and not "
                "negative"
            )
    return lrs


def _first_group(row: _Row, column: str) -> _Row:
    """Return a row with the learning rate of the first parameter group, if it lists several."""
    cell = row.get(column)
    if isinstance(cell, list) and cell:
        return {**row, column: cell[0]}
    return row


def read_rows(source: Any) -> tuple[str, Sequence[_Row]]:
    """Return the name and the rows of a file, of a data frame, or of a list."""
    name = "the log"
    if isinstance(source, str | os.PathLike):
        path = Path(cast("str", source))
        return str(path), parse_rows(path.read_text(encoding="utf-8-sig"), str(path))
    if hasattr(source, "to_dict"):
        with suppress(TypeError):  # raised by other libraries' data frames
            return name, [_without_missing(row) for row in source.to_dict("records")]
    if checks.is_ordered(source):
        rows: list[Any] = list(source)
        if all(isinstance(row, Mapping) for row in rows):
            return name, rows
    requirement = "be a path, a pandas data frame, or a list of dictionaries"
    raise TypeError(checks.must("source", source, requirement))


def parse_rows(text: str, name: str) -> Sequence[_Row]:
    """Parse the text of a file: JSON lines, if it begins with a brace or bracket, or else CSV."""
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = [line for line in io.StringIO(text, newline=None) if line.strip()]
    if text.lstrip().startswith(("{", "[")):
        return _parse_json_lines(lines, name)
    try:
        return _parse_csv(lines, name)
    except csv.Error as error:
        raise ValueError(f"{name} is not a CSV file: {error}") from None


def _parse_json_lines(lines: Sequence[str], name: str) -> Sequence[_Row]:
    rows: list[_Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row: Any = json.loads(line)
            problem = f"{checks.short_repr(row)} is not a JSON object"
        except (ValueError, RecursionError) as error:
            if 1 < number == len(lines):
                # The trainer was stopped while it wrote, or is writing now.
                warn(f"{name}: the last line is incomplete and left out")
                break
            row = None
            problem = f"this line is not JSON ({error})"
        if not isinstance(row, Mapping):
            advice = "for other JSON, pass the rows, json.loads(...)"
            raise ValueError(f"{name}, row {number}: {problem}; {advice}")
        rows.append(cast("_Row", row))
    return rows


def _parse_csv(lines: Sequence[str], name: str) -> Sequence[_Row]:
    reader = csv.DictReader(lines, skipinitialspace=True, strict=True)
    columns = reader.fieldnames or []
    for column, count in Counter(columns).items():
        # Two runs in an exported chart of Weights & Biases may have the same name.
        if column and count > 1:
            raise ValueError(f"{name} has several columns named {checks.short_repr(column)}")
    rows = list(reader)
    for number, row in enumerate(rows, 1):
        # Decimal commas would split a number into two cells.
        if any(row.get(None, "")):
            raise ValueError(
                f"{name}, row {number}: more cells than columns; is this CSV with commas?"
            )
    return rows


def _find_column(rows: Sequence[_Row], name: str, argument: str, chosen: str | None) -> str:
    """Return the column that the user chose, or else the only one with a usual name."""
    if not rows:
        raise ValueError(f"{name} has no rows")
    columns: dict[str, None] = {}
    for row in rows:
        columns.update(dict.fromkeys(row))
    if chosen is None:
        matching = [column for column in _NAMES[argument] if column in columns]
    else:
        matching = [column for column in columns if column == chosen]
    if len(matching) == 1:
        return matching[0]

    candidates = matching or list(columns)
    if matching:
        problem = f"{name} has several columns for {argument}, {_listed(candidates)}"
    elif chosen is not None:
        shown = checks.short_repr(chosen)
        problem = f"{name} has no column {argument} = {shown}, only {_listed(candidates)}"
    else:
        problem = f"{name} has no usual column for {argument} among {_listed(candidates)}"
    raise UnclearLogError(problem, argument, candidates)


def _listed(columns: Iterable[Any]) -> str:
    return checks.short_text(", ".join(map(checks.short_repr, columns)), _LONGEST_LIST)


def _shown(column: Any) -> str:
    return checks.short_text(str(column))


def _checked_step(cell: Any, place: str) -> int:
    step = _number(cell, place)
    if not (step.is_integer() and 0 <= step <= checks.MAX_STEP):
        raise ValueError(
            f"{place} = {checks.short_repr(cell)} must be an integer in 0 … 2**31 - 1, a number of "
            "updates, not of samples or epochs"
        )
    return int(step)


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _without_missing(row: _Row) -> _Row:
    """Return a row of a data frame without missing cells: NaN, also as text, or pandas' NA."""
    return {column: cell for column, cell in row.items() if str(cell) not in ("nan", "<NA>")}


def _number(cell: Any, place: str) -> float:
    if isinstance(cell, str) or not checks.is_not_real(cell):
        try:
            return float(cell)
        except (TypeError, ValueError, OverflowError):
            pass
    raise ValueError(f"{place} = {checks.short_repr(cell)} must be a number")


def _without_replaced(cells: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return the value of each step, without those that a resumed run logged again.

    A run that resumes before step 300 logs some steps again: 100 200 300 400 | 300 400 500. The
    earlier values at step 300 and later are dropped.
    """
    kept: dict[int, float] = {}
    for step, value in cells:
        while kept and next(reversed(kept)) >= step:
            kept.popitem()
        kept[step] = value
    return kept


def curve_of(table: LogTable, lrs: Mapping[int, float], last_loss: int) -> tuple[Curve, float]:
    """Return a curve of straight lines between the logged learning rates, and its peak.

    It is 0 before the first learning rate, because those of the earlier updates are unknown. It
    holds the last one until the last loss, for at most one interval of logging.
    """
    peak = max(lrs.values(), default=0.0)
    if not peak > 0:
        raise UnclearLogError(f"{table.name} has no learning rate above 0", "curve")
    first = min(lrs)
    last = max(lrs)
    end = max(last_loss, last)
    if end - last > _logging_interval(lrs):
        problem = f"{table.name} has learning rates only from step {first} to {last} of {end}"
        raise UnclearLogError(problem, "curve")

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


def peak_of(table: LogTable, lrs: Mapping[int, float], curve: Curve) -> float:
    """Return the peak with which a curve reaches the largest of the logged learning rates."""
    step = max(lrs, key=lambda step: lrs[step], default=0)
    multiplier = float(curve(step))
    if not (lrs and multiplier > 0):
        raise UnclearLogError(
            f"{table.name} has no learning rate where the curve is above 0", "curve"
        )
    return lrs[step] / multiplier
