"""The rows of docs/other_schedulers.md, and their recorded runs."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from docs.peers.record import read_record
from support.docs.pages import ROOT, Section, sections

from plateau_jax import Curve, PlateauCurve, StagedCurve

PAGE = ROOT / "docs" / "other_schedulers.md"
PEAKS = ("peak", "learning_rate", "lr")
"""The names of the peak in different libraries."""

# The tables of the pages.


@dataclass(frozen=True)
class Row:
    library: str
    original: str
    """The call or the options of the original."""
    curve: str
    requires: str
    """A condition on the arguments; "" for none."""
    past_end: str
    """What the original does past the end; "" if it stays at its last level."""
    definitions: dict[str, str]
    """The code that assigns a name: a block of the section, or a definition in the row."""


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
    for section in sections(PAGE):
        rows.extend(rows_of(section))
    return rows


ALL_ROWS = all_rows()
ROWS = {(row.library, row.original): row for row in ALL_ROWS}


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

    def __str__(self) -> str:
        return f"{self.library}-{self.original}-{self.number}"

    @property
    def row(self) -> Row:
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

    def is_allowed(self) -> bool:
        """Return True if the values satisfy what the row requires."""
        if not self.row.requires:
            return True
        return bool(eval(self.row.requires, self.names()))

    def names(self) -> Names:
        """Return the values of all names in the row of the original."""
        values = dict(self.settings)
        if self.counts is not None:
            values = in_samples(values)
        return Names(values, self.row.definitions)

    def curve(self) -> Curve:
        """Build the curve as the row says."""
        return eval(self.row.curve, self.names())


def in_samples(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values with lengths in samples, as Megatron-LM and OLMo-core count them."""
    batch = settings["batch"]
    converted = dict(settings)
    for name in ("total", "warmup", "decay"):
        if name in settings:
            converted[name] = batch * settings[name]
    return converted


def recorded_cases() -> list[RowValues]:
    cases: list[RowValues] = []
    _, lines = read_record()
    for line in lines:
        original = dict(line)
        for number, case in enumerate(original.pop("cases")):
            cases.append(RowValues(number=number, **original, **case))
    return cases


CASES = recorded_cases()
