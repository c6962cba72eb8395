"""The rows of a log, and the columns of steps, losses and learning rates, which are found by name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from plateau_jax.analysis.logged_lrs import UnclearLogError
from plateau_jax.validation import checks

# The first of these that a log has is its step. Weights & Biases counts calls of `log` in `_step`, which is a
# number of updates only if nothing else is.
_STEPS = "global_step", "applied", "step", "iteration", "iter", "update", "updates", "steps", "_step"

_LOSS = re.compile(r"(^|[\W_])loss$")
_VALIDATION = re.compile(r"(^|[\W_])(val|valid|validation|eval|evaluation|test|dev|heldout)($|[\W_])")
_LR = re.compile(r"(^|[\W_])(lr|learning_rate)($|[\W_])")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")


class Table:
    """The rows of a log, with columns that are found by name."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        self.name = name
        self.rows = rows
        columns = dict.fromkeys(column for row in rows for column in row if isinstance(column, str))
        # Weights & Biases adds the range of averaged points.
        self.columns = [column for column in columns if not column.endswith(("__MIN", "__MAX"))]
        if not self.columns:
            raise ValueError(f"{name} has no rows")

    def find_named(self, argument: str, column: Any) -> str:
        if not isinstance(column, str):
            raise TypeError(f"{argument} = {checks.short_repr(column)} must be the name of a column")
        matching = [name for name in self.columns if column in (name, base_name(name))]
        if len(matching) != 1:
            problem = f"{argument} = {column!r} names {len(matching)} columns"
            raise self._error(problem, argument, matching)
        return matching[0]

    def find_step(self) -> str:
        for name in _STEPS:
            matching = [column for column in self.columns if _last_part(column) == name]
            if len(matching) == 1:
                return matching[0]
            if matching:
                raise self._error(f"has several columns of steps, {_listed(matching)}", "step", matching)
        raise self._error("has no column of steps", "step")

    def find_loss(self) -> str:
        losses = [column for column in self.columns if _LOSS.search(base_name(column).lower())]
        # A summary, such as the mean training loss at the end, is not a log.
        losses = [column for column in losses if sum(_is_filled(row.get(column)) for row in self.rows) > 1]
        validation = [column for column in losses if _VALIDATION.search(base_name(column).lower())]
        matching = validation or losses
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise self._error(f"has several losses, {_listed(matching)}", "loss", matching)
        raise self._error("has no column of losses", "loss")

    def find_lr(self) -> str | None:
        matching = [column for column in self.columns if _LR.search(base_name(column).lower())]
        if len(matching) > 1:
            raise self._error(f"has several learning rates, {_listed(matching)}", "lr", matching)
        return matching[0] if matching else None

    def read_pairs(self, step: str, column: str) -> list[tuple[int, float]]:
        """Return (step, value) of each row that has both, without steps before the first update."""
        pairs: list[tuple[int, float]] = []
        for row, before in zip(self.rows, [{}, *self.rows], strict=False):
            # A skipped update in a `MetricLog`, which may have a loss that is not finite.
            is_skipped = "skipped" in row and "applied" in row and before.get("applied") == row["applied"]
            if not is_skipped and _is_filled(row.get(step)) and _is_filled(row.get(column)):
                if _THOUSANDS.fullmatch(str(row[step]).strip()):
                    raise ValueError(f"{self.name}: {step} = {row[step]!r} must be written without a comma")
                number = self._number(step, row[step])
                if not number.is_integer() or number > checks.MAX_STEP:
                    shown = checks.short_repr(row[step])
                    raise ValueError(f"{self.name}: {step} = {shown} must be an integer up to 2**31 - 1")
                if number >= 1:
                    pairs.append((int(number), self._number(column, row[column])))
        return pairs

    def _number(self, column: str, value: Any) -> float:
        try:
            if isinstance(value, str):
                value = value.strip().replace(",", ".")  # where semicolons separate, commas may be decimal
            elif checks.is_not_real(value):  # `float` would take True, and drop an imaginary part
                raise TypeError
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{self.name}: {column} = {checks.short_repr(value)} must be a number") from None

    def _error(self, problem: str, argument: str, columns: Sequence[str] = ()) -> UnclearLogError:
        advice = f"; its columns are {_listed(self.columns)}: name one with {argument}="
        return UnclearLogError(f"{self.name} {problem}", advice, argument, columns or self.columns)


def base_name(column: str) -> str:
    """Return a column's name without the name of its run, which Weights & Biases puts first."""
    return column.rpartition(" - ")[2].strip()


def _last_part(column: str) -> str:
    name = base_name(column).lower().replace(" ", "_")
    return name if name == "_step" else name.rpartition("/")[2]


def _is_filled(value: Any) -> bool:
    return value is not None and (not isinstance(value, str) or bool(value.strip()))


def _listed(columns: Sequence[str]) -> str:
    shown = ", ".join(map(repr, columns[:12]))
    return shown if len(columns) <= 12 else f"{shown}, …"
