"""The curve of each row gives the recorded learning rates of the original scheduler.

A learning rate here has three roundings to float32: of the peak, of the multiplier and of their
product. Originals that use optax or `jax.numpy` compute in float32, with errors of up to 4·2⁻²⁴ of
the peak; the others compute in float64.
"""

import ast
import math
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.docs.pages import ROOT
from support.peers.record import read_record
from support.schedulers.runs import advance, lrs_of, optimizer_with
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from plateau_jax import Curve, PlateauCurve, StagedCurve
from torch_bridge import DataClock, lambda_lr

# The tables of the pages on other libraries' schedules: a row has an original, and the same as a
# curve.

PAGES = (ROOT / "docs" / "other_schedulers.md", ROOT / "docs" / "trainer_schedules.md")

_ROW = re.compile(r"^\| (.+?) \| (`.+?) \| (?:(.+) )?\|$", re.MULTILINE)
_LENGTHS = ("total", "warmup", "decay", "stop", "periods")


class Names(dict[str, Any]):
    """Values by name. What has none is computed when it is needed, by the code that assigns it."""

    def __init__(self, code: dict[str, str], values: dict[str, Any]) -> None:
        super().__init__(values, PlateauCurve=PlateauCurve, StagedCurve=StagedCurve)
        self._code = code

    def __missing__(self, name: str) -> Any:
        exec(self._code[name], self)
        return self[name]


class Row(NamedTuple):
    library: str
    original: str
    """The call or the options of the original, without backticks."""
    expression: str
    differences: str
    code: dict[str, str]
    """The code that assigns a name: a block, or `name = …` in the section's text or the row."""

    @property
    def is_cut(self) -> bool:
        """Whether the row says how to shorten the curves of the others."""
        return self.expression.startswith(".")

    def evaluate(self, text: str, settings: dict[str, Any]) -> Any:
        return eval(text, Names(self.code, settings))

    def curves(self, settings: dict[str, Any], cut: str = "") -> list[Curve]:
        """Build the curve of each parameter group, under these values of the names."""
        curves: Curve | list[Curve] = self.evaluate(self.expression + cut, settings)
        return curves if isinstance(curves, list) else [curves]


def sections_by_library() -> dict[str, tuple[str, str]]:
    """Return the introduction of its page, and its section, by the heading of each section."""
    by_library: dict[str, tuple[str, str]] = {}
    for page in PAGES:
        introduction, *sections = page.read_text(encoding="utf-8").split("\n## ")
        by_library |= {section.partition("\n")[0]: (introduction, section) for section in sections}
    return by_library


def rows() -> Iterator[Row]:
    """Yield a row for each original: several share one if they are separated by commas."""
    for library, (_, section) in sections_by_library().items():
        blocks = re.findall(r"```py(?:thon)?\n(.+?)```", section, re.DOTALL)
        text = re.sub(r"```.+?```", "", section, flags=re.DOTALL)
        table = _ROW.findall(text)
        shared = {name: block for block in blocks for name in _assigned(block)}
        shared |= _definitions(_ROW.sub("", text))
        for first, curve, differences in table:
            expression = next(span for span in _spans(curve) if not _definitions(f"`{span}`"))
            several = re.fullmatch(r"`[^`]+`(, `[^`]+`)*", first)
            for original in _spans(first) if several else [first.replace("`", "")]:
                yield Row(library, original, expression, differences, shared | _definitions(curve))


def in_samples(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values with lengths in samples, as Megatron-LM and OLMo-core count them."""
    batch = settings["batch"]
    return settings | {
        name: [batch * period for period in length] if name == "periods" else batch * length
        for name, length in settings.items()
        if name in _LENGTHS
    }


def _spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def _definitions(text: str) -> dict[str, str]:
    return {span.split(" = ")[0]: span for span in _spans(text) if re.match(r"\w+ = ", span)}


def _assigned(block: str) -> set[str]:
    names = (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


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

ROWS = {(row.library, row.original): row for row in rows() if not row.is_cut}
CUTS = {row.library: row for row in rows() if row.is_cut}
SECTIONS = sections_by_library()
PEAKS = ("peak", "peak_lr", "peak_value", "learning_rate", "lr", "base_lr", "begin_value")
IN_FLOAT32 = ("optax", "MaxText", "levanter", "openpi", "big_vision", "vmoe", "axlearn")
ROUNDED = 3 * 2.0**-24
SOURCES, LINES = read_record()
RECORDED = [
    {"cut": False, **line, **case, "number": number}
    for line in LINES
    for number, case in enumerate(line["cases"])
]
(DIFFERING,) = (case for case in RECORDED if case["settings"].get("plateaus") == [[32.3, 10]])
CASES = [case for case in RECORDED if case is not DIFFERING]


def name(case):
    return f"{case['library']}-{case['original']}-{'cut-' * case['cut']}{case['number']}"


def prepare(case):
    """Return the row with the differences of a case, the values of its names, and its curves."""
    row, values = ROWS[case["library"], case["original"]], case["settings"]
    if case.get("counts"):
        values = in_samples(values)
    # nanotron's groups; those of others have no effect.
    groups = [{"lr": values.get("learning_rate", 1.0) * factor} for factor in (0.5, 1.0)]
    values = values | {"optimizer": SimpleNamespace(param_groups=groups)}
    described = CUTS[case["library"]] if case["cut"] else row
    return described, values, row.curves(values, described.expression if case["cut"] else "")


def steps_of(case):
    if not case.get("counts"):
        return np.array(case.get("updates", range(len(case["levels"]))))
    ends = np.cumsum([0, *case["counts"]]) // case["settings"].get("length", 1)
    return ends[1:] if case["library"] == "OLMo-core" else ends[:-1]


def levels(curve, case, highest):
    """Return the multiplier of each update, or the value of an option that follows the curve."""
    if highest:
        return curve.learning_rate(steps_of(case), highest)
    peak = next((case["settings"][name] for name in PEAKS if name in case["settings"]), 1.0)
    if not case.get("counts"):
        return curve.learning_rate(steps_of(case), peak) / peak
    # In the order of the pages: OLMo-core counts an update before it.
    optimizer, is_first, lrs = optimizer_with([peak]), case["library"] == "OLMo-core", []
    unit = case["settings"]["length"] if is_first else 1
    scheduler = lambda_lr(optimizer, curve, clock=DataClock(unit))
    for count in case["counts"]:
        if is_first:
            scheduler.step(count=count)
        lrs += lrs_of(optimizer)
        optimizer.step()
        if not is_first:
            scheduler.step(count=count)
    return np.array(lrs) / peak


def error_of(case):
    """Return the error of an original that computes in float32."""
    if case["library"] not in IN_FLOAT32:
        return 0.0
    settings, original = case["settings"], case["original"]
    if (case["library"], original) == ("axlearn", "exponential"):
        # It rounds the logarithm of the learning rate.
        return (4 + abs(math.log(settings["end_value"]))) * 2.0**-24
    # optax rounds the base of an exponential or a power first, which multiplies the error.
    power = settings["total"] / settings["period"] if "exponential" in original else 0
    power += settings["power"] if "polynomial" in original else 0
    return (4 + power) * 2.0**-24


def past_the_end(row, values):
    """Return whether the row says that the original differs there."""
    stated = re.search("past the end(?: if `(.+?)`)?", row.differences)
    return bool(stated) and (not stated[1] or row.evaluate(stated[1], values))


def assert_recorded(case):
    row, values, curves = prepare(case)
    assert all(
        row.evaluate(limit, values) for limit in re.findall(r"\bfor `(.+?)`", row.differences)
    )
    highest = re.search("`(?:momentum|weight_decay)=(.+?)`", row.differences)
    highest = row.evaluate(highest[1], values) if highest else None
    after = np.stack([levels(curve, case, highest) for curve in curves], axis=1)
    before = np.array(case["levels"]).reshape(len(after), -1)
    if past_the_end(row, values):
        # The last update of OneCycleLR, which raises after it, is at the last level of the curve.
        end = max(
            curves[0].total_steps + (case.get("raises") == "ValueError"), values.get("stop", 0)
        )
        promised = steps_of(case) < end
        before, after = before[promised], after[promised]
    np.testing.assert_allclose(after, before, rtol=ROUNDED, atol=error_of(case) + 2.0**-40)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_curves_give_the_recorded_learning_rates(case):
    assert_recorded(case)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["library"] == "Megatron-LM" and len({*case["counts"]}) == 1],
    ids=name,
)
def test_a_step_may_be_an_update(case):
    """For a constant batch size, as the page says."""
    if case["original"] == "inverse-square-root" and not case["settings"]["warmup"]:
        return  # the exception that the page names
    assert_recorded(case | {"counts": None})


@pytest.mark.parametrize("row", [*ROWS.values(), *CUTS.values()], ids=lambda row: row.original)
def test_originals_differ_past_the_end_where_the_row_says(row):
    differs = []
    for case in CASES:
        is_its = row.is_cut if case["cut"] else case["original"] == row.original
        if case["library"] == row.library and is_its:
            _, values, curves = prepare(case)
            past = steps_of(case) >= curves[0].total_steps
            final = levels(curves[0], case, None)[-1]
            is_off = np.abs(np.array(case["levels"])[past] - final) > 1e-6
            if past_the_end(row, values) and ("raises" in case or is_off.any()):
                differs.append(name(case))
    assert bool(differs) == ("past the end" in row.differences), differs


def test_record_has_every_row_and_nothing_else():
    """A change of a call calls for a new record too."""
    recorded = {(line["library"], line["original"]) for line in LINES if line["cases"]}
    assert recorded == ROWS.keys()
    assert {line["library"] for line in LINES if line.get("cut")} == CUTS.keys()
    assert {line["library"] for line in LINES} <= SOURCES.keys()


@pytest.mark.parametrize("library", dict.fromkeys(library for library, _ in ROWS))
def test_pages_cite_the_source_of_the_record(library):
    """In the introduction of the page or of the section."""
    version = re.split("==|@", SOURCES[library])[1]
    release = version.removesuffix(".0")
    commit = f"commit {version[:7]}"
    cited = rf"\b{library}(\]\(\S+\))? ([\d.]+, )?({release}|{commit})\b"
    assert re.search(cited, "\n".join(SECTIONS[library]))


def test_original_rounds_percentages_in_floating_point():
    before = dict(zip(DIFFERING["updates"], DIFFERING["levels"], strict=True))
    assert [before[step] == before[step + 1] for step in (321, 322)] == [False, True]
    _, _, (curve,) = prepare(DIFFERING)
    assert curve.flat_starts == (323,)


def test_min_lr_of_transformers_scales_by_group():
    """As the row says, the peak of the curve's ratio is the `lr` given to the optimizer."""
    before, after = (optimizer_with([0.1, 0.5, 1.0], lr=0.5) for _ in range(2))
    theirs = get_cosine_with_min_lr_schedule_with_warmup(before, 1, 3, min_lr=0.1)
    ours = lambda_lr(after, PlateauCurve(3, warmup_steps=1, min_lr_ratio=0.1 / 0.5))
    for _ in range(3):
        advance(before, theirs, 1)
        advance(after, ours, 1)
        np.testing.assert_allclose(lrs_of(after), lrs_of(before), rtol=ROUNDED)
