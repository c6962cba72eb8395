"""The columns of a log, their cells, and the rows that count if a run was resumed."""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from plateau_jax.arguments import checks
from plateau_jax.tools.logged_lrs.log_files import Log, Row, check_columns, decode_log, parse_log

_USUAL_COLUMNS = {
    "step": (
        "step|global_step|train/global_step|trainer/global_step|num_updates|_step|applied",
        "iter|iteration|update",
        r"(?i:(.*[ /])?(global[ _])?(step|iter|iteration|update)s?(\(train\))?)",
    ),
    "loss": ("loss|train_loss|train/loss",),
    "lr": (
        "lr|learning_rate|train/lr|train/learning_rate",
        r"(?i:(.*[ /._-])?(lr|learning[ _-]rate)([ /_-].*)?)(?<!__MIN)(?<!__MAX)",
    ),
}
"""Patterns of the usual names for each argument; the first pattern that a column matches counts.

A `MetricLog` has `applied`; where a log has both, `iter` often counts micro-batches. A chart of
Weights & Biases has `run - lr`, `run - lr__MIN` and `run - lr__MAX`.
"""

_MAX_LIST_LENGTH = 1000
"""Number of characters of a list of columns in a message."""


class UnclearLogError(ValueError):
    """The log leaves an argument of the function that reads it unclear.

    Attributes:
        problem: What is missing or unclear.
        argument: The argument to pass.
        columns: The columns that it may name, if it is the name of a column.
        advice: How to pass it.
    """

    def __init__(self, problem: str, argument: str, columns: Sequence[str], advice: str) -> None:
        super().__init__(problem, argument, columns, advice)
        self.problem = problem
        self.argument = argument
        self.columns = tuple(columns)
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.problem}: {self.advice}"


class Cell(NamedTuple):
    """A number in a row with a step.

    Attributes:
        step: The step of the row.
        value: The number.
        text: The number as the log has it; None for a float, whose digits the log does not show.
        place: The row and the column, for messages.
    """

    step: int
    value: float
    text: str | None
    place: str


@dataclass(frozen=True)
class LogTable:
    """A log with its column of steps.

    Attributes:
        log: The log.
        step: The column of steps.
    """

    log: Log
    step: str

    @classmethod
    def from_log(cls, log: Log, step: str | None) -> Self:
        """Find the column of steps: the one that the user chose, or the usual one."""
        return cls(log, _find_column(log, log.rows, "step", step))

    @property
    def name(self) -> str:
        return self.log.name

    def find_column(self, argument: str, chosen: str | None) -> str:
        """Find a column of the rows with a step: a console may also print a configuration."""
        rows = [row for row in self.log.rows if self.step in row]
        return _find_column(self.log, rows, argument, chosen)

    def cells(self, column: str, *, reads_lists: bool = False) -> list[Cell]:
        """Return the numbers in a column, without missing cells and rows without a step.

        Args:
            column: The column.
            reads_lists: Read the first item of a cell that is a list.
        """
        cells: list[Cell] = []
        for index, row in enumerate(self.log.rows):
            step = row.get(self.step)
            cell = row.get(column)
            if reads_lists and isinstance(cell, list) and cell:
                cell = cast("list[Any]", cell)[0]
            if _is_missing(step) or _is_missing(cell):
                continue
            row_place = self.log.place_of(index)
            place = f"{row_place}: {_shown(column)}"
            value = _number(cell, place)
            checked_step = _check_step(step, f"{row_place}: {_shown(self.step)}")
            text = cell.strip() if isinstance(cell, str) else None
            cells.append(Cell(checked_step, value, text, place))
        return cells


def read_lr_cells(table: LogTable, lr: str | None) -> list[Cell]:
    """Return the learning rate at each logged step; of a list, the first."""
    column = table.find_column("lr", lr)
    cells: list[Cell] = []
    for cell in table.cells(column, reads_lists=True):
        if math.isnan(cell.value):
            continue
        if not 0 <= cell.value < math.inf:
            raise ValueError(f"{cell.place} = {cell.value} must be finite and not negative")
        cells.append(cell)
    kept, _ = keep_latest(cells, f"{table.name} has {len(cells)} learning rates", "rank or run")
    return kept


def read_log(source: Any) -> Log:
    """Read a file, a data frame, or a list; a `Log` is returned as it is."""
    if isinstance(source, Log):
        return source
    name = "the log"
    if isinstance(source, str | os.PathLike):
        path = Path(cast("str", source))
        return parse_log(decode_log(path.read_bytes(), str(path)), str(path))
    if hasattr(source, "to_dict"):
        check_columns(getattr(source, "columns", ()), name)
        with suppress(TypeError):  # raised by other libraries' data frames
            rows = source.to_dict(orient="records")
            return Log(name, [_without_missing(row) for row in rows])
    if checks.is_ordered(source):
        rows = list(source)
        if all(isinstance(row, Mapping) for row in rows):
            return Log(name, rows)
    requirement = "be a path, a pandas data frame, or a list of dictionaries"
    raise TypeError(checks.must("source", source, requirement))


def _find_column(log: Log, rows: Sequence[Row], argument: str, chosen: str | None) -> str:
    """Return the column that the user chose, or else the only one with a usual name."""
    if not any(log.rows):
        raise ValueError(f"{log.name} has no rows")
    columns = columns_of(rows)
    patterns = _USUAL_COLUMNS[argument]
    matching: list[str] = []
    if chosen is not None:
        matching = [column for column in columns if column == chosen]
        patterns = ()
    for pattern in patterns:
        matching = matching or [column for column in columns if re.fullmatch(pattern, str(column))]
    if len(matching) == 1:
        return matching[0]

    candidates = matching or columns
    if matching:
        problem = f"{log.name} has several columns for {argument}, {_join(candidates)}"
    elif chosen is not None:
        shown = checks.short_repr(chosen)
        problem = f"{log.name} has no column {argument} = {shown}, only {_join(candidates)}"
    else:
        problem = f"{log.name} has no usual column for {argument} among {_join(candidates)}"
    raise UnclearLogError(problem, argument, candidates, f"name one in Python, with {argument}=")


def columns_of(rows: Sequence[Row]) -> list[str]:
    columns: dict[str, None] = {}
    for row in rows:
        columns.update(dict.fromkeys(row))
    return list(columns)


def _join(columns: Iterable[Any]) -> str:
    return checks.short_text(", ".join(map(checks.short_repr, columns)), _MAX_LIST_LENGTH)


def _shown(column: Any) -> str:
    return checks.short_text(str(column))


def _check_step(cell: Any, place: str) -> int:
    step = _number(cell, place)
    if not (step.is_integer() and 0 <= step <= checks.MAX_STEP):
        raise ValueError(
            f"{place} = {checks.short_repr(cell)} must be an integer in 0 … {checks.MAX_STEP}, a "
            "number of updates, not of samples or epochs"
        )
    return int(step)


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _without_missing(row: Row) -> Row:
    """Return a row of a data frame without missing cells: NaN, also as text, or pandas' NA."""
    return {column: cell for column, cell in row.items() if str(cell) not in ("nan", "<NA>")}


def _number(cell: Any, place: str) -> float:
    if isinstance(cell, str) or not checks.is_not_real(cell):
        try:
            return float(cell)
        except (TypeError, ValueError, OverflowError):
            pass
    raise ValueError(f"{place} = {checks.short_repr(cell)} must be a number")


def keep_latest(cells: Sequence[Cell], has: str, sources: str) -> tuple[list[Cell], list[Cell]]:
    """Return the cells that count, in the order of their steps, and those that later ones replace.

    A run that resumes before step 300 logs some steps again: 100 200 300 400 | 300 400 500. The
    earlier values at step 300 and later are dropped.

    Args:
        cells: Cells of one column.
        has: The beginning of the message of the error: how many cells the log has.
        sources: The end of the message: of what the user should keep one.

    Raises:
        ValueError: Half of the cells or more are replaced.
    """
    kept: list[Cell] = []
    for cell in cells:
        while kept and kept[-1].step >= cell.step:
            kept.pop()
        kept.append(cell)
    value_at = {cell.step: cell.value for cell in kept}
    # A repeated value replaces nothing: several ranks may log the same, and some trainers evaluate
    # twice after the last update.
    replaced = [cell for cell in cells if value_at.get(cell.step) != cell.value]
    if 2 * len(replaced) >= len(cells) > 0:
        count = len({cell.step for cell in cells})
        has_at = f"{has} at {checks.plural(count, 'step')}"
        raise ValueError(f"{has_at}: keep those of one {sources}, sorted by step")
    return kept, replaced
