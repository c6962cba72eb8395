"""Read the steps, losses and learning rates of a log: CSV, JSON, JSON lines or rows; see `LossRun.read`."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, cast

from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.forecasts.logged_lrs import UnclearLogError, curve_of, listed, peak_of, warn_if_lrs_differ
from plateau_jax.validation import checks
from plateau_jax.validation.curve_warning import warn

# The first of these that a log has is its step. Weights & Biases counts calls of `log` in `_step`, which is a
# number of updates only if nothing else is.
_STEPS = "global_step", "applied", "num_update", "step", "iteration", "iter", "update", "_step"
_SPLIT = "val|valid|validation|eval|evaluation|test|dev|heldout"
# With any other word it may be something else, such as tokens/step.
_STEP_PREFIX = rf"({_SPLIT}|train|trainer|training)_"
# With any other word it may be an auxiliary loss, a best one, or a running mean.
_LOSS = re.compile(rf"(((?P<validation>{_SPLIT})|train|training|metrics)_)*loss")
_PERPLEXITY = re.compile(r"(?<!log)(^|_)(ppl|perplexity)($|_)")
_LR = re.compile(r"(^|_)(lr|learning_?rate)($|_)")
_OTHER_THAN_LR = re.compile(
    r"(^|_)(momentum|decay|wd|scale|ratio|mult|factor|base|min|max|peak|initial|final|warmup|steps)($|_)"
)
_NOUNS = {"step": "steps", "loss": "losses", "lr": "learning rates"}

_MISSING = {"", "-", "na", "n/a", "<na>", "null", "none"}

_MOST_NOT_FINITE = 0.05
"""Fraction of the losses."""

_STEP, _NUMBER = r"(?:step|iter\w*)[ :=]+(\d+)", r"[ :=]+(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_CONSOLES = rf"(?i){_STEP}.* val.loss{_NUMBER}", rf"(?i){_STEP}.*?loss{_NUMBER}"
"""Steps and losses in the text of a console, such as that of nanoGPT, llm.c, Megatron-LM or torchtitan."""

_HEADER = re.compile(r"(?i)(^|[,;\t])[^\d:,;\t]*(step|iter|update|loss)[^\d:,;\t]*($|[,;\t])")
"""A line that names columns. A console prints colons or numbers next to these words."""


def read_log(
    source: str | PathLike[str] | Iterable[Mapping[str, Any]],
    curve: Curve | None,
    peak_value: float | None,
    *,
    step: str | None,
    loss: str | None,
    lr: str | None,
    name: str = "the log",
) -> tuple[str, dict[str, str], tuple[Curve, float, list[int], list[float]]]:
    """Return the name of a log, the columns that were read, and the arguments of a `LossRun`.

    `name` is that of rows, for messages.
    """
    if curve is not None:
        check_curve("curve", curve)
    elif peak_value is not None:
        raise ValueError("peak_value= without curve=: give both, or neither")
    if isinstance(source, str | PathLike):
        name = str(source)
        try:
            source = parse_rows(Path(source).read_text(encoding="utf-8-sig"), name)
        except UnicodeDecodeError:
            raise ValueError(f"{name} is not a text file in UTF-8") from None
    table = _Table(_checked_rows(source), name)
    step = table.find("step", step, table.step_columns())
    # Only if no column is named: the text in one that nobody asked for is not an error.
    loss = table.find("loss", loss, table.loss_columns(step) if loss is None else ())
    losses = _checked_losses(table.values(step, loss), name)
    if not losses:
        raise ValueError(f"{name} has no row with both {step!r} and {loss!r}")
    columns, lrs = {"step": step, "loss": loss}, dict[int, float]()
    lr_is_used = curve is None or peak_value is None
    try:
        if lr is not None or table.lr_columns():
            lr_column = table.find("lr", lr, table.lr_columns())
            lrs = _latest(table.values(step, lr_column, is_lr=True))
            columns |= {"lr": lr_column} if lr_is_used else {}
    except ValueError:
        # There are several columns, or cells without a number, that nobody asked for.
        if lr_is_used or lr is not None:
            raise
    if lr_is_used and not any(lrs.values()):
        problem = f"{name} has no learning rates among {listed(table.columns)}"
        raise UnclearLogError(problem, "curve" if curve is None else "peak_value")
    if curve is None:
        curve, peak_value = curve_of(lrs, max(losses), name)
    else:
        peak_value = peak_of(lrs, curve, name) if peak_value is None else peak_value
        warn_if_lrs_differ(lrs, curve, peak_value, name)
    return name, columns, (curve, peak_value, list(losses), list(losses.values()))


def parse_rows(text: str, name: str) -> list[Mapping[str, Any]]:
    """Parse the text of a log. `name` is that of the file, for messages."""
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = [line for line in io.StringIO(text, newline=None) if line.strip()]
    is_json = text.lstrip()[:1] in ("{", "[")
    try:
        rows = _checked_rows(_parse_json(text, lines, name)) if is_json else _parse_csv(lines)
    except (TypeError, ValueError, RecursionError, csv.Error) as error:
        _reject_console(text, name)
        raise ValueError(f"{name} is not a log in CSV, JSON or JSON lines: {error}") from None
    if not is_json and not _HEADER.search("".join(lines[:1])):
        _reject_console(text, name)
    return rows


def _reject_console(text: str, name: str) -> None:
    for pattern in _CONSOLES:
        if re.search(pattern, text):
            row = '{"step": step, "loss": loss}'
            raise ValueError(
                f"{name} is the text of a console, not a table: make a run of its text with\n"
                f"    rows = [{row} for step, loss in re.findall(r'{pattern}', text)]\n"
                "    run = LossRun.read(rows, curve, peak_value)"
            ) from None


def _parse_csv(lines: Sequence[str]) -> list[Mapping[str, Any]]:
    delimiter = max(",;\t", key="".join(lines[:1]).count)
    table = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter)]
    columns, *rows = table or [[]]
    if repeated := next((column for column in columns if column and columns.count(column) > 1), None):
        raise ValueError(f"several columns are named {repeated!r}")
    # Such as a decimal comma in a file with commas: the cells are not those of their columns.
    if wrong := next((row for row in rows if any(row[len(columns) :])), None):
        raise ValueError(f"a row has more cells than columns: {checks.short_repr(wrong)}")
    # A resumed run that appends to its file may write the header again.
    return [dict(zip(columns, row, strict=False)) for row in rows if row != columns]


def _parse_json(text: str, lines: Sequence[str], name: str) -> Any:
    with suppress(json.JSONDecodeError):
        value: Any = json.loads(text)
        return cast("Any", value.get("log_history", [value])) if isinstance(value, dict) else value
    rows: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if not 1 < number == len(lines):
                raise ValueError(f"row {number}: {error.msg}") from None
            # The trainer was stopped while it wrote.
            warn(f"{name}: the last line is incomplete and left out")
    return rows


def _checked_rows(rows: Any) -> list[Mapping[str, Any]]:
    items: list[Any] = list(rows) if checks.is_ordered(rows) else [rows]
    if not checks.is_ordered(rows) or not all(isinstance(item, Mapping) for item in items):
        raise TypeError(
            f"{checks.short_repr(rows)} must be a path, or rows that map columns to values, such as those of "
            'a MetricLog or of df.to_dict("records")'
        )
    return items


class _Table:
    """The rows of a log, with columns that are found by name."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        self.name = name
        columns = dict.fromkeys(column for row in rows for column in row if isinstance(column, str))
        # Weights & Biases adds the range of averaged points.
        self.columns = [column for column in columns if not column.endswith(("__MIN", "__MAX"))]
        if not self.columns:
            raise ValueError(f"{name} has no rows")
        # A `MetricLog` has rows of skipped updates too, whose losses may be not finite.
        self._rows = [row for before, row in pairwise([{}, *rows]) if not _is_skipped(row, before)]

    def find(self, argument: str, named: str | None, usual: Sequence[str]) -> str:
        """Return the column that the user named, else the usual one."""
        matching, noun = usual, _NOUNS[argument]
        if named is not None:
            matching = [column for column in self.columns if named in (column, base_name(column))]
            noun += f" named {named!r}"
        if len(matching) == 1:
            return matching[0]
        problem = f"{self.name} has {'several columns' if matching else 'no column'} of {noun}"
        perplexity = next(filter(is_perplexity, self.columns), None)
        if argument == "loss" and perplexity and not matching:
            problem += f", only {perplexity!r}, a perplexity: take its logarithm"
        raise UnclearLogError(problem, argument, matching or self.columns)

    def step_columns(self) -> list[str]:
        """Return the columns of the first usual name that there is."""
        for usual in _STEPS:
            for pattern in (f"{usual}s?", f"{_STEP_PREFIX}{usual}s?"):
                if matching := [column for column in self.columns if re.fullmatch(pattern, _plain(column))]:
                    return matching
        return []

    def loss_columns(self, step: str) -> list[str]:
        """Return the columns of validation losses, else those of training losses."""
        matches = {column: match for column in self.columns if (match := _LOSS.fullmatch(_plain(column)))}
        values = {column: [value for _, value in self.values(step, column)] for column in matches}
        # A single value is a summary, such as the mean training loss at the end.
        logged = [column for column in matches if sum(map(math.isfinite, values[column])) > 1] or [*matches]
        return [column for column in logged if matches[column]["validation"]] or logged

    def lr_columns(self) -> list[str]:
        """Return the columns of learning rates."""
        names = {column: _plain(column) for column in self.columns}
        lrs = [
            column for column, name in names.items() if _LR.search(name) and not _OTHER_THAN_LR.search(name)
        ]
        # The learning rates of several parameter groups may be the same.
        cells = [[row.get(column) for row in self._rows] for column in lrs]
        return [column for index, column in enumerate(lrs) if cells[index] not in cells[:index]]

    def values(self, step: str, column: str, *, is_lr: bool = False) -> list[tuple[int, float]]:
        """Return the steps and values of the rows: losses from step 1 on, or finite learning rates."""
        values: list[tuple[int, float]] = []
        for cells in self._rows:
            at, cell = cells.get(step), cells.get(column)
            if is_lr and isinstance(cell, list | tuple) and cell:
                cell = cast("Any", cell[0])  # of the first parameter group
            if not (_is_filled(at) and _is_filled(cell)):
                continue
            number, value = self._number(step, at), self._number(column, cell)
            if not number.is_integer() or number > checks.MAX_STEP:
                must = "be an integer up to 2**31 - 1, a number of updates, not of samples or epochs"
                raise ValueError(f"{self.name}: {checks.must(step, at, must)}")
            if number >= 0 and math.isfinite(value) if is_lr else number >= 1:
                values.append((int(number), value))
        return values

    def _number(self, column: str, cell: Any) -> float:
        try:
            return float(cell)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{self.name}: {checks.must(column, cell, 'be a number')}") from None


def base_name(column: str) -> str:
    """Return a column's name without the name of its run, which Weights & Biases puts first."""
    return column.rpartition(" - ")[2].strip()


def _plain(column: str) -> str:
    """Return `learning_rate` for a column named `Learning Rate` or `run 1 - learning-rate`."""
    return re.sub(r"[\W_]+", "_", base_name(column).lower())


def is_perplexity(column: str) -> bool:
    """Return True if a column is called a perplexity, and not its logarithm."""
    return _PERPLEXITY.search(_plain(column)) is not None


def _is_filled(cell: Any) -> bool:
    return cell is not None and not (isinstance(cell, str) and cell.strip().lower() in _MISSING)


def _is_skipped(row: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    is_same = "applied" in row and row["applied"] == before.get("applied")
    return is_same and row.get("skipped") != before.get("skipped")


def _latest(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return the value of each step, without those that a resumed run logged again.

    A run that resumes at step 300 logs lower steps again: 100 200 300 400 | 300 400 500. What was logged
    before at step 300 or later is dropped.
    """
    kept: dict[int, float] = {}
    for step, value in values:
        while kept and next(reversed(kept)) >= step:
            kept.popitem()
        kept[step] = value
    return kept


def _checked_losses(values: Sequence[tuple[int, float]], name: str) -> dict[int, float]:
    """Return the finite losses that no later row replaces; warn of the others, and reject too many."""
    losses = _latest(values)
    # Nothing is lost if the value is the same: some trainers evaluate the last update twice.
    replaced = sorted(item[0] for item in values if item not in losses.items())
    if values and 2 * len(replaced) >= len(values):
        problem = f"has {len(values)} losses at {len(dict(values))} steps"
        raise ValueError(f"{name} {problem}: keep those of one split, rank or run, sorted by step")
    if replaced:
        warn(f"{name} repeats steps, as a resumed run does: earlier values are left out, {_at(replaced)}")
    finite = {at: loss for at, loss in losses.items() if math.isfinite(loss)}
    if wrong := [at for at in losses if at not in finite]:
        message = f"{name} has losses that are not finite, {len(wrong)} of {len(losses)}, {_at(wrong)}"
        if len(wrong) > _MOST_NOT_FINITE * len(losses):
            cause = "the run diverged, or NaN stands for losses that were not logged, in rows to leave out"
            raise ValueError(f"{message}; at most 5% may be left out: {cause}")
        warn(f"{message}: they are left out")
    return finite


def _at(steps: Sequence[int]) -> str:
    several = f"at {len(steps)} steps from {steps[0]} to {steps[-1]}"
    return several if len(steps) > 1 else f"at step {steps[0]}"
