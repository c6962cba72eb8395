"""The rows of docs/other_schedulers.md and docs/trainer_schedules.md, and their recorded runs."""

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from support.docs.pages import ROOT, Section, sections
from support.peers.record import read_record

from plateau_jax import Curve, PlateauCurve, StagedCurve

PAGES = (ROOT / "docs" / "other_schedulers.md", ROOT / "docs" / "trainer_schedules.md")
PEAKS = (
    "peak",
    "peak_lr",
    "peak_value",
    "learning_rate",
    "base_learning_rate",
    "lr",
    "base_lr",
    "begin_value",
)
"""The names of the peak in different libraries."""

FITS = (
    # A run, a cycle and an epoch have at least one update.
    "total >= 1",
    "total_steps >= 1",
    "max_step >= 1",
    "max_steps >= 1",
    "num_iterations >= 1",
    "num_train_steps >= 1",
    "lr_decay_iters >= 1",
    "decay_steps >= 1",
    "num_epochs >= 1",
    "steps_per_cycle >= 1",
    "steps_per_epoch >= 1",
    "steps * cycle_length >= 1",
    "1 <= stop <= total",
    "1 <= max_iters <= lr_decay_iters",
    "period >= 1",
    "t_0 >= 1",
    "cycle_len >= 1",
    "epochs >= 1",
    "batches >= 1",
    "updates >= 1",
    "timescale is None or timescale >= 1",
    "warmup_batches >= 1",
    # A warmup is below the length of the run.
    "warmup < total",
    "warmup < steps",
    "warmup_steps < total",
    "warmup_steps < total_steps",
    "warmup_steps < decay_steps",
    "warmup_steps < max_step",
    "warmup < num_train_steps",
    "warmup_iters < lr_decay_iters",
    "warmup_epochs < epochs",
    "lr_warmup_steps < max_steps",
    (
        "lr_warmup_steps * (global_batch_size // devices // micro_batch_size)"
        " < max_tokens // devices // (micro_batch_size * max_seq_length)"
    ),
    "lr_warmup_steps <= lr_decay_starting_step",
    # All phases together are at most as long as the run.
    "warmup + decay <= total",
    "warmup + hold <= total",
    "warmup + constant <= total",
    "constant <= total",
    "warmup + decay <= num_train_steps",
    "max(warmup, rewarmup) + decay <= num_train_steps // cycles",
    "warmup + decay <= periods[0]",
    "warmup_steps + cooldown_steps <= total_steps",
    "warmup_steps + cooldown_steps <= decay_steps",
    "warmup_steps + round(warmdown_ratio * num_iterations) <= num_iterations",
    "warmup <= epochs * updates",
    "warmup + epochs_cooldown * updates <= epochs * updates",
    "begin_step < end_step",
    "decay_begin_step is None or decay_begin_step <= max_step",
    "freeze_last_layer_epochs == 0 or freeze_last_layer_epochs < warmup_epochs",
    "warmup + int(int(steps * cycle_length) * decay_fraction) <= int(steps * cycle_length)",
    "first < second",
)
"""Conditions on lengths, besides those that a row states: lengths fit into the run, and drops
follow one another. A condition applies to the rows that have all its options."""


# The tables of the pages.


@dataclass(frozen=True)
class Row:
    library: str
    original: str
    """The call or the options of the original."""
    curve: str
    """An expression. If it begins with a dot, it shortens the curves of the other rows."""
    requires: str
    """A condition on the arguments; "" for none."""
    past_end: str
    """What the original does past the end; "" if it stays at its last level."""
    definitions: dict[str, str]
    """The code that assigns a name: a block of the section, or a definition in the row."""

    @property
    def shortens(self) -> bool:
        return self.curve.startswith(".")


class Names(dict[str, Any]):
    """Values by name; other names get their value from the code that assigns them.

    The code runs when its name is needed, because it may use names that other rows do not have.
    """

    def __init__(self, values: dict[str, Any], definitions: dict[str, str]) -> None:
        super().__init__(values, PlateauCurve=PlateauCurve, StagedCurve=StagedCurve)
        self.definitions = definitions

    def __missing__(self, name: str) -> Any:
        exec(self.definitions[name], self)
        return self[name]


def assigned_names(code: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@cache
def read_names(condition: str) -> set[str]:
    """Return the options that a condition reads."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(condition)):
        if isinstance(node, ast.Name):
            names.add(node.id)
    return names - vars(builtins).keys()


def originals_in(text: str, code: tuple[str, ...]) -> list[str]:
    """Split a cell like "`constant`, `linear`"; with other text, it is one original."""
    if text == ", ".join(code):
        return list(code)
    return [text]


def rows_of(section: Section) -> Iterator[Row]:
    definitions: dict[str, str] = {}
    for block in section.code_in("py") + section.code_in("python"):
        for name in assigned_names(block):
            definitions[name] = block
    for first, curve, requires, past_end, _ in section.rows:
        expression, *assignments = curve.code
        definitions_of_row = dict(definitions)
        for assignment in assignments:
            for name in assigned_names(assignment):
                definitions_of_row[name] = assignment
        for original in originals_in(first.text, first.code):
            yield Row(
                section.heading,
                original,
                expression,
                requires.text,
                past_end.text,
                definitions_of_row,
            )


def all_rows() -> list[Row]:
    rows: list[Row] = []
    for page in PAGES:
        for section in sections(page):
            rows.extend(rows_of(section))
    return rows


ALL_ROWS = all_rows()
ROWS = {(row.library, row.original): row for row in ALL_ROWS if not row.shortens}
SHORTENING = {row.library: row for row in ALL_ROWS if row.shortens}


# The recorded cases.


@dataclass(frozen=True)
class RowValues:
    """Values for the names of a row, and the levels of the original."""

    library: str
    original: str
    number: int
    settings: dict[str, Any]
    levels: list[Any]
    counts: list[int] | None = None
    """The samples or tokens of each update."""
    updates: list[int] | None = None
    """Those of the levels; None for all."""
    raises: str = ""
    """The error of the original after the last level."""
    cut: bool = False
    """True if the run is shorter than its schedule."""

    def __str__(self) -> str:
        cut = "cut-" if self.cut else ""
        return f"{self.library}-{self.original}-{cut}{self.number}"

    @property
    def row(self) -> Row:
        """The row that says how the original differs."""
        if self.cut:
            return SHORTENING[self.library]
        return ROWS[self.library, self.original]

    @property
    def peak(self) -> float:
        for name in PEAKS:
            if name in self.settings:
                return self.settings[name]
        return 1.0

    @property
    def counts_before_an_update(self) -> bool:
        """True if the tokens of an update move the curve before the update."""
        return self.library == "OLMo-core"

    @property
    def steps(self) -> np.ndarray:
        """The step of the curve at each level."""
        if self.counts is None:
            return np.array(self.updates or range(len(self.levels)))
        ends = np.cumsum([0, *self.counts]) // self.settings.get("length", 1)
        if self.counts_before_an_update:
            return ends[1:]
        return ends[:-1]

    def fits(self) -> bool:
        """Return True if the lengths fit together."""
        options = self.settings.keys()
        conditions = [condition for condition in FITS if read_names(condition) <= options]
        return all(eval(condition, dict(self.settings)) for condition in conditions)

    def is_allowed(self) -> bool:
        """Return True if the values satisfy what the rows require."""
        rows = (ROWS[self.library, self.original], self.row)
        required = [row.requires for row in rows if row.requires]
        return all(eval(condition, self.names()) for condition in required)

    def names(self) -> Names:
        """Return the values of all names in the row of the original."""
        values = dict(self.settings)
        if self.counts is not None:
            values = in_samples(values)
        # nanotron's groups; those of others have no effect.
        lr = values.get("learning_rate", 1.0)
        values["optimizer"] = SimpleNamespace(param_groups=[{"lr": 0.5 * lr}, {"lr": lr}])
        return Names(values, ROWS[self.library, self.original].definitions)

    def curves(self) -> list[Curve]:
        """Build the curve of each parameter group, as the rows say."""
        expression = ROWS[self.library, self.original].curve
        if self.cut:
            expression += self.row.curve
        curves = eval(expression, self.names())
        if isinstance(curves, list):
            return cast("list[Curve]", curves)
        return [curves]


def in_samples(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values with lengths in samples, as Megatron-LM and OLMo-core count them."""
    batch = settings["batch"]
    converted = dict(settings)
    for name in ("total", "warmup", "decay", "stop"):
        if name in settings:
            converted[name] = batch * settings[name]
    if "periods" in settings:
        converted["periods"] = [batch * period for period in settings["periods"]]
    return converted


def recorded_cases() -> list[RowValues]:
    cases: list[RowValues] = []
    _, lines = read_record()
    for line in lines:
        original = dict(line)
        for number, case in enumerate(original.pop("cases")):
            cases.append(RowValues(number=number, **original, **case))
    return cases


RECORDED = recorded_cases()
(ROUNDS_PERCENTAGES,) = [case for case in RECORDED if case.settings.get("plateaus") == [[32.3, 10]]]
CASES = [case for case in RECORDED if case is not ROUNDS_PERCENTAGES]
