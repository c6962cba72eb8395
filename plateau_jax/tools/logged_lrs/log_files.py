"""The text of a log as rows: JSON, CSV with commas or tabs, and the lines of a console."""

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn

_ESCAPE_CODE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Such as a color of a console."""

# In "iter 50/1000 | learning rate: 1.5E-04 | LR (group 0)=0.1, 'lr': 3e-4": 50, 1.5E-04, 0.1 and
# 3e-4, with the names before them. "1,000" and "0,0003" are matched whole, for the error message,
# and a number with a damaged byte (U+FFFD) not at all.
_NAMED_NUMBER = re.compile(
    r"(?P<name>[A-Za-z_][\w/.()-]*(?: [\w()]+)*?)['\"]?\s*[:=]?\s*\[?\s*['\"]?"
    r"(?P<number>[-+]?(?:\d{1,3}(?:,\d{3,})+|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.)\ufffd])"
)

Row = Mapping[str, Any]
IsStep = Callable[[Any], bool]
"""Returns True for the name of a column of steps."""


def parse_log(content: bytes, name: str, is_step: IsStep) -> tuple[Sequence[Row], str]:
    """Parse a file in UTF-8, or in UTF-16 with a byte-order mark, as of PowerShell.

    Lines are read as JSON, as CSV and as those of a console; the format that finds the most rows
    with a step counts. Other lines are empty rows.

    Returns:
        The rows, and what messages call one.
    """
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    # Steps and learning rates are ASCII: what cannot be decoded is in other texts.
    text = content.decode("utf-16" if is_utf16 else "utf-8-sig", "replace")
    document = _rows_of_document(text)
    if document is not None:
        return document, "row"
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = list(io.StringIO(_ESCAPE_CODE.sub("", text), newline=None))
    # The trainer was stopped while it wrote, or is writing now: the last number may be cut.
    if lines and not lines[-1].endswith("\n") and not _json_object(lines[-1]):
        if lines[-1].strip():
            problem = "the last line has no line end and may be incomplete: it is left out"
            warn(f"{name}: {problem}; if the row is complete, end it with a newline")
        del lines[-1]

    def num_rows(rows: Sequence[Row]) -> tuple[int, int]:
        filled = [row for row in rows if len(row) > 1]
        return sum(any(map(is_step, row)) for row in filled), len(filled)

    formats = (
        [_json_object(line) for line in lines],
        _parse_csv(lines, name, is_step),
        _parse_console(lines, is_step),
    )
    return max(formats, key=num_rows), "line"


def _rows_of_document(text: str) -> list[Row] | None:
    """Return the rows of a JSON list of objects, also under a name, as in the Trainer's state."""
    document: Any = None
    with suppress(ValueError, RecursionError):
        document = json.loads(text)
    values: list[Any] = [document]
    if isinstance(document, dict):
        values = list(cast("dict[str, Any]", document).values())
    for value in values:
        if isinstance(value, list) and value:
            rows = cast("list[Any]", value)
            if all(isinstance(row, dict) for row in rows):
                return [_flatten(row) for row in rows]
    return None


def _json_object(line: str) -> Row:
    """Return the object of a line; an empty one if the line is something else."""
    with suppress(ValueError, RecursionError):
        row = json.loads(line)
        if isinstance(row, dict):
            return _flatten(cast("Row", row))
    return {}


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


def _parse_csv(lines: Sequence[str], name: str, is_step: IsStep) -> list[Row]:
    """Read rows with as many cells as the header before them.

    A header has the name of a column of steps. Without one, it is the first line.
    """
    rows: list[Row] = []
    columns: list[str] = []
    for line in lines:
        delimiter = "\t" if "\t" in line and "," not in line else ","
        cells: list[str] = []
        with suppress(csv.Error, StopIteration):
            cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
        row: Row = {}
        if any(map(is_step, cells)) or (any(cells) and not columns):
            columns = cells
        elif len(cells) >= len(columns) and not any(cells[len(columns) :]):
            row = dict(zip(columns, cells, strict=False))
        rows.append(row)
    if any(map(is_step, columns)):
        check_columns(columns, name)
    return rows


def check_columns(columns: Iterable[Any], name: str) -> None:
    """Reject columns with the same name, such as two runs in a chart of Weights & Biases."""
    for column, count in Counter(columns).items():
        if column and count > 1:
            raise ValueError(f"{name} has several columns named {checks.short_repr(column)}")


def _parse_console(lines: Sequence[str], is_step: IsStep) -> list[Row]:
    """Read names with numbers.

    A line without a step belongs to the last one that has a step, and adds what that one lacks.
    """
    rows: list[Row] = []
    steps: Row = {}
    known: set[str] = set()
    for line in lines:
        cells = {found["name"]: found["number"] for found in _NAMED_NUMBER.finditer(line)}
        if any(map(is_step, cells)):
            steps = {column: cell for column, cell in cells.items() if is_step(column)}
            known = set()
        new = {column: cell for column, cell in cells.items() if column not in known}
        rows.append({**steps, **new})
        known.update(new)
    return rows
