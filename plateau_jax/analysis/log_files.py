"""Rows of a log from the text of a file: CSV, JSON or JSON lines."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from plateau_jax.analysis.log_numbers import parse_float
from plateau_jax.validation import checks
from plateau_jax.validation.curve_warning import warn
from plateau_jax.validation.messages import Message, Wording, code, shown

_STEP, _NUMBER = r"(?:step|iter\w*)[ :=]+(\d+)", r"[ :=]+(\d[\d.eE+-]*)"
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

_SEPARATOR = re.compile(r'"?sep= *(.)"?[\s,;]*', re.IGNORECASE)
"""A line before the header, for Excel."""


def read_file(path: Path) -> list[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None
    return parse_rows(text, str(path))


def parse_rows(text: str, name: str) -> list[Mapping[str, Any]]:
    """Parse the text of a log: CSV, JSON or JSON lines. `name` is that of the file, for messages."""
    # `splitlines` would also split at characters such as U+2028, which texts in a log may contain.
    numbered = {number: line for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1) if line.strip()}
    lines = list(numbered.values())
    if text.lstrip()[:1] in ("{", "["):
        try:
            return checked_rows(_parse_json(text, numbered, name))
        except TypeError as error:
            problem = Wording(f": {error}", ", with rows and columns")
            raise ValueError(Message(f"{name} is not a log", problem)) from None
    for pattern, row in _CONSOLES:
        if re.search(pattern, text[:_BEGINNING]):
            advice = Wording(
                f"make a run of its text with\n    rows = [{row} in re.findall(r'{pattern}', text)]\n"
                "    run = LossRun.read(rows, curve, peak_value)",
                "make a table of it, with a column of steps and one of losses",
            )
            raise ValueError(Message(f"{name} is the text of a console, not a table: ", advice))
    separator = _SEPARATOR.fullmatch(lines[0]) if lines else None
    if separator:
        del lines[0]
    delimiter = separator[1] if separator else max(",;\t", key="".join(lines[:1]).count)
    reader = csv.DictReader(lines, delimiter=delimiter)
    try:
        columns = list(reader.fieldnames or ())
        rows: list[Mapping[str, Any]] = list(reader)
    except csv.Error as error:  # such as a quote that does not end
        raise ValueError(f"{name} is not CSV: {error}") from None
    columns = [column for column in columns if column.strip()]
    check_columns(columns, name)
    for row in rows:
        # Such as a decimal comma in a file with commas: the cells are not those of their columns.
        if any(row.get(cast("str", None), [])):
            cells = code(": ", shown(row))
            raise ValueError(Message(f"{name} has a row with more cells than columns", cells))
    # A resumed run that appends to its file may write the header again.
    return [row for row in rows if any((row[column] or "").strip() != column.strip() for column in columns)]


def check_columns(columns: Iterable[str], name: str) -> None:
    """Raise if two names are equal but for spaces around them: the later column would replace the other."""
    counts = Counter(column.strip() for column in columns)
    for column, count in counts.items():
        if count > 1 and column:
            advice = ": rename or remove all but one"
            raise ValueError(Message(f"{name} has {count} columns named ", shown(column), advice))


def _parse_json(text: str, lines: Mapping[int, str], name: str) -> Any:
    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(row := dict(pairs)) < len(pairs):
            repeated.append([key for key, _ in pairs])
        return row

    def decode_line(number: int, line: str) -> Any:
        try:
            return decode(line)
        except json.JSONDecodeError as error:
            if len(lines) > 1 and number == max(lines):  # the trainer was stopped while it wrote
                warn(f"{name}: the last line, {number}, is incomplete and left out")
                return None
            raise ValueError(f"line {number}, column {error.colno}: {error.msg}") from None

    repeated: list[list[str]] = []
    decode = json.JSONDecoder(object_pairs_hook=build_object, parse_float=parse_float).decode
    try:
        try:
            value = decode(text)
        except json.JSONDecodeError:
            value = [decode_line(number, line) for number, line in lines.items()]
            value = [row for row in value if row is not None]
    except (ValueError, RecursionError) as error:  # an integer may have too many digits
        problem = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{name} is neither JSON nor JSON lines: {problem}") from None
    for keys in repeated:
        check_columns(keys, name)
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value)
        return value.get("log_history", [value])
    return value


def checked_rows(rows: Any) -> list[Mapping[str, Any]]:
    is_rows = checks.is_ordered(rows) and not hasattr(rows, "read") and not hasattr(rows, "to_dict")
    if not is_rows:
        advice = "; of a file, give the path" if hasattr(rows, "read") else ""
        advice = '; of a DataFrame, give df.to_dict("records")' if hasattr(rows, "to_dict") else advice
        shown = checks.short_repr(rows)
        raise TypeError(f"{shown} must be a path, or rows such as those of a MetricLog{advice}")
    rows = list(rows)
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row must be a mapping from columns to values, not {checks.short_repr(row)}")
    return rows
