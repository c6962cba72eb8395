"""Read the steps, losses and learning rates of a log; see `LossRun.read`."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.forecasts.log_files import checked_rows, read_file
from plateau_jax.forecasts.logged_lrs import UnclearLogError, curve_of, listed, peak_of, warn_if_lrs_differ
from plateau_jax.validation import checks
from plateau_jax.validation.curve_warning import warn

# The first of these that a log has is its step. Weights & Biases counts calls of `log` in `_step`, which is a
# number of updates only if nothing else is.
_STEPS = (
    *("global_step", "applied", "num_updates", "step", "iteration", "iter", "update", "updates", "steps"),
    "_step",
)

_SPLIT = r"(val|valid|validation|eval|evaluation|test|dev|heldout|held[\W_]out)"
# With any other word it may be something else, such as tokens/step.
_STEP_PREFIX = re.compile(rf"(({_SPLIT}|train|trainer|training|metrics|global)/)+")
# With any other word it may be an auxiliary loss, a best one, or a running mean.
_LOSS = re.compile(rf"(({_SPLIT}|train|training|metrics)[\W_]+)*loss")
_VALIDATION = re.compile(rf"(^|[\W_]){_SPLIT}[\W_]")
_PERPLEXITY = re.compile(r"(?<!log)(^|[\W_])(ppl|perplexity)($|[\W_])")
_LR = re.compile(r"(^|_)(lr|learning_?rate)($|_)")
_OTHER_THAN_LR = re.compile(
    r"(^|_)(momentum|decay|wd|scale|scaling|ratio|mult|multiplier|factor|base|min|max|peak|init|initial"
    r"|final|end|weight|warmup|steps)($|_)"
)
_NOUNS = {"step": "steps", "loss": "losses", "lr": "learning rates"}

_MISSING = {"", "-", "na", "n/a", "<na>", "null", "none"}

_MOST_NOT_FINITE = 0.05
"""Fraction of the losses."""


class Log(NamedTuple):
    """The arguments of a `LossRun`, and the columns that they were read from."""

    curve: Curve
    peak_value: float
    steps: list[int]
    losses: list[float]
    columns: dict[str, str]
    name: str


def read_log(
    source: str | PathLike[str] | Iterable[Mapping[str, Any]],
    curve: Curve | None,
    peak_value: float | None,
    *,
    step: str | None,
    loss: str | None,
    lr: str | None,
    name: str = "the log",
) -> Log:
    """Read a log; `name` is that of rows, for messages."""
    if curve is not None:
        check_curve("curve", curve)
    elif peak_value is not None:
        raise ValueError("peak_value= without curve=: give both, or neither")
    if isinstance(source, str | PathLike):
        name, source = str(source), read_file(Path(source))
    table = _Table(checked_rows(source), name)
    step = table.find("step", step, table.steps())
    loss = table.find("loss", loss, table.losses(step))
    logged, lr_is_used = [table.read(step, loss)], curve is None or peak_value is None
    columns = {"step": step, "loss": loss}
    try:
        if lr is not None or table.lrs():
            lr_column = table.find("lr", lr, table.lrs())
            logged.append(table.read(step, lr_column, is_lr=True))
            columns |= {"lr": lr_column} if lr_is_used else {}
    except ValueError:
        # There are several columns, or cells without a number, that nobody asked for.
        if lr_is_used or lr is not None:
            raise
    losses, *rest = _without_replaced(logged, name)
    losses, lrs = _finite_losses(losses, name), rest[0] if rest else {}
    if not losses:
        raise ValueError(f"{name} has no row with both {step!r} and {loss!r}")
    if lr_is_used and not any(lrs.values()):
        among = "" if "lr" in columns else f" among {listed(table.columns)}"
        argument = "curve" if curve is None else "peak_value"
        raise UnclearLogError(f"{name} has no learning rates{among}", argument)
    if curve is None:
        curve, peak_value = curve_of(lrs, max(losses), name)
    else:
        peak_value = peak_of(lrs, curve, name) if peak_value is None else peak_value
        warn_if_lrs_differ(lrs, curve, peak_value, name)
    return Log(curve, peak_value, list(losses), list(losses.values()), columns, name)


class _Logged(NamedTuple):
    """A value of a column."""

    row: int
    step: int
    value: float


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

    def steps(self) -> list[str]:
        """Return the columns of the first usual name that there is."""
        names = {column: _snake_case(column) for column in self.columns}
        for usual in _STEPS:
            exact = [column for column, name in names.items() if name == usual]
            prefixed = [column for column, name in names.items() if _STEP_PREFIX.sub("", name, 1) == usual]
            if exact or prefixed:
                return self._distinct(exact or prefixed)
        return []

    def losses(self, step: str) -> list[str]:
        """Return the columns of validation losses, else those of training losses."""
        names = {column: base_name(column).lower() for column in self.columns}
        losses = [column for column, name in names.items() if _LOSS.fullmatch(name)]
        # A single value is a summary, such as the mean training loss at the end.
        logged = [column for column in losses if self._is_logged(step, column)] or losses
        return [column for column in logged if _VALIDATION.search(names[column])] or logged

    def lrs(self) -> list[str]:
        """Return the columns of learning rates."""
        names = {column: re.sub(r"[\W_]+", "_", _snake_case(column)) for column in self.columns}
        matching = [column for column, name in names.items() if _LR.search(name)]
        return self._distinct([column for column in matching if not _OTHER_THAN_LR.search(names[column])])

    def read(self, step: str, column: str, *, is_lr: bool = False) -> list[_Logged]:
        """Return what the rows have in a column: losses from step 1 on, or finite learning rates."""
        logged: list[_Logged] = []
        for row, cells in enumerate(self._rows):
            at, cell = cells.get(step), cells.get(column)
            if is_lr and isinstance(cell, list | tuple) and cell:
                cell = cast("Any", cell[0])  # of the first parameter group
            if not (_is_filled(at) and _is_filled(cell)):
                continue
            number, value = self._number(step, at), self._number(column, cell)
            if not number.is_integer() or number > checks.MAX_STEP:
                must = "an integer up to 2**31 - 1, a number of updates, not of samples or epochs"
                raise self._cell_error(step, at, must)
            if number >= 0 and math.isfinite(value) if is_lr else number >= 1:
                logged.append(_Logged(row, int(number), value))
        return logged

    def _is_logged(self, step: str, column: str) -> bool:
        return sum(math.isfinite(loss.value) for loss in self.read(step, column)) > 1

    def _number(self, column: str, cell: Any) -> float:
        try:
            return float(cell)
        except (TypeError, ValueError, OverflowError):
            raise self._cell_error(column, cell, "a number") from None

    def _cell_error(self, column: str, cell: Any, must: str) -> ValueError:
        return ValueError(f"{self.name}: {column} = {checks.short_repr(cell)} must be {must}")

    def _distinct(self, columns: Sequence[str]) -> list[str]:
        """Return the columns without those that repeat another one."""
        distinct: dict[str, list[Any]] = {}
        for column in columns:
            cells = [row.get(column) for row in self._rows]
            if cells not in distinct.values():
                distinct[column] = cells
        return list(distinct)


def base_name(column: str) -> str:
    """Return a column's name without the name of its run, which Weights & Biases puts first."""
    return column.rpartition(" - ")[2].strip()


def is_perplexity(column: str) -> bool:
    """Return True if a column is called a perplexity, and not its logarithm."""
    return _PERPLEXITY.search(_snake_case(column)) is not None


def _snake_case(column: str) -> str:
    """Return `learning_rate` for a column named `Learning Rate` or `LearningRate`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", base_name(column)).lower().replace(" ", "_")


def _is_filled(cell: Any) -> bool:
    return cell is not None and not (isinstance(cell, str) and cell.strip().lower() in _MISSING)


def _is_skipped(row: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    is_same = "applied" in row and row["applied"] == before.get("applied")
    return is_same and row.get("skipped") != before.get("skipped")


def _without_replaced(columns: Sequence[Sequence[_Logged]], name: str) -> list[dict[int, float]]:
    """Return the values of the losses, and of learning rates if there are any, that no later row replaces.

    Raises:
        ValueError: Later rows replace half of the losses or more.
    """
    stacks, last = [list[_Logged]() for _ in columns], [0] * len(columns)
    for item, index in sorted((item, index) for index, logged in enumerate(columns) for item in logged):
        # A run that resumes at step 300 logs lower steps again: 100 200 300 400 | 300 400 500. What either
        # column has from 300 on is dropped. A late evaluation goes back in neither.
        if item.step < last[index]:
            last = [min(step, item.step) for step in last]
            for stack in stacks:
                while stack and stack[-1].step >= item.step and stack[-1].row < item.row:
                    stack.pop()
        last[index] = item.step
        stacks[index].append(item)
    kept = [{item.step: item for item in stack} for stack in stacks]
    # Nothing is lost if the value is the same: some trainers evaluate the last update twice.
    replaced = [
        sorted(item.step for item in logged if not _is_same(item, later.get(item.step)))
        for logged, later in zip(columns, kept, strict=True)
    ]
    if columns[0] and 2 * len(replaced[0]) >= len(columns[0]):
        problem = f"has {len(columns[0])} losses at {len({item.step for item in columns[0]})} steps"
        raise ValueError(f"{name} {problem}: keep those of one split, rank or run, sorted by step")
    if steps := replaced[0] or replaced[-1]:
        warn(f"{name} repeats steps, as a resumed run does: earlier values are left out, {_at(steps)}")
    return [{step: item.value for step, item in later.items()} for later in kept]


def _is_same(item: _Logged, kept: _Logged | None) -> bool:
    return item is kept or (kept is not None and item.value == kept.value)


def _finite_losses(losses: Mapping[int, float], name: str) -> dict[int, float]:
    wrong = [at for at, loss in losses.items() if not math.isfinite(loss)]
    message = f"{name} has losses that are not finite, {len(wrong)} of {len(losses)}"
    if len(wrong) > _MOST_NOT_FINITE * len(losses):
        cause = "the run diverged, or NaN stands for losses that were not logged, in rows to leave out"
        raise ValueError(f"{message}, {_at(wrong)}; at most 5% may be left out: {cause}")
    if wrong:
        warn(f"{message}, {_at(wrong)}: they are left out")
    return {at: loss for at, loss in losses.items() if math.isfinite(loss)}


def _at(steps: Sequence[int]) -> str:
    several = f"at {len(steps)} steps from {steps[0]} to {steps[-1]}"
    return several if len(steps) > 1 else f"at step {steps[0]}"
