"""The text of a log as rows: JSON, CSV with commas or tabs, and the lines of a console."""

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn

# In "iter 50/1000 | learning rate: 1.5E-04 | LR (group 0)=0.1": 50, 1.5E-04 and 0.1, with the names
# before them.
_NAMED_NUMBER = re.compile(
    r"(?P<name>[A-Za-z_][\w/.()-]*(?: [\w()]+)*?)\s*[:=]?\s*\[?\s*"
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.)])"
)
_STEP = r"\b(global_)?(step|iter|iteration|update|num_updates)s?\b"
_NAME_OF_STEP = re.compile(_STEP, re.IGNORECASE)
_NAMED_STEP = re.compile(_STEP + r"(\(train\))?[:=\s\[]*\d", re.IGNORECASE)
_GROUPED_STEP = re.compile(_STEP + r"(\(train\))?[:=\s\[]*\d{1,3}(,\d{3})+\b", re.IGNORECASE)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Log:
    """The rows of a file, of a data frame, or of a list.

    Attributes:
        name: Its name in messages.
        rows: Mappings from columns to cells; of a file, one for each line.
        place: What messages call a row.
    """

    name: str
    rows: Sequence[Row]
    place: str = "row"

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def place_of(self, index: int) -> str:
        return f"{self.name}, {self.place} {index + 1}"


def decode_log(content: bytes, name: str) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte-order mark, as of PowerShell.

    A character that is cut off at the end is left out.
    """
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        return codecs.getincrementaldecoder(encoding)().decode(content)
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: {error}: save the log as UTF-8, or pass its rows") from None


def parse_log(text: str, name: str) -> Log:
    """Parse the text of a file."""
    document = _rows_of_document(text)
    if document is not None:
        return Log(name, [_flatten(row) for row in document])
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = list(io.StringIO(text, newline=None))
    parse = _parser_of(lines)
    if lines and lines[-1].strip() and not _is_complete(lines[-1], parse):
        # The trainer was stopped while it wrote, or is writing now.
        problem = "the last line has no line end and may be incomplete: it is left out"
        warn(f"{name}: {problem}; if the row is complete, end it with a newline")
        del lines[-1]
    return Log(name, parse(lines, name), "line")


def _rows_of_document(text: str) -> list[Row] | None:
    """Return the rows of a JSON list of objects, also under `log_history` as in the Trainer."""
    document: Any = None
    if text.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
    if isinstance(document, dict):
        document = cast("dict[str, Any]", document).get("log_history")
    if isinstance(document, list):
        rows = cast("list[Any]", document)
        if all(isinstance(row, dict) for row in rows):
            return rows
    return None


def _flatten(row: Row) -> Row:
    """Return a row in which nested objects have columns such as `optim/lr`."""
    flat: dict[str, Any] = {}
    for column, cell in row.items():
        if isinstance(cell, dict):
            nested = _flatten(cast("Row", cell))
            flat |= {f"{column}/{inner}": value for inner, value in nested.items()}
        else:
            flat[column] = cell
    return flat


_Parse = Callable[[Sequence[str], str], list[Row]]


def _parser_of(lines: Sequence[str]) -> _Parse:
    """Return the function that parses lines like these."""
    first = next(filter(str.strip, lines), "").lstrip()
    columns = re.split(r'"?\s*[,\t]\s*"?', first.strip().strip('"'))
    is_header = any(map(_NAME_OF_STEP.fullmatch, columns))
    is_console = not is_header and any(map(_NAMED_STEP.search, lines))
    if first.startswith("{") or (first.startswith("[") and not is_console):
        return _parse_json_lines
    if is_console:
        return _parse_console
    return _parse_csv


def _is_complete(line: str, parse: _Parse) -> bool:
    """Return True if a line has its end, or the bracket that closes a JSON object or list.

    Without them, its last number may be cut.
    """
    if line.endswith("\n") or parse is not _parse_json_lines:
        return line.endswith("\n")
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict | list)
    return False


def _parse_json_lines(lines: Sequence[str], name: str) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        row: Any = {}
        problem = "this line is not a JSON object"
        try:
            if line.strip():
                row = json.loads(line)
        except (ValueError, RecursionError) as error:
            row = None
            problem = f"this line is not JSON ({error})"
        if not isinstance(row, dict):
            advice = "for other JSON, pass the rows, json.loads(...)"
            raise ValueError(f"{name}, line {number}: {problem}; {advice}")
        rows.append(_flatten(cast("Row", row)))
    return rows


def _parse_console(lines: Sequence[str], name: str) -> list[Row]:
    """Read names with numbers. A line without a step belongs to the last one that has a step."""
    rows: list[Row] = []
    position: Row = {}
    for number, line in enumerate(lines, 1):
        if _GROUPED_STEP.search(line):
            raise ValueError(
                f"{name}, line {number}: the step has separators of thousands: write it without"
            )
        cells = {found["name"]: found["number"] for found in _NAMED_NUMBER.finditer(line)}
        steps = {column: cells[column] for column in cells if _NAME_OF_STEP.search(column)}
        position = steps or position
        rows.append({**position, **cells})
    return rows


def _parse_csv(lines: Sequence[str], name: str) -> list[Row]:
    header = next(filter(str.strip, lines), "")
    delimiter = "\t" if "\t" in header and "," not in header else ","
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter == ",", strict=True)
    columns: list[str] = []
    rows: list[Row] = []
    try:
        for cells in reader:
            row: Row = {}
            if not columns and any(cells):
                columns = cells
                check_columns(columns, name)
            elif any(cells[len(columns) :]):  # decimal commas would split a number into two cells
                problem = "more cells than columns; is this CSV with commas?"
                raise ValueError(f"{name}, line {len(rows) + 1}: {problem}")
            else:
                row = dict(zip(columns, cells, strict=False))
            rows.append(row)
            rows += [{}] * (reader.line_num - len(rows))  # a cell may have several lines
    except csv.Error as error:
        problem = f"this row is not CSV ({error})"
        raise ValueError(f"{name}, line {len(rows) + 1}: {problem}") from None
    return rows


def check_columns(columns: Iterable[Any], name: str) -> None:
    """Reject columns with the same name, such as two runs in a chart of Weights & Biases."""
    for column, count in Counter(columns).items():
        if column and count > 1:
            raise ValueError(f"{name} has several columns named {checks.short_repr(column)}")
