"""Read steps, losses and learning rates from a log; see `LossRun.read`."""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

from plateau_jax.analysis.logged_lrs import (
    UnclearLogError,
    checked_lrs,
    interpolate_lrs,
    peak_of_lrs,
    warn_if_lrs_differ,
)
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.validation import checks

# The first of these that a log has is its step. Weights & Biases counts calls of `log` in `_step`, which is a
# number of updates only if nothing else is.
_STEPS = "global_step", "applied", "step", "iteration", "iter", "update", "updates", "steps", "_step"

_LOSS = re.compile(r"(^|[\W_])loss$")
_VALIDATION = re.compile(r"(^|[\W_])(val|valid|validation|eval|evaluation|test|dev|heldout)($|[\W_])")
_LR = re.compile(r"(^|[\W_])(lr|learning_rate)($|[\W_])")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")


class Log(NamedTuple):
    """The arguments of a `LossRun`, and the name of its losses."""

    curve: Curve
    peak_value: float
    steps: list[int]
    losses: list[float]
    loss_name: str


class _Table:
    """The rows of a log, with columns that are found by name."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        self.name = name
        self.rows = rows
        columns = dict.fromkeys(column for row in rows for column in row if isinstance(column, str))
        # Weights & Biases adds the range of averaged points.
        self.columns = [column for column in columns if not column.endswith(("__MIN", "__MAX"))]
        if not self.columns:
            raise ValueError(f"{name} has no rows")

    def find_named(self, argument: str, column: Any) -> str:
        if not isinstance(column, str):
            raise TypeError(f"{argument} = {checks.short_repr(column)} must be the name of a column")
        matching = [name for name in self.columns if column in (name, _base_name(name))]
        if len(matching) != 1:
            problem = f"{argument} = {column!r} names {len(matching)} columns"
            raise self._error(problem, argument, matching)
        return matching[0]

    def find_step(self) -> str:
        for name in _STEPS:
            matching = [column for column in self.columns if _last_part(column) == name]
            if len(matching) == 1:
                return matching[0]
            if matching:
                raise self._error(f"has several columns of steps, {_listed(matching)}", "step", matching)
        raise self._error("has no column of steps", "step")

    def find_loss(self) -> str:
        losses = [column for column in self.columns if _LOSS.search(_base_name(column).lower())]
        # A summary, such as the mean training loss at the end, is not a log.
        losses = [column for column in losses if sum(_is_filled(row.get(column)) for row in self.rows) > 1]
        validation = [column for column in losses if _VALIDATION.search(_base_name(column).lower())]
        matching = validation or losses
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise self._error(f"has several losses, {_listed(matching)}", "loss", matching)
        raise self._error("has no column of losses", "loss")

    def find_lr(self) -> str | None:
        matching = [column for column in self.columns if _LR.search(_base_name(column).lower())]
        if len(matching) > 1:
            raise self._error(f"has several learning rates, {_listed(matching)}", "lr", matching)
        return matching[0] if matching else None

    def read_pairs(self, step: str, column: str) -> list[tuple[int, float]]:
        """Return (step, value) of each row that has both, without steps before the first update."""
        pairs: list[tuple[int, float]] = []
        for row, before in zip(self.rows, [{}, *self.rows], strict=False):
            # A skipped update in a `MetricLog`, which may have a loss that is not finite.
            is_skipped = "skipped" in row and "applied" in row and before.get("applied") == row["applied"]
            if not is_skipped and _is_filled(row.get(step)) and _is_filled(row.get(column)):
                if _THOUSANDS.fullmatch(str(row[step]).strip()):
                    raise ValueError(f"{self.name}: {step} = {row[step]!r} must be written without a comma")
                number = self._number(step, row[step])
                if not number.is_integer() or number > checks.MAX_STEP:
                    shown = checks.short_repr(row[step])
                    raise ValueError(f"{self.name}: {step} = {shown} must be an integer up to 2**31 - 1")
                if number >= 1:
                    pairs.append((int(number), self._number(column, row[column])))
        return pairs

    def _number(self, column: str, value: Any) -> float:
        try:
            if isinstance(value, str):
                value = value.strip().replace(",", ".")  # where semicolons separate, commas may be decimal
            elif checks.is_not_real(value):  # `float` would take True, and drop an imaginary part
                raise TypeError
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{self.name}: {column} = {checks.short_repr(value)} must be a number") from None

    def _error(self, problem: str, argument: str, columns: Sequence[str] = ()) -> UnclearLogError:
        advice = f"; its columns are {_listed(self.columns)}: name one with {argument}="
        return UnclearLogError(f"{self.name} {problem}", advice, argument, columns or self.columns)


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
        table = _Table(_read_file(Path(source)), str(source))
    else:
        table = _Table(_checked_rows(source), name)
    step = table.find_step() if step is None else table.find_named("step", step)
    loss = table.find_loss() if loss is None else table.find_named("loss", loss)
    readings = table.read_pairs(step, loss)
    if not readings:
        raise ValueError(f"{table.name} has no row with both {step!r} and {loss!r}")
    if curve is not None and peak_value is not None:
        _check_curve(table, step, lr, curve, peak_value)
    else:
        lr = table.find_lr() if lr is None else table.find_named("lr", lr)
        logged = checked_lrs([] if lr is None else table.read_pairs(step, lr), table.name)
        if not any(value > 0 for _, value in logged):
            problem = f"{table.name} has no learning rates"
            if curve is None:
                raise UnclearLogError(problem, ": give curve= and peak_value=", "curve")
            raise UnclearLogError(problem, ": give peak_value=", "peak_value")
        if curve is None:
            curve, peak_value = interpolate_lrs(logged, readings[-1][0], table.name)
        else:
            peak_value = peak_of_lrs(logged, curve)
            _check_curve(table, step, lr, curve, peak_value)
    steps, losses = zip(*readings, strict=True)
    return Log(curve, peak_value, list(steps), list(losses), _base_name(loss))


def _read_file(path: Path) -> list[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None
    return parse_rows(text, str(path))


def parse_rows(text: str, name: str) -> list[Mapping[str, Any]]:
    """Parse the text of a log: CSV, JSON or JSON lines. `name` is that of the file, for messages."""
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = [line for line in re.split(r"\r\n|\r|\n", text) if line.strip()]
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _checked_rows(_parse_json(text, lines, name))
        except TypeError as error:
            raise ValueError(f"{name} is not a log: {error}") from None
    delimiter = max(",;\t", key="".join(lines[:1]).count)
    try:
        rows: list[Mapping[str, Any]] = list(csv.DictReader(lines, delimiter=delimiter))
    except csv.Error as error:  # such as a quote that does not end
        raise ValueError(f"{name} is not CSV: {error}") from None
    for row in rows:
        # Such as a decimal comma in a file with commas: the cells are not those of their columns.
        if any(row.get(cast("str", None), [])):
            raise ValueError(f"{name} has a row with more cells than columns: {checks.short_repr(row)}")
    return rows


def _parse_json(text: str, lines: Sequence[str], name: str) -> Any:
    try:
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            return [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:  # an integer may have too many digits
        raise ValueError(f"{name} is neither JSON nor JSON lines: {error}") from None
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value)
        return value.get("log_history", [value])
    return value


def _checked_rows(rows: Any) -> list[Mapping[str, Any]]:
    if not checks.is_ordered(rows):
        raise TypeError(f"{checks.short_repr(rows)} must be a path, or rows such as those of a MetricLog")
    rows = list(rows)
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row must be a mapping from columns to values, not {checks.short_repr(row)}")
    return rows


def _check_curve(table: _Table, step: str, lr: str | None, curve: Curve, peak_value: float) -> None:
    """Warn if the log has learning rates that are not those of the curve that was given."""
    try:
        column = table.find_lr() if lr is None else table.find_named("lr", lr)
        logged = [] if column is None else table.read_pairs(step, column)
    except ValueError:
        if lr is not None:
            raise
        return  # several columns, or cells without a number: nobody asked for them
    warn_if_lrs_differ(logged, curve, peak_value, table.name)


def _base_name(column: str) -> str:
    """Return a column's name without the name of its run, which Weights & Biases puts first."""
    return column.rpartition(" - ")[2].strip()


def _last_part(column: str) -> str:
    name = _base_name(column).lower().replace(" ", "_")
    return name if name == "_step" else name.rpartition("/")[2]


def _is_filled(value: Any) -> bool:
    return value is not None and (not isinstance(value, str) or bool(value.strip()))


def _listed(columns: Sequence[str]) -> str:
    shown = ", ".join(map(repr, columns[:12]))
    return shown if len(columns) <= 12 else f"{shown}, …"
