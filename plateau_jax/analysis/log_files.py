"""Rows of a log from the text of a file: CSV, JSON or JSON lines."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from plateau_jax.validation import checks


def read_file(path: Path) -> list[Mapping[str, Any]]:
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
            return checked_rows(_parse_json(text, lines, name))
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


def checked_rows(rows: Any) -> list[Mapping[str, Any]]:
    if not checks.is_ordered(rows):
        raise TypeError(f"{checks.short_repr(rows)} must be a path, or rows such as those of a MetricLog")
    rows = list(rows)
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row must be a mapping from columns to values, not {checks.short_repr(row)}")
    return rows
