"""Logs of training runs: files and rows, their columns, and resumed runs."""

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
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn

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

_NEWLINE_ADVICE = "if the row is complete, end it with a newline"

_Row = Mapping[str, Any]


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
        text: The number as the log has it; for a float, its shortest decimal.
        place: The row and the column, for messages.
    """

    step: int
    value: float
    text: str
    place: str


@dataclass(frozen=True)
class LogTable:
    """A log with its column of steps.

    Attributes:
        log: The log.
        step: The column of steps.
        reader: The function that users call, for messages.
    """

    log: Log
    step: str
    reader: str

    @classmethod
    def from_log(cls, log: Log, step: str | None, reader: str) -> Self:
        """Find the column of steps: the one that the user chose, or the usual one."""
        return cls(log, _find_column(log, "step", step, reader), reader)

    @property
    def name(self) -> str:
        return self.log.name

    def find_column(self, argument: str, chosen: str | None) -> str:
        return _find_column(self.log, argument, chosen, self.reader)

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
            cells.append(Cell(checked_step, value, _text_of(cell, value), place))
        return cells


def read_lr_cells(table: LogTable, lr: str | None) -> list[Cell]:
    """Return the learning rate at each logged step; of several groups, that of the first."""
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


def open_lrs(source: Any, step: str | None, lr: str | None, reader: str) -> tuple[str, list[Cell]]:
    """Return the name of a log and its learning rates, at least one.

    Args:
        source: The path of the log, or its rows.
        step: The column of steps.
        lr: The column of learning rates.
        reader: The function that users call, for messages.
    """
    table = LogTable.from_log(read_log(source), step, reader)
    cells = read_lr_cells(table, lr)
    if not cells:
        raise ValueError(f"{table.name} has no learning rates")
    return table.name, cells


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


def _find_column(log: Log, argument: str, chosen: str | None, reader: str) -> str:
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
    advice = f"name one with {reader}(..., {argument}=...)"
    raise UnclearLogError(problem, argument, candidates, advice)


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


def _text_of(cell: Any, value: float) -> str:
    if isinstance(cell, str):
        return cell.strip()
    return repr(value).removesuffix(".0")  # Python adds it to whole numbers


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
        raise ValueError(f"{has} at {count} steps: keep those of one {sources}, sorted by step")
    return kept, replaced
