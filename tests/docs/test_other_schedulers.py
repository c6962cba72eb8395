"""The curve of each row gives the recorded learning rates of the original scheduler.

A learning rate here has three roundings to float32: of the peak, of the multiplier and of their
product. Originals that use optax or `jax.numpy` compute in float32, with errors of up to 4·2⁻²⁴ of
the peak; the others compute in float64.
"""

import ast
import builtins
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.docs.pages import ROOT, Section, sections
from support.peers.record import INSTALLED, levels, read_record, record
from support.schedulers.runs import lrs_of, optimizer_with
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from plateau_jax import Curve, PlateauCurve, StagedCurve
from torch_bridge import DataClock, lambda_lr

pytestmark = [
    pytest.mark.slow,
    # Short runs and steps past the end warn; these warnings have their own tests.
    pytest.mark.filterwarnings("ignore:plateaus:plateau_jax.CurveWarning"),
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
    pytest.mark.filterwarnings("ignore:stages have levels:plateau_jax.CurveWarning"),
    pytest.mark.filterwarnings("ignore:(min|init)_lr_ratio:plateau_jax.CurveWarning"),
    # The scheduler goes before the optimizer where OLMo-core's does, as the page says.
    pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step:UserWarning"),
]

PAGES = (ROOT / "docs" / "other_schedulers.md", ROOT / "docs" / "trainer_schedules.md")
ROUNDED = 3 * 2.0**-24
IN_FLOAT32 = (
    "optax",
    "MaxText",
    "levanter",
    "openpi",
    "big_vision",
    "vmoe",
    "scenic",
    "vit_jax",
    "t5x",
    "flax examples",
    "axlearn",
)
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

    Each code runs when it is needed, since many use names that other rows do not have.
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
    """Whether the run is shorter than its schedule."""

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
        """Whether the tokens of an update move the curve before it."""
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
        """Return whether the lengths fit together."""
        options = self.settings.keys()
        conditions = [condition for condition in FITS if read_names(condition) <= options]
        return all(eval(condition, dict(self.settings)) for condition in conditions)

    def is_allowed(self) -> bool:
        """Return whether the values satisfy what the rows require."""
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
            return curves
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


SOURCES, LINES = read_record()


def recorded_cases() -> list[RowValues]:
    cases: list[RowValues] = []
    for line in LINES:
        original = dict(line)
        for number, case in enumerate(original.pop("cases")):
            cases.append(RowValues(number=number, **original, **case))
    return cases


RECORDED = recorded_cases()
(ROUNDS_PERCENTAGES,) = [case for case in RECORDED if case.settings.get("plateaus") == [[32.3, 10]]]
CASES = [case for case in RECORDED if case is not ROUNDS_PERCENTAGES]


# The tests.


def levels_of_curve(case: RowValues, curve: Curve) -> np.ndarray:
    """Return the multiplier of each update, or the value of an option that follows the curve."""
    if "highest_value" in case.row.definitions:
        return curve.learning_rate(case.steps, case.names()["highest_value"])
    if case.counts is not None:
        return levels_of_scheduler(case, curve)
    return curve.learning_rate(case.steps, case.peak) / case.peak


def levels_of_scheduler(case: RowValues, curve: Curve) -> np.ndarray:
    """Step in the order of the pages."""
    optimizer = optimizer_with([case.peak])
    lrs: list[float] = []
    if case.counts_before_an_update:
        scheduler = lambda_lr(optimizer, curve, clock=DataClock(case.settings["length"]))
        for count in case.counts:
            scheduler.step(count=count)
            lrs += lrs_of(optimizer)
            optimizer.step()
    else:
        scheduler = lambda_lr(optimizer, curve, clock=DataClock(1))
        for count in case.counts:
            lrs += lrs_of(optimizer)
            optimizer.step()
            scheduler.step(count=count)
    return np.array(lrs) / case.peak


def error_of(case: RowValues) -> float:
    """Return the error of an original that computes in float32."""
    if case.library not in IN_FLOAT32:
        return 0.0
    settings = case.settings
    roundings = 4
    if case.library == "axlearn" and case.original == "exponential":
        # It rounds the logarithm of the learning rate.
        roundings += abs(math.log(settings["end_value"]))
        return roundings * 2.0**-24
    # optax rounds the base of an exponential or a power first, which multiplies the error.
    if "exponential" in case.original:
        roundings += settings["total"] / settings["period"]
    if "polynomial" in case.original:
        roundings += settings["power"]
    return roundings * 2.0**-24


def assert_recorded(case: RowValues) -> None:
    assert case.is_allowed(), "the row excludes these arguments"
    curves = case.curves()
    computed = np.stack([levels_of_curve(case, curve) for curve in curves], axis=1)
    recorded = np.array(case.levels).reshape(computed.shape)
    end = curves[0].total_steps
    past_end = case.row.past_end or "stays at its last level"
    claim = f"the curve has {end} steps; past the end, the original {past_end}"
    if case.row.past_end:
        if case.raises == "ValueError":
            # The last update of OneCycleLR, which raises after it, is at the curve's last level.
            end += 1
        is_compared = case.steps < end
        computed = computed[is_compared]
        recorded = recorded[is_compared]
    tolerance = error_of(case) + 2.0**-40
    np.testing.assert_allclose(computed, recorded, rtol=ROUNDED, atol=tolerance, err_msg=claim)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_curves_give_the_recorded_learning_rates(case):
    assert_recorded(case)


# Short lengths.

LENGTHS = frozenset(
    (
        "batches",
        "begin_step",
        "constant",
        "cooldown_steps",
        "cycle_len",
        "decay",
        "decay_begin_step",
        "decay_steps",
        "end_step",
        "epochs",
        "epochs_cooldown",
        "first",
        "freeze_last_layer_epochs",
        "hold",
        "lr_decay_iters",
        "lr_decay_starting_step",
        "lr_decay_steps",
        "lr_warmup_steps",
        "max_iters",
        "max_step",
        "max_steps",
        "num_epochs",
        "num_iterations",
        "num_train_steps",
        "period",
        "rewarmup",
        "second",
        "step_offset",
        "steps",
        "steps_per_cycle",
        "steps_per_epoch",
        "stop",
        "t_0",
        "timescale",
        "total",
        "total_steps",
        "updates",
        "warmup",
        "warmup_batches",
        "warmup_epochs",
        "warmup_iters",
        "warmup_steps",
    )
)
"""Options that count updates, samples or epochs."""

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
follow one another. Each holds for the rows that have all its options."""


def short_cases(row: Row) -> Iterator[RowValues]:
    """Yield the cases of a row with every combination of short lengths that the row allows."""
    drawn: list[dict[str, Any]] = []
    for case in RECORDED:
        if case.row is not row:
            continue
        lengths: list[str] = []
        for name in sorted(LENGTHS & case.settings.keys()):
            if isinstance(case.settings[name], int):
                lengths.append(name)
        options = {name: case.settings[name] for name in case.settings if name not in lengths}
        if options in drawn:
            continue
        drawn.append(options)
        # With four lengths and more, the combinations would take seconds.
        longest = 5 if len(lengths) <= 3 else 3
        for values in product(range(longest + 1), repeat=len(lengths)):
            short = dict(zip(lengths, values, strict=True))
            short_case = replace(case, settings=options | short, levels=[], raises="")
            if short_case.fits() and short_case.is_allowed():
                yield short_case


LONG = {"Muon's momentum"}
"""Originals that have hundreds of updates in their formula."""


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: f"{row.library}-{row.original}")
def test_a_curve_exists_for_all_lengths_that_a_row_allows(row):
    built = 0
    for case in short_cases(row):
        try:
            case.curves()
        except Exception as error:
            error.add_note(f"the row allows {case.settings}")
            raise
        built += 1
    assert built or row.original in LONG


def rows_of_installed_libraries() -> list[Row]:
    return [row for row in ROWS.values() if row.library in INSTALLED]


@pytest.mark.parametrize(
    "row", rows_of_installed_libraries(), ids=lambda row: f"{row.library}-{row.original}"
)
def test_short_curves_give_the_learning_rates_of_the_original(row):
    for case in short_cases(row):
        recorded: dict[str, Any] = {"levels": [0.0] * 14}
        record(recorded, levels(row.library, row.original, case.settings))
        assert_recorded(replace(case, **recorded))


def cases_with_a_constant_batch() -> list[RowValues]:
    """Return those of Megatron-LM for which a step of the curve may be an update."""
    cases: list[RowValues] = []
    for case in CASES:
        if case.library != "Megatron-LM" or len(set(case.counts)) > 1:
            continue
        # The exception that the page names.
        if case.original == "inverse-square-root" and not case.settings["warmup"]:
            continue
        cases.append(replace(case, counts=None))
    return cases


@pytest.mark.parametrize("case", cases_with_a_constant_batch(), ids=str)
def test_a_step_may_be_an_update(case):
    """For a constant batch size, as the page says."""
    assert_recorded(case)


def differs_past_the_end(case: RowValues) -> bool:
    """Return whether the original does not stay at the last level of the curve."""
    if case.raises:
        return True
    curve = case.curves()[0]
    final_level = levels_of_curve(case, curve)[-1]
    past_end = np.array(case.levels)[case.steps >= curve.total_steps]
    return bool((np.abs(past_end - final_level) > 1e-6).any())


def rows_with_a_note_past_the_end() -> list[Row]:
    return [row for row in ALL_ROWS if row.past_end]


@pytest.mark.parametrize("row", rows_with_a_note_past_the_end(), ids=lambda row: row.original)
def test_originals_differ_past_the_end_if_the_row_says_so(row):
    """Without such a note, the curve is compared past the end too."""
    cases = [case for case in CASES if case.row is row]
    assert any(differs_past_the_end(case) for case in cases), "all stay at the last level"


def test_record_has_every_row_and_nothing_else():
    """A change of a call calls for a new record too."""
    recorded = {(line["library"], line["original"]) for line in LINES if line["cases"]}
    assert recorded == ROWS.keys()
    assert {line["library"] for line in LINES if line.get("cut")} == SHORTENING.keys()
    assert {line["library"] for line in LINES} <= SOURCES.keys()


def sentences_by_library() -> dict[str, str]:
    """Return the sentences of each library's section, after those of its page's introduction."""
    by_library: dict[str, str] = {}
    for page in PAGES:
        introduction, *rest = sections(page)
        for section in rest:
            by_library[section.heading] = introduction.sentences + section.sentences
    return by_library


SENTENCES = sentences_by_library()


@pytest.mark.parametrize("library", sorted({library for library, _ in ROWS}))
def test_pages_cite_the_source_of_the_record(library):
    source = SOURCES[library]
    if "@" in source:
        commit = source.partition("@")[2]
        assert f"commit {commit[:7]}" in SENTENCES[library]
    else:
        release = source.partition("==")[2].removesuffix(".0")
        assert f"{library} {release}" in SENTENCES[library]


def test_original_rounds_percentages_in_floating_point():
    updates = ROUNDS_PERCENTAGES.updates
    recorded = dict(zip(updates, ROUNDS_PERCENTAGES.levels, strict=True))
    assert recorded[321] != recorded[322] == recorded[323]
    (curve,) = ROUNDS_PERCENTAGES.curves()
    assert curve.flat_starts == (323,)


def test_min_lr_of_transformers_scales_by_group():
    """As the row says, the peak of the curve's ratio is the `lr` given to the optimizer."""
    original_optimizer = optimizer_with([0.1, 0.5, 1.0], lr=0.5)
    original = get_cosine_with_min_lr_schedule_with_warmup(original_optimizer, 1, 3, min_lr=0.1)
    optimizer = optimizer_with([0.1, 0.5, 1.0], lr=0.5)
    scheduler = lambda_lr(optimizer, PlateauCurve(3, warmup_steps=1, min_lr_ratio=0.1 / 0.5))
    for _ in range(3):
        original_optimizer.step()
        original.step()
        optimizer.step()
        scheduler.step()
        np.testing.assert_allclose(lrs_of(optimizer), lrs_of(original_optimizer), rtol=ROUNDED)
