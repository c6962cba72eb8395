"""Read the steps, losses and learning rates of a log: see `LossRun.read`."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

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
"""The usual columns of each argument. `applied` is that of a `MetricLog`."""

_GIVE_CURVE = "give the run's curve and its peak"

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
        if not self.columns:
            return f"{self.problem}: {_GIVE_CURVE}"
        return f"{self.problem}: name one with LossRun.read(..., {self.argument}=...)"


def read_losses(rows: Sequence[_Row], name: str, step: str, loss: str | None) -> dict[int, float]:
    """Return the loss after each number of updates, and warn of those that are left out."""
    column = find_column(rows, name, "loss", loss)
    cells = _cells(rows, name, step, column)
    finite = [(at, value) for at, value in cells if math.isfinite(value)]
    wrong = [at for at, value in cells if not math.isfinite(value)]
    losses = _without_replaced(finite)
    if wrong:
        warn(
            f"{name}: losses that are not finite are left out ({len(wrong)}, the first at step "
            f"{wrong[0]})"
        )
    # Nothing is lost if the value is the same: some trainers evaluate the last update twice.
    replaced = [at for at, value in finite if losses.get(at) != value]
    if 2 * len(replaced) >= len(finite) > 0:
        problem = f"{name} has {len(finite)} losses at {len(dict(finite))} steps"
        raise ValueError(f"{problem}: keep those of one split, rank or run, sorted by step")
    if replaced:
        first = f"{len(replaced)} earlier losses are left out, from step {min(replaced)} on"
        warn(f"{name}: steps repeat, as in a resumed run: {first}")
    losses.pop(0, None)  # before the first update
    if not losses:
        raise ValueError(
            f"{name} has no finite loss after the first update, in {column!r} by {step!r}"
        )
    return losses


def read_lrs(rows: Sequence[_Row], name: str, step: str, lr: str | None) -> dict[int, float]:
    """Return the learning rate at each logged step."""
    column = find_column(rows, name, "lr", lr)
    cells = _cells([_first_group(row, column) for row in rows], name, step, column)
    lrs = _without_replaced((at, value) for at, value in cells if not math.isnan(value))
    for at, value in lrs.items():
        if not 0 <= value < math.inf:
            raise ValueError(
                f"{name}: {column} = {value} at step {at} must be finite and not negative"
            )
    return lrs


def _first_group(row: _Row, column: str) -> _Row:
    """Return a row with the learning rate of the first parameter group, if it has a list of them."""
    cell = row.get(column)
    if isinstance(cell, list) and cell:
        return {**row, column: cell[0]}
    return row


def read_rows(source: Any) -> tuple[str, Sequence[_Row]]:
    """Return the name and the rows of a file, of a data frame, or of a list."""
    name = "the log"
    if isinstance(source, str | os.PathLike):
        path = Path(cast("str", source))
        try:
            return str(path), parse_rows(path.read_text(encoding="utf-8-sig"), str(path))
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not a text file in UTF-8") from None
    if hasattr(source, "to_dict"):
        with suppress(TypeError):  # of other frames than those of pandas
            return name, [_without_missing(row) for row in source.to_dict("records")]
    if checks.is_ordered(source):
        rows: list[Any] = list(source)
        if all(isinstance(row, Mapping) for row in rows):
            return name, rows
    requirement = "be a path, a pandas data frame, or a list of dictionaries"
    raise TypeError(checks.must("source", source, requirement))


def parse_rows(text: str, name: str) -> Sequence[_Row]:
    """Parse the text of a file: JSON lines, if it begins with a brace, or CSV with commas."""
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = [line for line in io.StringIO(text, newline=None) if line.strip()]
    if text.lstrip().startswith("["):
        raise ValueError(
            f"{name} is not CSV or JSON lines: pass the rows of a JSON list, json.loads(...)"
        )
    if text.lstrip().startswith("{"):
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
        except (ValueError, RecursionError) as error:
            if 1 < number == len(lines):
                # The trainer was stopped while it wrote, or is writing now.
                warn(f"{name}: the last line is incomplete and left out")
                break
            problem = f"{name}, row {number}: this line is not JSON ({error})"
            raise ValueError(f"{problem}; of other JSON, pass the rows, json.loads(...)") from None
        if not isinstance(row, Mapping):
            raise ValueError(f"{name}, row {number}: {checks.short_repr(row)} is not a JSON object")
        rows.append(cast("_Row", row))
    return rows


def _parse_csv(lines: Sequence[str], name: str) -> Sequence[_Row]:
    reader = csv.DictReader(lines, skipinitialspace=True, strict=True)
    columns = reader.fieldnames or []
    for column in columns:
        # Two runs in a chart of Weights & Biases may share a name.
        if column and columns.count(column) > 1:
            raise ValueError(f"{name} has several columns named {column!r}")
    rows = list(reader)
    for number, row in enumerate(rows, 1):
        # With decimal commas, the cells would not be those of their columns.
        if any(row.get(None, "")):
            raise ValueError(
                f"{name}, row {number}: more cells than columns; is this CSV with commas?"
            )
    return rows


def find_column(rows: Sequence[_Row], name: str, argument: str, chosen: str | None) -> str:
    """Return the column that the user chose, or else the only one with a usual name."""
    if not rows:
        raise ValueError(f"{name} has no rows")
    columns: dict[str, None] = {}
    for row in rows:
        columns.update(dict.fromkeys(row))
    if chosen is not None:
        if chosen in columns:
            return chosen
        problem = f"{name} has no column {argument} = {chosen!r}, only {_listed(columns)}"
        raise UnclearLogError(problem, argument, list(columns))
    usual = [column for column in _NAMES[argument] if column in columns]
    if len(usual) == 1:
        return usual[0]
    if usual:
        problem = f"{name} has several columns for {argument}, {_listed(usual)}"
        raise UnclearLogError(problem, argument, usual)
    problem = f"{name} has no usual column for {argument} among {_listed(columns)}"
    if argument == "lr":
        problem = f"{problem}: {_GIVE_CURVE}; or"
    raise UnclearLogError(problem, argument, list(columns))


def _listed(columns: Iterable[Any]) -> str:
    names = list(map(repr, columns))
    if len(names) > 20:
        names[20:] = ["..."]
    return ", ".join(names)


def _cells(rows: Sequence[_Row], name: str, step: str, column: str) -> list[tuple[int, float]]:
    """Return the steps of the rows and the numbers in a column, without missing cells."""
    cells: list[tuple[int, float]] = []
    for number, row in enumerate(rows, 1):
        at, cell = row.get(step), row.get(column)
        if _is_missing(at) or _is_missing(cell):
            continue
        value = _number(cell, f"{name}, row {number}: {column}")
        step_number = _number(at, f"{name}, row {number}: {step}")
        if not (step_number.is_integer() and 0 <= step_number <= checks.MAX_STEP):
            requirement = (
                "must be an integer in 0 … 2**31 - 1, a number of updates, not of samples or epochs"
            )
            raise ValueError(f"{name}, row {number}: {step} = {at!r} {requirement}")
        cells.append((int(step_number), value))
    return cells


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _without_missing(row: _Row) -> _Row:
    """Return a row of a data frame without its missing cells: NaN, also as text, or the NA of pandas."""
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

    A run that resumes at step 300 logs lower steps again: 100 200 300 400 | 300 400 500. What was
    logged before at step 300 or later is dropped.
    """
    kept: dict[int, float] = {}
    for step, value in cells:
        while kept and next(reversed(kept)) >= step:
            kept.popitem()
        kept[step] = value
    return kept


def curve_of(lrs: Mapping[int, float], last_loss: int, name: str) -> tuple[Curve, float]:
    """Return a curve of straight lines between learning rates, and its peak.

    Before the first one it is 0: what those updates did is unknown. The last one holds until the
    last loss, for at most one interval of logging.
    """
    peak = max(lrs.values(), default=0.0)
    if not peak > 0:
        raise UnclearLogError(f"{name} has no learning rate above 0", "curve")
    first, last = min(lrs), max(lrs)
    end = max(last_loss, last)
    interval = 0.0
    if len(lrs) > 1:
        intervals = np.diff(list(lrs))
        interval = max(intervals[-1], np.median(intervals))
    if end - last > interval:
        problem = f"{name} has learning rates only from step {first} to {last} of {end}"
        raise UnclearLogError(problem, "curve")
    levels = {step: lr / peak for step, lr in lrs.items()}
    stages: list[Any] = []
    start = levels[first]
    if first > 0:
        stages = [(first,), (0, start)]
        start = 0.0
    levels[end] = levels[last]
    for (step, _), (after, level) in pairwise(levels.items()):
        stages.append((after - step, level, "linear"))
    with suppress_warnings():
        return StagedCurve(stages, start=start), peak


def peak_of(lrs: Mapping[int, float], curve: Curve, name: str) -> float:
    """Return the peak with which a curve gives the largest of the logged learning rates."""
    step = max(lrs, key=lambda step: lrs[step], default=0)
    multiplier = float(curve(step))
    if not (lrs and multiplier > 0):
        raise UnclearLogError(f"{name} has no learning rate where the curve is above 0", "curve")
    return lrs[step] / multiplier
