"""The unit of a log's column of steps, if that is not updates."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plateau_jax.analysis.log_columns import Table, base_name
from plateau_jax.analysis.log_numbers import has_decimal_commas, is_filled, read_number
from plateau_jax.analysis.logged_lrs import UnclearLogError
from plateau_jax.validation.messages import Message, choices, shown

_EPOCHS = "epoch", "epochs"

_COUNTS = {
    "samples": re.compile(r"step|iter|update|sample|token|example|sequence|image|seen", re.IGNORECASE),
    "epochs": re.compile(r"(^|[\W_])epochs?$", re.IGNORECASE),
}
"""Names of columns that may count a unit, next to the column of steps."""


def steps_in_updates(
    rows: Sequence[Mapping[str, Any]],
    name: str,
    chosen: Mapping[str, str | None],
    unit: Mapping[str, Any],
) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a log with its steps in updates.

    Args:
        rows: The rows.
        name: The name of the log, for messages.
        chosen: The columns of `step` and `loss` that the user chose, or None.
        unit: {"name", "size"}, with the name "updates", "samples" (or tokens; `size` of them in an update),
            or "epochs" (of `size` updates), 1 after the first; "epochs from 0" are 0 then.

    Raises:
        ValueError: A size is missing or not an integer; a number of samples or tokens is not that of whole
            updates, but for the last one; epochs are given as updates; several columns may be meant.
    """
    table = Table(rows, name)
    step = table.find_step() if chosen["step"] is None else table.find_named("step", chosen["step"])
    kind = str(unit.get("name", "updates"))
    if kind == "updates":
        if step.strip().lower().rpartition("/")[2] in _EPOCHS:
            problem = Message(f"{name}: the column ", shown(step), " counts epochs, not updates")
            raise UnclearLogError(problem, "", "unit")
        return rows
    counted = "samples" if kind == "samples" else "epochs"
    if chosen["step"] is None:
        others = [column for column in table.columns if _COUNTS[counted].search(base_name(column))]
        columns = [step, *(column for column in others if column != step and _rises(rows, column))]
        if len(columns) > 1:
            noun = "samples or tokens" if kind == "samples" else "epochs"
            unclear = f"{name} has several columns that may count {noun}, "
            raise UnclearLogError(Message(unclear, *choices(columns)), "", "step", columns)
    size = unit.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        missing = "samples or tokens per update" if kind == "samples" else "updates per epoch"
        raise UnclearLogError(
            f"{name}: the number of {missing} must be a whole number of at least 1", "", "unit"
        )
    loss = table.find_loss(step) if chosen["loss"] is None else table.find_named("loss", chosen["loss"])
    cells = [row.get(step) for row in rows]
    decimal_commas = has_decimal_commas(cells, [row.get(loss) for row in rows])

    def read(cell: Any) -> float:
        try:
            number = read_number(cell, decimal_commas=decimal_commas, is_step=kind == "samples")
            if not (number.is_integer() if kind == "samples" else math.isfinite(number)):
                raise ValueError(f"must be a {'whole' if kind == 'samples' else 'finite'} number")
        except ValueError as error:
            raise ValueError(Message(f"{name}: {step.strip()}: ", shown(cell), f" {error}")) from None
        return number

    numbers = [read(cell) if is_filled(cell) else None for cell in cells]
    last = next((number for number in reversed(numbers) if number is not None), None)

    def in_updates(number: float) -> int:
        if kind != "samples":
            return round((number + (kind == "epochs from 0")) * size)
        if number % size and number != last:  # the last batch may be short
            problem = f"{int(number)} is not a multiple of {size}, the samples or tokens per update"
            raise ValueError(f"{name}: {step.strip()}: {problem}")
        return -(-int(number) // size)

    return [
        row if number is None else {**row, step: in_updates(number)}
        for row, number in zip(rows, numbers, strict=True)
    ]


def _rises(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Return True unless numbers fall or stay the same, as tokens per second or per update do."""
    filled = [row[column] for row in rows if is_filled(row.get(column))]
    try:
        changes = np.diff([read_number(cell, decimal_commas=False) for cell in filled])
    except ValueError:  # such as decimal commas
        return True
    return bool((changes >= 0).all() and changes.any())
