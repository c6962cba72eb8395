"""The text of a log as rows: JSON, CSV with commas or tabs, and the lines of a console."""

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn

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

# In "iter 50/1000 | learning rate: 1.5E-04 | LR (group 0)=0.1": 50, 1.5E-04 and 0.1, with the names
# before them.
_NAMED_NUMBER = re.compile(
    r"(?P<name>[A-Za-z_][\w/.()-]*(?: [\w()]+)*?)\s*[:=]?\s*\[?\s*"
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.)])"
)
_STEP = r"\b(global_)?(step|iter|iteration|update|num_updates)s?\b"
_NAME_OF_STEP = re.compile(_STEP, re.IGNORECASE)
_NAMED_STEP = re.compile(_STEP + r"(\(train\))?[:=\s\[]*\d", re.IGNORECASE)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Log:
    """The rows of a file, of a data frame, or of a list.

    Attributes:
        name: Its name in messages.
        rows: Mappings from columns to cells.
        lines: The line of each row in the file; None for rows that have none.
    """

    name: str
    rows: Sequence[Row]
    lines: Sequence[int] | None = None

    def place(self, index: int) -> str:
        """Return where a row is, for messages."""
        if self.lines is None:
            return f"{self.name}, row {index + 1}"
        return f"{self.name}, line {self.lines[index]}"


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
    """Return the content of a gzip file. One that is cut off has no checksum: it is rejected."""
    try:
        return gzip.decompress(content)
    except EOFError:
        advice = "read it when it is complete, or decompress it yourself"
        raise ValueError(f"{name} is a gzip file that is cut off: {advice}") from None
    except (OSError, zlib.error) as error:
        raise ValueError(f"{name} is a damaged gzip file: {error}") from None


def parse_log(text: str, name: str) -> Log:
    """Parse the text of a file."""
    document = _rows_of_document(text)
    if document is not None:
        return Log(name, [_flatten(row) for row in document])
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = list(io.StringIO(text, newline=None))
    parse = _parser_of(lines)
    is_json = parse is _parse_json_lines
    if not lines or not lines[-1].strip() or _is_complete(lines[-1], is_json=is_json):
        return parse(lines, name)
    # The trainer was stopped while it wrote, or is writing now.
    log = parse(lines[:-1], name)
    problem = "the last line has no line end and may be incomplete"
    if not log.rows:
        raise ValueError(f"{name} has no rows: {problem}; {_NEWLINE_ADVICE}")
    warn(f"{name}: {problem}: it is left out; {_NEWLINE_ADVICE}")
    return log


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


def _parser_of(lines: Sequence[str]) -> Any:
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


def _is_complete(line: str, *, is_json: bool) -> bool:
    """Return True if a line has its end, or the bracket that closes a JSON object or list.

    Without them, its last number may be cut.
    """
    if line.endswith("\n") or not is_json:
        return line.endswith("\n")
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict | list)
    return False


def _parse_json_lines(lines: Sequence[str], name: str) -> Log:
    rows: list[Row] = []
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
        rows.append(_flatten(cast("Row", row)))
        numbers.append(number)
    return Log(name, rows, numbers)


def _parse_console(lines: Sequence[str], name: str) -> Log:
    """Read names with numbers. A line without a step belongs to the last one that has a step."""
    rows: list[Row] = []
    numbers: list[int] = []
    position: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        cells = {found["name"]: found["number"] for found in _NAMED_NUMBER.finditer(line)}
        steps = {column: cells[column] for column in cells if _NAME_OF_STEP.search(column)}
        position = steps or position
        rows.append(position | cells)
        numbers.append(number)
    return Log(name, rows, numbers)


def _parse_csv(lines: Sequence[str], name: str) -> Log:
    columns: Sequence[str] = ()
    rows: list[Row] = []
    numbers: list[int] = []
    for number, cells in _read_csv(lines, name):
        if not columns:
            columns = cells
            check_columns(columns, name)
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
    header = next(filter(str.strip, lines), "")
    delimiter = "\t" if "\t" in header and "," not in header else ","
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter == ",", strict=True)
    number = 1
    try:
        for cells in reader:
            if len(cells) > 1 or any(cells):
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{name}, line {number}: this row is not CSV ({error})") from None


def check_columns(columns: Iterable[Any], name: str) -> None:
    """Reject columns with the same name, such as two runs in a chart of Weights & Biases."""
    for column, count in Counter(columns).items():
        if column and count > 1:
            raise ValueError(f"{name} has several columns named {checks.short_repr(column)}")
