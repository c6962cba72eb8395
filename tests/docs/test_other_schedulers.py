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
        if isinstance(curves, list):
            return curves
        return [curves]


def sections_by_library() -> dict[str, tuple[str, str]]:
    """Return the introduction of its page, and its section, by the heading of each section."""
    by_library: dict[str, tuple[str, str]] = {}
    for page in PAGES:
        introduction, *sections = page.read_text(encoding="utf-8").split("\n## ")
        for section in sections:
            heading = section.partition("\n")[0]
            by_library[heading] = (introduction, section)
    return by_library


def rows() -> Iterator[Row]:
    """Yield a row for each original: several share one if they are separated by commas."""
    for library, (_, section) in sections_by_library().items():
        shared: dict[str, str] = {}
        for block in re.findall(r"```py(?:thon)?\n(.+?)```", section, re.DOTALL):
            for name in _assigned(block):
                shared[name] = block
        text = re.sub(r"```.+?```", "", section, flags=re.DOTALL)
        shared |= _definitions(_ROW.sub("", text))
        for first, curve, differences in _ROW.findall(text):
            code = shared | _definitions(curve)
            expression = next(span for span in _spans(curve) if not _definitions(f"`{span}`"))
            for original in _originals(first):
                yield Row(library, original, expression, differences, code)


def _originals(cell: str) -> list[str]:
    """Split a cell like "`constant`, `linear`"; if there is text between, it is one original."""
    if re.fullmatch(r"`[^`]+`(, `[^`]+`)*", cell):
        return _spans(cell)
    return [cell.replace("`", "")]


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


def _spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def _definitions(text: str) -> dict[str, str]:
    definitions = [span for span in _spans(text) if re.match(r"\w+ = ", span)]
    return {definition.split(" = ")[0]: definition for definition in definitions}


def _assigned(block: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


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


def recorded_cases():
    for line in LINES:
        for number, case in enumerate(line["cases"]):
            yield {"cut": False, **line, **case, "number": number}


RECORDED = list(recorded_cases())
(DIFFERING,) = [case for case in RECORDED if case["settings"].get("plateaus") == [[32.3, 10]]]
CASES = [case for case in RECORDED if case is not DIFFERING]


def name(case):
    cut = "cut-" if case["cut"] else ""
    return f"{case['library']}-{case['original']}-{cut}{case['number']}"


def row_of(case):
    """Return the row with the differences of a case."""
    if case["cut"]:
        return CUTS[case["library"]]
    return ROWS[case["library"], case["original"]]


def prepare(case):
    """Return the row with the differences of a case, the values of its names, and its curves."""
    values = dict(case["settings"])
    if case.get("counts"):
        values = in_samples(values)
    # nanotron's groups; those of others have no effect.
    lr = values.get("learning_rate", 1.0)
    groups = [{"lr": 0.5 * lr}, {"lr": lr}]
    values["optimizer"] = SimpleNamespace(param_groups=groups)
    row = ROWS[case["library"], case["original"]]
    described = row_of(case)
    cut = described.expression if described.is_cut else ""
    return described, values, row.curves(values, cut)


def counts_before_an_update(case):
    """Return whether the tokens of an update move the curve before it, as in OLMo-core."""
    return case["library"] == "OLMo-core"


def steps_of(case):
    if not case.get("counts"):
        return np.array(case.get("updates", range(len(case["levels"]))))
    ends = np.cumsum([0, *case["counts"]]) // case["settings"].get("length", 1)
    if counts_before_an_update(case):
        return ends[1:]
    return ends[:-1]


def peak_of(settings):
    for peak in PEAKS:
        if peak in settings:
            return settings[peak]
    return 1.0


def levels(curve, case, highest):
    """Return the multiplier of each update, or the value of an option that follows the curve."""
    if highest:
        return curve.learning_rate(steps_of(case), highest)
    peak = peak_of(case["settings"])
    if case.get("counts"):
        return levels_of_scheduler(curve, case, peak)
    return curve.learning_rate(steps_of(case), peak) / peak


def levels_of_scheduler(curve, case, peak):
    """Step in the order of the pages."""
    optimizer = optimizer_with([peak])
    lrs = []
    if counts_before_an_update(case):
        scheduler = lambda_lr(optimizer, curve, clock=DataClock(case["settings"]["length"]))
        for count in case["counts"]:
            scheduler.step(count=count)
            lrs += lrs_of(optimizer)
            optimizer.step()
    else:
        scheduler = lambda_lr(optimizer, curve, clock=DataClock(1))
        for count in case["counts"]:
            lrs += lrs_of(optimizer)
            optimizer.step()
            scheduler.step(count=count)
    return np.array(lrs) / peak


def error_of(case):
    """Return the error of an original that computes in float32."""
    settings = case["settings"]
    original = case["original"]
    if case["library"] not in IN_FLOAT32:
        return 0.0
    roundings = 4
    if case["library"] == "axlearn" and original == "exponential":
        # It rounds the logarithm of the learning rate.
        roundings += abs(math.log(settings["end_value"]))
        return roundings * 2.0**-24
    # optax rounds the base of an exponential or a power first, which multiplies the error.
    if "exponential" in original:
        roundings += settings["total"] / settings["period"]
    if "polynomial" in original:
        roundings += settings["power"]
    return roundings * 2.0**-24


def past_the_end(row, values):
    """Return whether the row says that the original differs there."""
    stated = re.search("past the end(?: if `(.+?)`)?", row.differences)
    if stated is None:
        return False
    if stated[1] is None:
        return True
    return bool(row.evaluate(stated[1], values))


def assert_recorded(case):
    row, values, curves = prepare(case)
    for limit in re.findall(r"\bfor `(.+?)`", row.differences):
        assert row.evaluate(limit, values)
    highest = None
    follows = re.search("`(?:momentum|weight_decay)=(.+?)`", row.differences)
    if follows:
        highest = row.evaluate(follows[1], values)
    after = np.stack([levels(curve, case, highest) for curve in curves], axis=1)
    before = np.array(case["levels"]).reshape(len(after), -1)
    if past_the_end(row, values):
        end = curves[0].total_steps
        if case.get("raises") == "ValueError":
            # The last update of OneCycleLR, which raises after it, is at the curve's last level.
            end += 1
        promised = steps_of(case) < max(end, values.get("stop", 0))
        before = before[promised]
        after = after[promised]
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
    is_exception = case["original"] == "inverse-square-root" and not case["settings"]["warmup"]
    if not is_exception:  # the page names it
        assert_recorded({**case, "counts": None})


@pytest.mark.parametrize("row", [*ROWS.values(), *CUTS.values()], ids=lambda row: row.original)
def test_originals_differ_past_the_end_where_the_row_says(row):
    differing = []
    for case in CASES:
        if row_of(case) is not row:
            continue
        _, values, curves = prepare(case)
        if past_the_end(row, values):
            past = steps_of(case) >= curves[0].total_steps
            final_level = levels(curves[0], case, None)[-1]
            distances = np.abs(np.array(case["levels"])[past] - final_level)
            if "raises" in case or (distances > 1e-6).any():
                differing.append(name(case))
    assert bool(differing) == ("past the end" in row.differences), differing


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
    original_optimizer = optimizer_with([0.1, 0.5, 1.0], lr=0.5)
    original = get_cosine_with_min_lr_schedule_with_warmup(original_optimizer, 1, 3, min_lr=0.1)
    optimizer = optimizer_with([0.1, 0.5, 1.0], lr=0.5)
    scheduler = lambda_lr(optimizer, PlateauCurve(3, warmup_steps=1, min_lr_ratio=0.1 / 0.5))
    for _ in range(3):
        advance(original_optimizer, original, 1)
        advance(optimizer, scheduler, 1)
        np.testing.assert_allclose(lrs_of(optimizer), lrs_of(original_optimizer), rtol=ROUNDED)
