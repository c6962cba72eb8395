"""The unit of a log's column of steps, if that is not updates."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from plateau_jax.analysis.log_columns import Table
from plateau_jax.analysis.logged_lrs import UnclearLogError
from plateau_jax.validation import checks

_EPOCHS = "epoch", "epochs"


def steps_in_updates(
    rows: Sequence[Mapping[str, Any]], name: str, column: str | None, unit: Mapping[str, Any]
) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a log with its steps in updates.

    Args:
        rows: The rows.
        name: The name of the log, for messages.
        column: The column of steps that the user chose, if any.
        unit: {"name", "size"}, with the name "updates", "samples" (or tokens; `size` of them in an update),
            or "epochs" (of `size` updates), 1 after the first; "epochs from 0" are 0 then.

    Raises:
        ValueError: A size is missing or not an integer; a number of samples or tokens is not that of whole
            updates; epochs are given as updates.
    """
    table = Table(rows, name)
    step = table.find_step() if column is None else table.find_named("step", column)
    kind = str(unit.get("name", "updates"))
    if kind == "updates":
        if step.strip().lower().rpartition("/")[2] in _EPOCHS:
            raise UnclearLogError(f"{name}: the column {step!r} counts epochs, not updates", "", "unit")
        return rows
    size = unit.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        missing = "samples or tokens per update" if kind == "samples" else "updates per epoch"
        raise UnclearLogError(
            f"{name}: the number of {missing} must be a whole number of at least 1", "", "unit"
        )
    is_filled = [row.get(step) not in (None, "") for row in rows]
    return [
        {**row, step: _in_updates(row[step], step, kind, size)} if filled else row
        for row, filled in zip(rows, is_filled, strict=True)
    ]


def _in_updates(value: Any, column: str, kind: str, size: int) -> int:
    text = str(value).strip()
    if kind == "samples" and re.fullmatch(r"\d+(\.0)?", text):
        number = int(text.removesuffix(".0"))
        updates, rest = divmod(number, size)
        if rest:
            raise ValueError(
                f"{column}: {number} is not a multiple of {size}, the samples or tokens per update"
            )
        return updates
    if kind != "samples" and re.fullmatch(r"\d+(\.\d*)?", text):
        return round((float(text) + (kind == "epochs from 0")) * size)
    raise ValueError(f"{column}: {checks.short_repr(value)} must be a number")
