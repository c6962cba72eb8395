"""Rows of a log from the text of a file: CSV, JSON or JSON lines."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from plateau_jax.validation import checks
from plateau_jax.validation.curve_warning import warn

_STEP, _NUMBER = r"(?:step|iter\w*)[ :=]+(\d+)", r"[ :=]+(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_ROW = '{"step": step, "loss": loss} for step, loss'
_CONSOLES = (
    (rf"(?i){_STEP}.* val.loss{_NUMBER}", _ROW),  # nanoGPT, modded-nanogpt
    (rf"(?i){_STEP}.*?loss{_NUMBER}", _ROW),  # nanoGPT without evaluations, llm.c
    (r"(?m)^(\d+) val (\d\S*)", _ROW),  # build-nanogpt
    # In MLPerf's language models the accuracy is a loss, and the epoch a number of samples.
    (
        r'"eval_accuracy", "value": ([\d.]+).*"(?:samples_count|epoch_num)": (\d+)',
        '{"step": int(samples) // batch_size, "loss": loss} for loss, samples',
    ),
)
"""Patterns of a step and its loss in the text of a console, and the row that they make."""

_BEGINNING = 2**20
"""Number of characters in which they are sought: some programs print their source before the first step."""

_HEADER = re.compile(r"(?i)(^|[,;\t])[^\d:,;\t]*(step|iter|update|loss)[^\d:,;\t]*($|[,;\t])")
"""A line that names columns. A console prints colons or numbers next to these words."""


def read_file(path: Path) -> list[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None
    return parse_rows(text, str(path))


def parse_rows(text: str, name: str) -> list[Mapping[str, Any]]:
    """Parse the text of a log. `name` is that of the file, for messages."""
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    lines = [line for line in io.StringIO(text, newline=None) if line.strip()]
    if lines and lines[0].lower().startswith(("sep=", '"sep=')):  # for Excel
        del lines[0]
    is_json = text.lstrip()[:1] in ("{", "[")
    try:
        rows = checked_rows(_parse_json(text, lines, name)) if is_json else _parse_csv(lines)
    except (TypeError, ValueError, RecursionError, csv.Error) as error:
        _reject_console(text, name)
        raise ValueError(f"{name} is not a log in CSV, JSON or JSON lines: {error}") from None
    if not is_json and not _HEADER.search("".join(lines[:1])):
        _reject_console(text, name)
    return rows


def _reject_console(text: str, name: str) -> None:
    for pattern, row in _CONSOLES:
        if re.search(pattern, text[:_BEGINNING]):
            raise ValueError(
                f"{name} is the text of a console, not a table: make a run of its text with\n"
                f"    rows = [{row} in re.findall(r'{pattern}', text)]\n"
                "    run = LossRun.read(rows, curve, peak_value)"
            ) from None


def _parse_csv(lines: Sequence[str]) -> list[Mapping[str, Any]]:
    reader = csv.DictReader(lines, delimiter=max(",;\t", key="".join(lines[:1]).count))
    rows: list[Mapping[str, Any]] = list(reader)
    columns = [column for column in reader.fieldnames or () if column.strip()]
    names = [column.strip() for column in columns]
    if len(set(names)) < len(names):
        raise ValueError(f"several columns are named {max(names, key=names.count)!r}")
    # Such as a decimal comma in a file with commas: the cells are not those of their columns.
    if wrong := next((row for row in rows if any(row.get(cast("str", None), ()))), None):
        raise ValueError(f"a row has more cells than columns: {checks.short_repr(wrong)}")
    # A resumed run that appends to its file may write the header again.
    return [row for row in rows if any((row[column] or "").strip() != column.strip() for column in columns)]


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


def checked_rows(rows: Any) -> list[Mapping[str, Any]]:
    items: list[Any] = list(rows) if checks.is_ordered(rows) else [rows]
    if not checks.is_ordered(rows) or not all(isinstance(item, Mapping) for item in items):
        raise TypeError(
            f"{checks.short_repr(rows)} must be a path, or rows that map columns to values, such as those of "
            'a MetricLog or of df.to_dict("records")'
        )
    return items
