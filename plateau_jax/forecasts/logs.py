"""Read the steps, losses and learning rates of a log: see `LossRun.read`."""

import codecs
import csv
import gzip
import io
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

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

_GZIP = b"\x1f\x8b"

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "UTF-8",
    # Before those of UTF-16, which they begin with.
    codecs.BOM_UTF32_LE: "UTF-32-LE",
    codecs.BOM_UTF32_BE: "UTF-32-BE",
    codecs.BOM_UTF16_LE: "UTF-16-LE",
    codecs.BOM_UTF16_BE: "UTF-16-BE",
}

_GAP_FACTOR = 10.0
"""A gap is more than this many times as long as the intervals before and after it."""

_LEAST_GAP = 0.05
"""As a fraction of the run: less hardly changes a forecast."""

_PEAK_FACTOR = 2.0
"""Without a fall, the largest learning rate is at most this many times the second largest."""

_STEEP_FALL = 0.8
"""A fall from a peak that only one row has continues by at least this factor to the next row.

A fall like t^-P to less than half continues by (2 - 2^(-1/P))^-P: 0.67 for P = 1, 0.76 for 0.5.
"""

_NEWLINE_ADVICE = "if the row is complete, end it with a newline"

_PEAK_TOLERANCE = 0.05
"""Relative: a log may have the learning rate of the update before its step, or of that after it."""

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
class Log:
    """The rows of a file, of a data frame, or of a list.

    Attributes:
        name: Its name in messages.
        rows: Mappings from columns to cells.
        lines: The line of each row in the file; None for rows that are not from a file.
    """

    name: str
    rows: Sequence[_Row]
    lines: Sequence[int] | None = None

    def place(self, index: int) -> str:
        """Return where a row is, for messages."""
        if self.lines is None:
            return f"{self.name}, row {index + 1}"
        return f"{self.name}, line {self.lines[index]}"


class Cell(NamedTuple):
    """A number in a row with a step.

    Attributes:
        step: The step of the row.
        value: The number.
        place: The row and the column, for messages.
    """

    step: int
    value: float
    place: str


@dataclass(frozen=True)
class LogTable:
    """A log with its column of steps."""

    log: Log
    step: str

    @classmethod
    def from_log(cls, log: Log, step: str | None) -> Self:
        """Find the column of steps: the one that the user chose, or the usual one."""
        return cls(log, _find_column(log, "step", step))

    @property
    def name(self) -> str:
        return self.log.name

    def find_column(self, argument: str, chosen: str | None) -> str:
        return _find_column(self.log, argument, chosen)

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
            row_place = self.log.place(index)
            place = f"{row_place}: {_shown(column)}"
            value = _number(cell, place)
            checked_step = _checked_step(step, f"{row_place}: {_shown(self.step)}")
            cells.append(Cell(checked_step, value, place))
        return cells


def read_losses(table: LogTable, loss: str | None) -> dict[int, float]:
    """Return the losses by number of updates; warn of those that are left out."""
    column = table.find_column("loss", loss)
    logged = _without_zeros(table, _finite_losses(table, column))
    losses = _without_replaced(logged)
    # A repeated value replaces nothing: some trainers evaluate twice after the last update.
    replaced = [cell.step for cell in logged if losses.get(cell.step) != cell.value]
    if 2 * len(replaced) >= len(logged) > 0:
        count = len({cell.step for cell in logged})
        problem = f"{table.name} has {len(logged)} losses at {count} steps"
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
    gap = _find_gap(list(losses), max(losses))
    if gap is not None:
        problem = f"{table.name}: the steps jump from {gap[0]} to {gap[1]}"
        warn(f"{problem}: if these are not steps of one run, counted in updates, correct them")
    return losses


def _finite_losses(table: LogTable, column: str) -> list[Cell]:
    """Return the losses that are finite as a float32; warn of the others."""
    finite: list[Cell] = []
    left_out: list[int] = []
    for cell in table.cells(column):
        if not math.isfinite(checks.metric(column, cell.value)):
            left_out.append(cell.step)
            continue
        if cell.value < 0:
            raise ValueError(f"{cell.place} = {cell.value} must be positive")
        finite.append(cell)
    _warn_left_out(table, "losses that are not finite", left_out)
    return finite


def _without_zeros(table: LogTable, losses: Sequence[Cell]) -> Sequence[Cell]:
    """Leave out losses of 0 with a warning, unless every loss is 0.

    Some loggers write 0 at steps without an evaluation.
    """
    nonzero = [cell for cell in losses if cell.value != 0]
    if not nonzero:
        return losses
    zeros = [cell.step for cell in losses if cell.value == 0]
    _warn_left_out(table, "losses of 0, which count as missing,", zeros)
    return nonzero


def _warn_left_out(table: LogTable, losses: str, steps: Sequence[int]) -> None:
    if steps:
        count = f"{len(steps)}, the first at step {steps[0]}"
        warn(f"{table.name}: {losses} are left out ({count})")


def _find_gap(steps: Sequence[int], last: int) -> tuple[int, int] | None:
    """Return the first two logged steps with an unusually long gap between them, or None.

    A gap is far longer than the intervals before and after it, and not a small part of the run.

    >>> _find_gap([10, 20, 30, 230, 240, 250], 250)
    (30, 230)
    >>> _find_gap([10, 20, 30, 230, 430, 630], 630)
    """
    intervals = np.diff(steps)
    padded = np.pad(intervals, 1)
    neighbors = np.maximum(padded[:-2], padded[2:])
    is_long = intervals > np.maximum(_LEAST_GAP * last, _GAP_FACTOR * neighbors)
    gaps = np.flatnonzero(is_long & (neighbors > 0))
    if not gaps.size:
        return None
    index = int(gaps[0])
    return steps[index], steps[index + 1]


def read_lrs(table: LogTable, lr: str | None) -> dict[int, float]:
    """Return the learning rate at each logged step; of several groups, that of the first."""
    column = table.find_column("lr", lr)
    cells: list[Cell] = []
    for cell in table.cells(column, reads_lists=True):
        if math.isnan(cell.value):
            continue
        if not 0 <= cell.value < math.inf:
            raise ValueError(f"{cell.place} = {cell.value} must be finite and not negative")
        cells.append(cell)
    return _without_replaced(cells)


def read_log(source: Any) -> Log:
    """Read a file, a data frame, or a list."""
    name = "the log"
    if isinstance(source, str | os.PathLike):
        path = Path(cast("str", source))
        return parse_log(decode_log(path.read_bytes(), str(path)), str(path))
    if hasattr(source, "to_dict"):
        _check_columns(getattr(source, "columns", ()), name)
        with suppress(TypeError):  # raised by other libraries' data frames
            return Log(name, [_without_missing(row) for row in source.to_dict("records")])
    if checks.is_ordered(source):
        rows: list[Any] = list(source)
        if all(isinstance(row, Mapping) for row in rows):
            return Log(name, rows)
    requirement = "be a path, a pandas data frame, or a list of dictionaries"
    raise TypeError(checks.must("source", source, requirement))


def decode_log(content: bytes, name: str) -> str:
    """Return the text of a file, decompressed if it is in gzip.

    It is UTF-8, or has a byte-order mark. A character that is cut off at the end is left out.
    """
    if content.startswith(_GZIP):
        content = _decompress(content, name)
    encoding = "UTF-8"
    for mark, marked_encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            encoding = marked_encoding
            content = content[len(mark) :]
            break
    advice = "save the log as UTF-8, or pass its rows"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(content)
    except UnicodeDecodeError as error:
        line = content[: error.start].decode(encoding).count("\n") + 1
        problem = f"byte 0x{content[error.start]:02x} is not {encoding}"
        raise ValueError(f"{name}, line {line}: {problem}: {advice}") from None
    if "\0" in text[:2]:
        problem = "a zero byte, as in UTF-16, but no byte-order mark"
        raise ValueError(f"{name}, line 1: {problem}: {advice}")
    return text


def _decompress(content: bytes, name: str) -> bytes:
    """Return what a gzip file contains. One that is cut off has no checksum, so it is rejected."""
    try:
        return gzip.decompress(content)
    except EOFError:
        advice = "read it when it is complete, or decompress it yourself"
        raise ValueError(f"{name} is a gzip file that is cut off: {advice}") from None
    except (OSError, zlib.error) as error:
        raise ValueError(f"{name} is a damaged gzip file: {error}") from None


def parse_log(text: str, name: str) -> Log:
    """Parse the text of a file: JSON lines, if it begins with a brace or bracket, or else CSV."""
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = list(io.StringIO(text, newline=None))
    parse = _parse_csv
    is_complete = _has_line_end
    if text.lstrip().startswith(("{", "[")):
        parse = _parse_json_lines
        is_complete = _is_complete_json
    if not lines or not lines[-1].strip() or is_complete(lines[-1]):
        return parse(lines, name)
    # The trainer was stopped while it wrote, or is writing now.
    log = parse(lines[:-1], name)
    problem = "the last line has no line end and may be incomplete"
    if not log.rows:
        raise ValueError(f"{name} has no rows: {problem}; {_NEWLINE_ADVICE}")
    warn(f"{name}: {problem}: it is left out; {_NEWLINE_ADVICE}")
    return log


def _has_line_end(line: str) -> bool:
    """Return True if a line has its end: without it, its last number may be cut."""
    return line.endswith("\n")


def _is_complete_json(line: str) -> bool:
    """Return True if a line has its end, or the bracket that closes a JSON object or list."""
    if _has_line_end(line):
        return True
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict | list)
    return False


def _parse_json_lines(lines: Sequence[str], name: str) -> Log:
    rows: list[_Row] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
            problem = f"{checks.short_repr(row)} is not a JSON object"
        except (ValueError, RecursionError) as error:
            row = None
            problem = f"this line is not JSON ({error})"
        if not isinstance(row, Mapping):
            advice = "for other JSON, pass the rows, json.loads(...)"
            raise ValueError(f"{name}, line {number}: {problem}; {advice}")
        rows.append(cast("_Row", row))
        numbers.append(number)
    return Log(name, rows, numbers)


def _parse_csv(lines: Sequence[str], name: str) -> Log:
    columns: Sequence[str] = ()
    rows: list[_Row] = []
    numbers: list[int] = []
    for number, cells in _read_csv(lines, name):
        if not columns:
            columns = cells
            _check_columns(columns, name)
            continue
        # Decimal commas would split a number into two cells.
        if any(cells[len(columns) :]):
            problem = "more cells than columns; is this CSV with commas?"
            raise ValueError(f"{name}, line {number}: {problem}")
        rows.append(dict(zip(columns, cells, strict=False)))
        numbers.append(number)
    return Log(name, rows, numbers)


def _read_csv(lines: Sequence[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line at which each row begins, and its cells; skip blank lines."""
    reader = csv.reader(lines, skipinitialspace=True, strict=True)
    number = 1
    try:
        for cells in reader:
            if len(cells) > 1 or any(cells):
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{name}, line {number}: this row is not CSV ({error})") from None


def _check_columns(columns: Iterable[Any], name: str) -> None:
    """Reject columns with the same name, such as two runs in a chart of Weights & Biases."""
    for column, count in Counter(columns).items():
        if column and count > 1:
            raise ValueError(f"{name} has several columns named {checks.short_repr(column)}")


def _find_column(log: Log, argument: str, chosen: str | None) -> str:
    """Return the column that the user chose, or else the only one with a usual name."""
    name = log.name
    if not log.rows:
        raise ValueError(f"{name} has no rows")
    columns: dict[str, None] = {}
    for row in log.rows:
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


def _without_replaced(cells: Iterable[Cell]) -> dict[int, float]:
    """Return the value of each step, without those that a resumed run logged again.

    A run that resumes before step 300 logs some steps again: 100 200 300 400 | 300 400 500. The
    earlier values at step 300 and later are dropped.
    """
    kept: dict[int, float] = {}
    for step, value, _ in cells:
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
    _check_peak(table, lrs)
    first = min(lrs)
    last = max(lrs)
    end = max(last_loss, last)
    if end - last > _logging_interval(lrs):
        problem = f"{table.name} has learning rates only from step {first} to {last} of {end}"
        raise UnclearLogError(problem, "curve")
    gap = _find_gap(list(lrs), end)
    if gap is not None:
        problem = f"{table.name} has no learning rates between steps {gap[0]} and {gap[1]}"
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


def _check_peak(table: LogTable, lrs: Mapping[int, float]) -> None:
    """Reject a peak that only one row has, unless a steep fall begins there: it may be damaged."""
    if len(lrs) == 1:
        raise UnclearLogError(f"{table.name} has only one learning rate", "curve")
    second, first = sorted(lrs, key=lambda step: lrs[step])[-2:]
    if lrs[first] > _PEAK_FACTOR * lrs[second] and not _begins_a_steep_fall(lrs, first):
        problem = f"{lrs[first]:g}, at step {first}, is more than twice every other learning rate"
        raise UnclearLogError(f"{table.name}: {problem}", "curve")


def _begins_a_steep_fall(lrs: Mapping[int, float], peak_step: int) -> bool:
    """Return True if the learning rate falls from its peak, then at least a fifth further.

    The row before the peak must be lower than the row after it: a damaged row within a fall is not
    a peak.

    >>> _begins_a_steep_fall({100: 1.0, 200: 0.08, 300: 0.04}, 100)
    True
    >>> _begins_a_steep_fall({100: 1.0, 200: 0.08, 300: 0.07}, 100)
    False
    >>> _begins_a_steep_fall({100: 0.3, 200: 1.0, 300: 0.1, 400: 0.0}, 200)
    False
    """
    values = list(lrs.values())
    index = list(lrs).index(peak_step)
    if len(values) < index + 3:
        return False
    after = values[index + 1]
    later = values[index + 2]
    if index > 0 and values[index - 1] >= after:
        return False
    return later <= _STEEP_FALL * after


def peak_of(table: LogTable, lrs: Mapping[int, float], curve: Curve) -> float:
    """Return the peak with which a curve reaches the two largest of the logged learning rates.

    If only one is above 0, the curve must be 0 at the steps of the others, and a warning says so.
    """
    peaks: dict[int, float] = {}
    for step in sorted(lrs, key=lambda step: lrs[step], reverse=True)[:2]:
        if lrs[step] == 0:
            continue
        multiplier = float(curve(step))
        if multiplier == 0:
            problem = f"{table.name} has the learning rate {lrs[step]:g} at step {step}"
            raise UnclearLogError(f"{problem}, where the curve is 0", "curve")
        peaks[step] = lrs[step] / multiplier
    if not peaks:
        raise UnclearLogError(f"{table.name} has no learning rate above 0", "curve")
    (step, peak), *others = peaks.items()
    if not others:
        _check_zeros(table, lrs, curve)
        problem = f"only the learning rate at step {step} shows the peak, {peak:g}"
        warn(f"{table.name}: {problem}: if it is wrong, give the run's peak")
    for other_step, other_peak in others:
        if not math.isclose(peak, other_peak, rel_tol=_PEAK_TOLERANCE):
            problem = f"the learning rates at steps {step} and {other_step} imply different peaks"
            raise UnclearLogError(f"{table.name}: {problem}, {peak:g} and {other_peak:g}", "curve")
    return peak


def _check_zeros(table: LogTable, lrs: Mapping[int, float], curve: Curve) -> None:
    """Reject learning rates of 0 where the curve is above 0."""
    for step, lr in lrs.items():
        if lr == 0 and float(curve(step)) > 0:
            problem = f"{table.name} has the learning rate 0 at step {step}"
            raise UnclearLogError(f"{problem}, where the curve is above 0", "curve")
