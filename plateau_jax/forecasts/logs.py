"""Read the steps, losses and learning rates of a log: see `LossRun.read`."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.validation import checks
from plateau_jax.validation.curve_warning import suppress_warnings, warn

_NAMES = {
    "step": ("step", "global_step", "iter", "_step", "applied"),
    "loss": ("loss", "train_loss", "train/loss"),
    "lr": ("lr", "learning_rate", "train/lr", "train/learning_rate"),
}
"""The usual columns of each argument. `applied` is that of a `MetricLog`."""

_GIVE_CURVE = "give the run's curve and its peak"

_Row = Mapping[str, Any]


class UnclearLogError(ValueError):
    """A log leaves open what an argument of `LossRun.read` says.

    Attributes:
        argument: The argument that helps.
        columns: The columns that it may name; empty for `curve`.
    """

    def __init__(self, message: str, argument: str, columns: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.argument = argument
        self.columns = tuple(columns)


def read_log(
    rows: Sequence[_Row], name: str, chosen: Mapping[str, str | None], reads_lrs: bool
) -> tuple[dict[int, float], dict[int, float]]:
    """Return the loss after each number of updates, and the learning rate at each step if it is asked for."""
    if not rows:
        raise ValueError(f"{name} has no rows")
    step = _find_column(rows, name, "step", chosen["step"])
    loss = _find_column(rows, name, "loss", chosen["loss"])
    losses = _used_losses(_cells(rows, name, step, loss), name)
    if not losses:
        raise ValueError(f"{name} has no row with both {step!r} and {loss!r}")
    if not reads_lrs:
        return losses, {}
    lr = _find_column(rows, name, "lr", chosen["lr"])
    lrs = [(at, value) for at, value in _cells(rows, name, step, lr) if math.isfinite(value)]
    return losses, _without_replaced(lrs)


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
        return name, [_without_missing(row) for row in source.to_dict("records")]
    rows: list[Any] = list(source) if checks.is_ordered(source) else [source]
    if not checks.is_ordered(source) or not all(isinstance(row, Mapping) for row in rows):
        problem = "must be a path, a data frame, or a list of dictionaries"
        raise TypeError(f"{checks.short_repr(source)} {problem}")
    return name, rows


def parse_rows(text: str, name: str) -> Sequence[_Row]:
    """Parse the text of a file: JSON lines, if it begins with a brace, or CSV with commas."""
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = [line for line in io.StringIO(text, newline=None) if line.strip()]
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
            raise ValueError(f"{name}, row {number}: this line is not JSON: {error}") from None
        if not isinstance(row, Mapping):
            raise ValueError(f"{name}, row {number}: {checks.short_repr(row)} is not a JSON object")
        rows.append(cast("_Row", row))
    return rows


def _parse_csv(lines: Sequence[str], name: str) -> Sequence[_Row]:
    reader = csv.DictReader(lines, skipinitialspace=True)
    columns = reader.fieldnames or []
    for column in columns:
        # Two runs in a chart of Weights & Biases may share a name.
        if columns.count(column) > 1:
            raise ValueError(f"{name} has several columns named {column!r}")
    rows = list(reader)
    for number, row in enumerate(rows, 1):
        # With decimal commas, the cells would not be those of their columns.
        if any(row.get(None, "")):
            raise ValueError(f"{name}, row {number}: there are more cells than columns")
    return rows


def _find_column(rows: Sequence[_Row], name: str, argument: str, chosen: str | None) -> str:
    """Return the column that the user chose, or else the only one with a usual name."""
    columns: dict[str, None] = {}
    for row in rows:
        columns.update(dict.fromkeys(row))
    if chosen is not None:
        if chosen in columns:
            return chosen
        message = f"{name} has no column {argument} = {chosen!r}, only {_listed(columns)}"
        raise UnclearLogError(message, argument, list(columns))
    usual = [column for column in _NAMES[argument] if column in columns]
    if len(usual) == 1:
        return usual[0]
    advice = f"name one with LossRun.read(..., {argument}=...)"
    if usual:
        message = f"{name} has several columns for {argument}, {_listed(usual)}: {advice}"
        raise UnclearLogError(message, argument, usual)
    if argument == "lr":
        advice = f"{_GIVE_CURVE}, or {advice}"
    message = f"{name} has no usual column for {argument} among {_listed(columns)}: {advice}"
    raise UnclearLogError(message, argument, list(columns))


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
        if isinstance(cell, list) and cell:
            cell = cast("Any", cell[0])  # the learning rate of the first parameter group
        if _is_missing(at) or _is_missing(cell):
            continue
        value = _number(cell, f"{name}, row {number}: {column}")
        step_number = _number(at, f"{name}, row {number}: {step}")
        if not (step_number.is_integer() and 0 <= step_number <= checks.MAX_STEP):
            requirement = "must be an integer, a number of updates (not of samples or epochs)"
            raise ValueError(f"{name}, row {number}: {step} = {at!r} {requirement}")
        cells.append((int(step_number), value))
    return cells


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _without_missing(row: _Row) -> _Row:
    """Return a row of a data frame without its missing cells: NaN, or the NA of pandas."""
    return {column: cell for column, cell in row.items() if str(cell) not in ("nan", "<NA>")}


def _number(cell: Any, place: str) -> float:
    if isinstance(cell, str) or not checks.is_not_real(cell):
        try:
            return float(cell)
        except (TypeError, ValueError, OverflowError):
            pass
    raise ValueError(f"{place} = {checks.short_repr(cell)} must be a number")


def _used_losses(cells: Sequence[tuple[int, float]], name: str) -> dict[int, float]:
    """Return the losses to use, and warn of those that are left out."""
    finite = [(step, loss) for step, loss in cells if math.isfinite(loss)]
    losses = _without_replaced(finite)
    wrong = [step for step, loss in cells if not math.isfinite(loss)]
    if wrong:
        warn(f"{name}: {len(wrong)} losses that are not finite are left out, the first at step {wrong[0]}")
    restarts = [step for (before, _), (step, _) in pairwise(finite) if step < before]
    if restarts:
        count = len(finite) - len(losses)
        warn(f"{name}: steps repeat from {restarts[0]} on, as in a resumed run: {count} losses are left out")
    losses.pop(0, None)  # before the first update
    return losses


def _without_replaced(cells: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return the value of each step, without those that a resumed run logged again.

    A run that resumes at step 300 logs lower steps again: 100 200 300 400 | 300 400 500. What was logged
    before at step 300 or later is dropped.
    """
    kept: dict[int, float] = {}
    for step, value in cells:
        while kept and next(reversed(kept)) >= step:
            kept.popitem()
        kept[step] = value
    return kept


def curve_of(lrs: Mapping[int, float], last_loss: int, name: str) -> tuple[Curve, float]:
    """Return a curve of straight lines between learning rates, and its peak.

    Before the first one it is 0: what those updates did is unknown. The last one holds until the last loss,
    for at most one interval of logging.
    """
    peak = max(lrs.values(), default=0.0)
    if not peak > 0:
        raise UnclearLogError(f"{name} has no learning rate above 0: {_GIVE_CURVE}", "curve")
    first, last = min(lrs), max(lrs)
    end = max(last_loss, last)
    intervals = np.diff([0, *lrs])
    if end - last > max(intervals[-1], np.median(intervals)):
        message = f"{name} has learning rates only from step {first} to {last} of {end}"
        raise UnclearLogError(f"{message}: {_GIVE_CURVE}", "curve")
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
