"""The rows of a log, and the columns of steps, losses and learning rates, which are found by name."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax.analysis.log_files import check_columns
from plateau_jax.analysis.log_numbers import has_decimal_commas, is_filled, is_finite, read_number
from plateau_jax.analysis.logged_lrs import UnclearLogError, first_group
from plateau_jax.analysis.logged_rows import LoggedRow
from plateau_jax.validation import checks
from plateau_jax.validation.messages import Keyword, Message, Part, Subject, Wording, choices, code, shown

# The first of these that a log has is its step. Weights & Biases counts calls of `log` in `_step`, which is a
# number of updates only if nothing else is.
_STEPS = (
    *("global_step", "applied", "num_updates", "step", "iteration", "iter", "update", "updates", "steps"),
    "_step",
)
_STEP_PREFIX = re.compile(r"((train|trainer|training|val|valid|validation|eval|test|metrics|global)/)+")
"""With any other word it may be something else, such as tokens/step."""

_ZERO = re.compile(r"0+([.,]0*)?")

_SPLIT = r"(val|valid|validation|eval|evaluation|test|dev|heldout|held[\W_]out)"
# With any other word, it may be an auxiliary loss, a best one, or a running mean.
_LOSS = re.compile(rf"(({_SPLIT}|train|training|metrics)[\W_]+)*loss")
_VALIDATION = re.compile(rf"(^|[\W_]){_SPLIT}[\W_]")
_ANY_LOSS = re.compile(r"(^|[\W_])loss$")
_PERPLEXITY = re.compile(r"(?<!log)(^|[\W_])(ppl|perplexity)($|[\W_])")
_LR = re.compile(r"(^|_)(lr|learning_?rate)($|_)")
_OTHER_THAN_LR = re.compile(
    r"(^|_)(momentum|decay|wd|scale|scaling|ratio|mult|multiplier|factor|base|min|max|peak|init|initial"
    r"|final|end|weight|warmup|steps)($|_)"
)


class Table:
    """The rows of a log, with columns that are found by name."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        self.name = name
        self.rows = rows
        columns = dict.fromkeys(column for row in rows for column in row if isinstance(column, str))
        check_columns(columns, name)
        # Weights & Biases adds the range of averaged points.
        self.columns = [column for column in columns if not column.endswith(("__MIN", "__MAX"))]
        if not self.columns:
            raise ValueError(f"{name} has no rows")

    def find_named(self, argument: str, column: Any) -> str:
        if not isinstance(column, str):
            raise TypeError(checks.must(argument, column, "be the name of a column"))
        matching = [name for name in self.columns if column in (name, base_name(name))]
        if len(matching) != 1:
            problem = Subject(argument, column), f" names {len(matching)} columns"
            raise self._error(Message(*problem), argument, matching)
        return matching[0]

    def find_step(self) -> str:
        for name in _STEPS:
            exact = [column for column in self.columns if _snake_case(column) == name]
            matching = self._distinct(
                exact or [column for column in self.columns if _step_name(column) == name]
            )
            if len(matching) == 1 and not (name == "_step" and self._counts_epochs(matching[0])):
                return matching[0]
            if len(matching) > 1:
                problem = Message("has several columns of steps, ", _listed(matching))
                raise self._error(problem, "step", matching)
        problem = Message("has no column of steps")
        if self._epochs() is not None:
            advice = ": add a column with the number of updates (epochs × updates per epoch)"
            problem = Message(problem, ", only epochs", code(advice))
        raise self._error(problem, "step")

    def check_steps(self, step: str) -> None:
        """Raise if the steps go back where the epochs rise, as numbers of batches in an epoch do."""
        epochs = self._epochs()
        if epochs is None or epochs == step:
            return
        changes = np.diff(self._numbers(step, epochs), axis=0)
        rises = changes[changes[:, 0] < 0, 1] > 0
        if 2 * np.count_nonzero(rises) > len(rises):  # a late evaluation may go back there too
            known = [column for column in self.columns if _step_name(column) in _STEPS]
            others = [column for column in known if (np.diff(self._numbers(column), axis=0) >= 0).all()]
            problem = "has no number of updates: the steps of ", shown(step), " begin anew with each epoch"
            advice = ": add a column with the number of updates (those of the epochs before, and these)"
            raise self._error(Message(*problem, "" if others else advice), "step", others)

    def find_loss(self, step: str) -> str:
        # A summary, such as the mean training loss at the end, is not a log.
        cells = ((column, islice(filter(is_filled, self._cells(column)), 2)) for column in self.columns)
        counts = {column: len(list(filled)) for column, filled in cells}
        logged = [column for column, count in counts.items() if count > 1]
        losses = [column for column in logged if _LOSS.fullmatch(base_name(column).lower())]
        losses = [column for column in losses if self._is_logged(column, step)] or losses
        validation = [column for column in losses if _VALIDATION.search(base_name(column).lower())]
        matching = validation or losses
        if len(matching) == 1:
            return matching[0]
        # Or a name such as "CE loss", which the user has to choose.
        similar = [column for column in logged if _ANY_LOSS.search(base_name(column).lower())]
        candidates = matching or similar
        problem = Message("has no column of losses")
        if single := [
            name for name in counts if counts[name] == 1 and _LOSS.fullmatch(base_name(name).lower())
        ]:
            problem = Message(problem, " with several values: ", shown(single[0]), " has one value")
        if len(candidates) > 1:
            problem = Message("has several losses, ", _listed(candidates))
        elif candidates:
            reason = ", which may be an auxiliary loss, and no other column of losses"
            problem = Message("has ", shown(candidates[0]), reason)
        elif perplexities := [column for column in logged if is_perplexity(column)]:
            advice = ", a perplexity: take its logarithm"
            problem = Message("has no column of losses, only ", shown(perplexities[0]), advice)
        if not matching:
            candidates += [column for column in self.columns if column not in (step, *candidates)]
        raise self._error(problem, "loss", candidates)

    def _is_logged(self, column: str, step: str) -> bool:
        """Return True if the column has two finite losses or more after step 0."""
        cells = zip(self._cells(step), self._cells(column), strict=True)
        finite = (
            loss for number, loss in cells if is_finite(loss) and not _ZERO.fullmatch(str(number).strip())
        )
        return sum(1 for _ in islice(finite, 2)) == 2

    def find_lr(self) -> str | None:
        words = {column: re.sub(r"[\W_]+", "_", _snake_case(column)) for column in self.columns}
        matching = [column for column, name in words.items() if _LR.search(name)]
        matching = self._distinct([name for name in matching if not _OTHER_THAN_LR.search(words[name])])
        if len(matching) > 1:
            raise self._error(Message("has several learning rates, ", _listed(matching)), "lr", matching)
        return matching[0] if matching else None

    def read_rows(self, step: str, loss: str, lr: str | None) -> list[LoggedRow]:
        """Return the rows with a step and a loss or a learning rate, without losses at step 0."""
        columns: dict[str, Sequence[Any]]
        columns = {column: self._cells(column) for column in (step, loss, lr) if column is not None}
        if lr is not None:
            columns[lr] = first_group(columns[lr], self.name)
        decimal_commas = has_decimal_commas(*columns.values())

        def read(column: str, cell: Any) -> float | None:
            if not is_filled(cell):
                return None
            try:
                return read_number(cell, decimal_commas=decimal_commas, is_step=column == step)
            except ValueError as error:
                raise self._cell_error(column, cell, str(error)) from None

        logged: list[LoggedRow] = []
        skipped = self._skipped_updates()
        for index, (number_cell, loss_cell) in enumerate(zip(columns[step], columns[loss], strict=True)):
            lr_cell = None if lr is None else columns[lr][index]
            if index in skipped or not (is_filled(loss_cell) or is_filled(lr_cell)):
                continue
            number = read(step, number_cell)
            if number is None:
                continue
            if not number.is_integer() or number > checks.MAX_STEP:
                count = " of updates below 2³¹: is it counted in samples or tokens?"
                kind = Wording("an integer up to 2**31 - 1", f"a whole number{count}")
                raise self._cell_error(step, number_cell, "must be ", kind)
            read_loss = read(loss, loss_cell) if number >= 1 else None
            read_lr = read(lr, lr_cell) if lr is not None and number >= 0 else None
            if read_loss is not None or read_lr is not None:
                logged.append(LoggedRow(int(number), read_loss, read_lr))
        return logged

    def _skipped_updates(self) -> set[int]:
        """Return the rows of skipped updates in a `MetricLog`, whose losses may be not finite."""
        if not {"applied", "skipped"} <= set(self.columns):
            return set()
        counts = self._numbers("applied", "skipped")
        if len(counts) < len(self.rows):
            return set()
        changes = np.diff(counts, axis=0)
        return set((np.flatnonzero((changes[:, 0] == 0) & (changes[:, 1] > 0)) + 1).tolist())

    def _cells(self, column: str) -> list[Any]:
        return [row.get(column) for row in self.rows]

    def _distinct(self, columns: Sequence[str]) -> list[str]:
        """Return the columns without those that repeat another one."""
        if len(columns) < 2:
            return list(columns)
        return [
            column
            for index, column in enumerate(columns)
            if all(self._cells(column) != self._cells(other) for other in columns[:index])
        ]

    def _numbers(self, *columns: str) -> NDArray[np.float64]:
        """Return the rows that have numbers in all of these columns."""
        numbers: list[list[float]] = []
        for row in self.rows:
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                numbers.append([float(row[column]) for column in columns])
        return np.array(numbers).reshape(-1, len(columns))

    def _epochs(self) -> str | None:
        names = ("epoch", "epochs")
        return next((column for column in self.columns if _snake_case(column).split("/")[-1] in names), None)

    def _counts_epochs(self, column: str) -> bool:
        """Return True if the column is that of the epochs, but for a constant."""
        epochs = self._epochs()
        if epochs is None:
            return False
        numbers = self._numbers(column, epochs)
        return 1 < len(numbers) == len(self.rows) and len(set(numbers[:, 0] - numbers[:, 1])) == 1

    def _cell_error(self, column: str, cell: Any, *problem: Part) -> ValueError:
        equals = Wording(" = ", ": ")
        return ValueError(Message(f"{self.name}: {column.strip()}", equals, shown(cell), " ", *problem))

    def list_columns(self) -> Message:
        return Message("its columns are ", _listed(self.columns))

    def _error(self, problem: Part, argument: str, columns: Sequence[str] = ()) -> UnclearLogError:
        advice = Message("; ", self.list_columns(), ": name one with ", Keyword(argument))
        return UnclearLogError(Message(f"{self.name} ", problem), advice, argument, columns or self.columns)


def is_perplexity(column: str) -> bool:
    """Return True if a column is called a perplexity, and not its logarithm."""
    return _PERPLEXITY.search(_snake_case(column)) is not None


def base_name(column: str) -> str:
    """Return a column's name without the name of its run, which Weights & Biases puts first."""
    return column.rpartition(" - ")[2].strip()


def _snake_case(column: str) -> str:
    """Return `learning_rate` for a column named `Learning Rate` or `LearningRate`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", base_name(column)).lower().replace(" ", "_")


def _step_name(column: str) -> str:
    return _STEP_PREFIX.sub("", _snake_case(column), count=1)


def _listed(columns: Sequence[str]) -> Message:
    return Message(*choices(columns[:12]), "" if len(columns) <= 12 else ", …")
