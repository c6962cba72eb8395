"""docs/other_schedulers/: the block "after" gives the learning rates that its original was recorded with.

`support.peers.record` ran the originals. Rounding to float32 costs "after" up to 2⁻²⁴ of the peak and 2⁻²⁴ of
the multiplier; in JAX, which rounds their product too, another 2⁻²⁴. Originals that use optax or `jax.numpy`
compute in float32, with errors of up to 4·2⁻²⁴ of the peak; the others compute in float64.
"""

import inspect
import re
from collections import defaultdict

import numpy as np
import optax
import pytest
from support.docs.other_schedulers import (
    FOLDER,
    FOLLOWED,
    INDEX,
    PAGES,
    introduction,
    levels,
    page_settings,
    read_pairs,
    run,
)
from support.docs.pages import sections
from support.peers.record import read_record
from support.schedulers.runs import advance, lrs_of, optimizer_with
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from plateau_jax import PlateauCurve
from torch_bridge import get_cosine_plateau_schedule_with_warmup

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

PAIRS = {pair.heading: pair for pair in read_pairs()}
ROUNDED = 3 * 2.0**-24
ROUNDED_PERCENTAGE = "CosinePlateauScheduler, 32.3 %"  # where original and curve differ
SOURCES, SECTIONS = read_record()
CASES = [
    {**section, **case, "number": number}
    for section in SECTIONS
    for number, case in enumerate(section["cases"])
]


def name(case):
    return f"{case['section']}-{case['number']}"


def assert_recorded(after, case, promised=slice(None)):
    """Compare the levels of all updates, or of those for which the page promises that they are equal."""
    before = np.array(case["levels"]).reshape(len(case["levels"]), -1)
    before, after = np.broadcast_arrays(before[promised], after[promised])
    roundings, power = 0, 0
    if case["page"] in ("optax", "maxtext", "levanter"):
        # optax rounds the base of an exponential or a power first, which multiplies the error.
        row = case["settings"]
        power = row["total"] / row["period"] if "exponential" in case["section"] else 0
        power += row["power"] if "polynomial" in case["section"] else 0
        roundings = (4 + power) * 2.0**-24
    np.testing.assert_allclose(after, before, rtol=ROUNDED, atol=roundings + 2.0**-40)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["section"] in PAIRS.keys() - {ROUNDED_PERCENTAGE}], ids=name
)
def test_after_gives_the_recorded_learning_rates(case):
    pair, names = PAIRS[case["section"]], run(PAIRS[case["section"]], case["settings"])
    after, before = levels(names, case), np.array(case["levels"])
    curves = names.get("curves") or [names.get("curve")]
    end = curves[-1].total_steps if curves[-1] else case["settings"].get("total", len(before))
    end -= "last_epoch=0" in pair.after  # one update ahead
    begins = np.cumsum([0, *case["counts"][:-1]]) if "counts" in case else updates_of(case)
    begins = np.array(begins)[: len(before)]
    promised = np.full(len(before), True)
    if pair.past_the_end or ("if there is a decay" in pair.text and not case["settings"]["decay"]):
        promised = begins < end + ("raises" in pair.past_the_end)
    assert "including past the end" not in pair.text or begins[-1] >= end
    assert_recorded(after, case, promised)


def updates_of(case):
    return case.get("updates", range(len(case["levels"])))


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["page"] == "megatron_lm" and len({*case["counts"]}) == 1],
    ids=name,
)
def test_a_step_may_be_an_update(case):
    """For a constant batch size, as the page says."""
    pair, settings = PAIRS[case["section"]], case["settings"]
    if "inverse" in pair.heading and not settings["warmup"]:
        return  # the exception that the page names
    after = pair.after.replace("batch * ", "").replace(", unit=1", "")
    names = run(pair._replace(after=after), settings)
    length = settings["stop"] if "cut" in pair.heading else settings["total"]
    assert_recorded(levels(names, case | {"counts": None}), case, slice(length))


def test_record_has_every_section_and_nothing_else():
    """A change of a block "before" calls for a new record too."""
    recorded = {(section["section"], section["before"]) for section in SECTIONS if section["cases"]}
    assert recorded == {(pair.heading, pair.digest) for pair in PAIRS.values()} | {
        (name, "") for name in FOLLOWED
    }


@pytest.mark.parametrize("heading", FOLLOWED)
def test_options_of_the_optimizer_follow_the_record(heading):
    for case in (case for case in CASES if case["section"] == heading):
        (page,) = (page for page in (*PAGES, INDEX) if page.stem == case["page"])
        (section,) = (section for section in sections(page) if section.heading == heading)
        names = page_settings(page) | case["settings"]
        for block in (*introduction(page), re.sub("^total, .*$", "", section.python(), flags=re.MULTILINE)):
            exec(block, names)
        followers = names.get("followers") or [names.get("follower") or names["momentum"]]
        group = followers[0].optimizer.param_groups[0]
        after = []
        for _ in range(max(updates_of(case)) + 1):
            after.append([group[option] for option in FOLLOWED[heading].options])
            for follower in followers:
                follower.step()
        assert_recorded(np.array(after)[list(updates_of(case))], case)


def read_optax_arguments():
    """Return the table of arguments: for each schedule of optax, its arguments and what they are here."""
    text = (FOLDER / "optax.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| optax \| Here \|\n((?:\|.+\n)+)", text, re.MULTILINE)
    schedules = {}
    for name, here in re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE):
        if name.startswith("**"):
            arguments = schedules[name.strip("*`")] = {}
        else:
            arguments[re.match("`(.+?)`", name)[1]] = here.strip("`")
    return schedules


@pytest.mark.parametrize("name", read_optax_arguments())
def test_table_translates_arguments_of_optax(name):
    """The blocks "before" of these schedules call them with the arguments below."""
    translations = read_optax_arguments()[name]
    assert translations.keys() == inspect.signature(getattr(optax, name)).parameters.keys()
    for case in (case for case in CASES if case["section"] == f"optax.{name}"):
        plan = defaultdict(int, case["settings"])
        values = {
            "peak_value": plan["peak"],
            "init_value": plan["start"] if name.startswith("warmup") else plan["peak"],
            "end_value": plan["floor"],
            "alpha": plan["floor"] / plan["peak"],
            "warmup_steps": plan["warmup"],
            "decay_steps": plan["total"],
            "power": plan["power"],
            "transition_steps": plan["total"] - plan["warmup"],
            "transition_begin": plan["warmup"],
        }
        arguments = {}
        for argument, here in translations.items():
            if here != "only 1":
                ours, _, expression = here.partition(" = ")
                arguments[ours] = eval(expression or argument, values.copy())
        assert arguments.pop("peak_value") == plan["peak"]
        after = PlateauCurve(**arguments)(np.arange(len(case["levels"])))
        assert_recorded(after[:, None], case)


def test_original_rounds_percentages_in_floating_point():
    (case,) = (case for case in CASES if case["section"] == ROUNDED_PERCENTAGE)
    before = dict(zip(case["updates"], case["levels"], strict=True))
    assert [before[step] == before[step + 1] for step in (321, 322)] == [False, True]
    curve = PlateauCurve(case["settings"]["total"], plateaus=case["settings"]["plateaus"])
    assert curve.flat_starts == (323,)


@pytest.mark.parametrize("skipped", [0, 7])
def test_curve_waits_while_grad_scaler_skips(skipped):
    (section,) = (section for section in sections(INDEX) if section.heading == "With your own GradScaler")
    rows, overflow = "torch.randn(64, 8, device=device)", f"float('inf') ** (update == {skipped})"
    assert section.python().count(rows) == 1
    namespace = {}
    exec(section.python().replace(rows, f"{rows} * {overflow}"), namespace)
    state, _ = namespace["optimizer"].state.values()
    assert namespace["scheduler"].last_epoch == state["step"] < namespace["update"] == 19


def test_only_transformers_scales_min_lr_by_group():
    peaks = [0.1, 0.5, 1.0]
    before, after = (optimizer_with(peaks, lr=0.5) for _ in range(2))
    schedulers = [
        get_cosine_with_min_lr_schedule_with_warmup(before, 1, 3, min_lr=0.1),
        get_cosine_plateau_schedule_with_warmup(after, 1, 3, min_lr=0.1),
    ]
    for optimizer, scheduler in zip((before, after), schedulers, strict=True):
        advance(optimizer, scheduler, 3)
    np.testing.assert_allclose(lrs_of(before), np.array(peaks) * 0.1 / 0.5, rtol=1e-15)
    np.testing.assert_allclose(lrs_of(after), 0.1, rtol=ROUNDED)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_cite_the_source_of_the_record(page):
    cited, *_ = page.read_text(encoding="utf-8").split("\n```", 1)
    version = re.split("==|@", SOURCES[page.stem]["source"])[1]
    assert re.search(rf"(\)|torch|transformers) {version.removesuffix('.0')}\b|commit {version[:7]}\b", cited)
