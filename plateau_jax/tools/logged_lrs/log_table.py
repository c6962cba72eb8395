"""The learning rates of a log by step: its columns, their cells, and the rows that count."""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from plateau_jax.arguments import checks
from plateau_jax.tools.logged_lrs.log_files import Row, check_columns, parse_log

_USUAL_COLUMNS = {
    "step": (
        "step|global_step|train/global_step|trainer/global_step|num_updates|applied",
        "_step",
        "iter|iteration|update",
        r"(?i:(.*[ /])?(global[ _])?(step|iter|iteration|update)s?(\(train\))?)",
    ),
    "lr": (
        "lr|learning_rate|train/lr|train/learning_rate",
        r"(?i:(.*[ /._-])?(lr|learning[ _-]rate)([ /_-].*)?)(?<!__MIN)(?<!__MAX)",
        "Value",
    ),
}
"""Patterns of the usual names for each argument; the first pattern that a column matches counts.

A `MetricLog` has `applied`. In logs that have `step` too, `_step`, of Weights & Biases, may count
calls, and `iter` micro-batches. A chart of Weights & Biases has `run - lr`, `run - lr__MIN` and
`run - lr__MAX`, one of TensorBoard `Value`.
"""

_MAX_LIST_LENGTH = 1000
"""Number of characters of a list of columns in a message."""


class Cell(NamedTuple):
    """A learning rate of a log."""

    step: int
    value: float
    text: str | None
    """As the log has it; None for a float, whose digits are not shown."""


def read_lrs(source: Any, step: str | None, lr: str | None) -> list[Cell]:
    """Return the learning rate at each logged step, in the order of steps; of a list, the first."""
    name = "the log"
    if isinstance(source, str | os.PathLike):
        name = str(Path(cast("str", source)))
    all_rows, unit = _read_rows(source, name, step)
    if not any(all_rows):
        raise ValueError(f"{name} has no rows")
    # A console may also print a configuration, without a step, and losses by a different counter.
    rows = [row for row in all_rows if any(_is_step(column, step) for column in row)]
    lr_column = _find_column(name, rows or all_rows, "lr", lr)
    rows = [row for row in rows if lr_column in row]
    step_column = _find_column(name, rows or all_rows, "step", step)
    cells: list[Cell] = []
    for number, row in enumerate(all_rows, 1):
        logged = row.get(lr_column)
        if isinstance(logged, list) and logged:
            logged = cast("list[Any]", logged)[0]
        if _is_missing(row.get(step_column)) or _is_missing(logged):
            continue
        place = f"{name}, {unit} {number}"
        value = _number(logged, f"{place}: {_shown(lr_column)}")
        if not 0 <= value < math.inf:
            raise ValueError(
                f"{place}: {_shown(lr_column)} = {value} must be finite and not negative"
            )
        text = logged.strip() if isinstance(logged, str) else None
        cells.append(Cell(_step(row[step_column], f"{place}: {_shown(step_column)}"), value, text))
    if not cells:
        raise ValueError(f"{name} has no learning rates")
    return _keep_latest(cells, name)


def _is_step(column: Any, chosen: str | None) -> bool:
    """Return True for the column of steps that the user chose, or for one with a usual name."""
    if chosen is not None:
        return column == chosen
    return any(re.fullmatch(pattern, str(column)) for pattern in _USUAL_COLUMNS["step"])


def _read_rows(source: Any, name: str, step: str | None) -> tuple[Sequence[Row], str]:
    is_step = partial(_is_step, chosen=step)
    if isinstance(source, str | os.PathLike):
        return parse_log(Path(cast("str", source)).read_bytes(), name, is_step)
    if hasattr(source, "read"):
        return parse_log(source.read(), name, is_step)
    if hasattr(source, "to_dict"):
        check_columns(getattr(source, "columns", ()), name)
        with suppress(TypeError):  # raised by other libraries' data frames
            return source.to_dict(orient="records"), "row"
    if checks.is_ordered(source):
        rows = list(source)
        if all(isinstance(row, Mapping) for row in rows):
            return rows, "row"
    requirement = "be a path, a pandas data frame, or a list of dictionaries"
    raise TypeError(checks.must("source", source, requirement))


def _find_column(name: str, rows: Sequence[Row], argument: str, chosen: str | None) -> str:
    """Return the column that the user chose, or else the only one with a usual name."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if chosen is not None:
        if chosen in columns:
            return chosen
        shown = checks.short_repr(chosen)
        raise ValueError(f"{name} has no column {argument} = {shown}, only {_join(columns)}")
    matching: list[str] = []
    for pattern in _USUAL_COLUMNS[argument]:
        matching = matching or [column for column in columns if re.fullmatch(pattern, str(column))]
    if len(matching) == 1:
        return matching[0]
    problem = f"no usual column for {argument} among {_join(columns)}"
    if matching:
        problem = f"several columns for {argument}, {_join(matching)}"
    advice = f"name one with {argument}=, or in a shell with --{argument}-column"
    raise ValueError(f"{name} has {problem}: {advice}")


def _join(columns: Iterable[Any]) -> str:
    return checks.short_text(", ".join(map(checks.short_repr, columns)), _MAX_LIST_LENGTH)


def _shown(column: Any) -> str:
    return checks.short_text(str(column))


def _is_missing(cell: Any) -> bool:
    """Return True for None, an empty text, NaN, also as text, or pandas' NA."""
    return str(cell).strip() in ("", "None", "nan", "NaN", "<NA>")


def _step(cell: Any, place: str) -> int:
    step = _number(cell, place)
    if not (step.is_integer() and 0 <= step <= checks.MAX_STEP):
        raise ValueError(
            f"{place} = {checks.short_repr(cell)} must be an integer in 0 … {checks.MAX_STEP}, a "
            "number of updates, not of samples or epochs"
        )
    return int(step)


def _number(cell: Any, place: str) -> float:
    if isinstance(cell, str) or not checks.is_not_real(cell):
        with suppress(TypeError, ValueError, OverflowError):
            return float(cell)
    problem = f"{place} = {checks.short_repr(cell)} must be a number"
    if isinstance(cell, str) and "," in cell:
        problem += ": write it without separators of thousands, and with a decimal point"
    raise ValueError(problem)


def _keep_latest(cells: Sequence[Cell], name: str) -> list[Cell]:
    """Return the cells that count, in the order of their steps.

    A run that resumes before step 300 logs some steps again: 100 200 300 400 | 300 400 500. The
    earlier values at step 300 and later are dropped.

    Raises:
        ValueError: Half of the cells or more are replaced, as if the log had several runs.
    """
    kept: list[Cell] = []
    for cell in cells:
        while kept and kept[-1].step >= cell.step:
            kept.pop()
        kept.append(cell)
    value_at = {cell.step: cell.value for cell in kept}
    # A repeated value replaces nothing: several ranks may log the same.
    num_replaced = sum(value_at.get(cell.step) != cell.value for cell in cells)
    if 2 * num_replaced >= len(cells):
        steps = checks.plural(len({cell.step for cell in cells}), "step")
        raise ValueError(
            f"{name} has {len(cells)} learning rates at {steps}: keep those of one rank or run, "
            "sorted by step"
        )
    return kept
