"""docs/other_schedulers.md: both blocks of a section give the same rates.

"There" is the other library, "here" this project. Float32 costs 2⁻²⁴ of the peak and 2⁻²⁴ of the multiplier
here. torch, transformers and the formulas of
`support.docs.published` calculate in float64; torch's recursions drift by some 2⁻⁴⁹ of the peak in 300 steps,
and by 2⁻⁴⁰ in 100 000. optax, in float32, was seen to be off by 3.7·2⁻²⁴ of the peak.
"""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support.docs.other_schedulers import PAGE, names, pairs, run, run_counted
from support.docs.pages import sections
from support.docs.published import cosine_plateau
from support.examples import examples
from support.schedulers.runs import advance, lrs_of, optimizer_with
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from plateau_jax import PlateauCurve
from torch_bridge import get_cosine_plateau_schedule_with_warmup

pytestmark = pytest.mark.slow

LONGEST = 80
STEPS = 4 * LONGEST + 1
"""Past every end by `LONGEST` steps, and always as many, so that JAX compiles once."""


@st.composite
def plans(draw):
    """A value for each name of the page's first block."""
    total = draw(st.integers(2, LONGEST))
    # `optax.cosine_onecycle_schedule` takes warmup / total, and computes int(warmup / total * total).
    warmup = draw(st.integers(1, total - 1).filter(lambda steps: int(steps / total * total) == steps))
    period = draw(st.integers(1, total))
    first = draw(st.integers(1, total - 1))
    peak = draw(st.floats(1e-5, 10))
    cuts = sorted(draw(st.lists(st.integers(0, 90), max_size=6, unique=True)))
    return {
        "total": total,
        "warmup": warmup,
        "decay": draw(st.integers(1, total - warmup)),
        "period": period,
        "first": first,
        "second": draw(st.integers(first + 1, total)),
        "cycles": draw(st.integers(1, 3)),
        "peak": peak,
        "floor": peak * draw(st.sampled_from((0.0, 0.1)) | st.floats(1e-4, 0.9)),
        "start": peak * draw(st.sampled_from((0.1, 1.0)) | st.floats(1e-4, 1)),
        "gamma": math.exp(-draw(st.floats(1, 30)) / total),
        "factor": math.exp(-draw(st.floats(1, 30)) * period / total),
        "shape": draw(st.sampled_from(("linear", "cosine", "1-sqrt"))),
        "plateaus": [(start, end - start) for start, end in zip(cuts[::2], cuts[1::2], strict=False)],
        "power": draw(st.sampled_from((0.25, 0.4, 0.5, 1, 2, 4)) | st.floats(0.25, 4)),
        "batch": draw(st.integers(1, 4096)),
        "length": draw(st.integers(1, 8192)),
    }


def expected(after, here, end, plan):
    """The rates there, computed from those here as the page says, as far as it does."""
    match after:
        case "":
            return here
        case "climbs again":
            fall = np.argmax(here[end::-1])  # steps since the peak was last held
            return np.append(here[:end], here[end - fall : end + 1][::-1])
        case "restarts again":
            return np.append(here[:end], plan["peak"])
        case "keeps falling":
            return here[:end]
        case "raises":
            return here[: end + 1]
    raise AssertionError(after)


def lost_there(pair, plan):
    """The greatest error by rounding there, as a share of the peak."""
    if not pair.of_optax:
        return 2.0**-48
    # The base of the exponential is rounded too, and then raised to a power.
    power = plan["total"] / plan["period"] if "exponential" in pair.there else 0
    power += plan["power"] if "polynomial" in pair.there else 0
    return (4 + power) * 2.0**-24


# On short runs, and past their ends; the warnings have their own tests.
@pytest.mark.filterwarnings("ignore:plateaus:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.parametrize(
    "pair",
    [pair.by_updates() if pair.of_megatron else pair for pair in pairs() if not pair.of_olmo],
    ids=lambda pair: pair.heading,
)
@examples(15)
@given(plans())
def test_both_blocks_give_the_same_rates(pair, plan):
    assume("OneCycleLR" not in pair.heading or plan["warmup"] > 1)  # it divides by warmup - 1
    assume("optax.polynomial" not in pair.heading or plan["power"] >= 1)  # as the page says
    made, here = run(pair.here, plan, STEPS)
    end = made["curve"].total_steps if "curve" in made else plan["total"]
    wanted = np.float64(expected(pair.after, here, end, plan))
    steps = len(wanted) if pair.after == "raises" else STEPS
    _, there = run(pair.there, plan, steps)
    error = abs(np.float64(there[: len(wanted)]) - wanted)
    assert np.all(error <= 2.0**-23 * wanted + lost_there(pair, plan) * plan["peak"])
    if pair.after == "keeps falling":
        assert there[-1] < 0.998 * here[-1] or here[-1] == 0 > there[-1]
    if pair.after == "raises":
        with pytest.raises(ValueError, match="Tried to step"):
            run(pair.there, plan, STEPS)


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step:UserWarning")  # as the page says
@pytest.mark.parametrize(
    "pair", [pair for pair in pairs() if pair.of_megatron or pair.of_olmo], ids=lambda pair: pair.heading
)
@examples(25)
@given(plans(), st.randoms(use_true_random=False))
def test_both_blocks_give_the_same_rates_whatever_the_batches(pair, plan, draw):
    """Batches of every size; Megatron-LM's updates go past the end, and OLMo-core's run ends there."""
    whole = plan["batch"] * plan["total"]
    most = max(1, 3 * whole // draw.randint(3, 90))
    counts = []
    while sum(counts) < (whole if pair.of_olmo else whole + plan["batch"]):
        counts.append(draw.randint(1, most))
    if pair.of_olmo:
        counts[-1] -= sum(counts) - whole
        counts = [samples * plan["length"] for samples in counts]
    there, here, last = run_counted(pair, plan, counts)
    np.testing.assert_allclose(here, there, rtol=2**-23, atol=2**-48 * plan["peak"])
    if not re.search("constant|inverse|InvSqrt", pair.heading, re.IGNORECASE):
        np.testing.assert_allclose(last, plan["floor"], rtol=2**-23, atol=2**-48 * plan["peak"])


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@examples(15)
@given(plans())
def test_the_momentum_is_that_of_one_cycle(plan):
    assume(plan["warmup"] > 1)
    (there,) = [pair.there for pair in pairs() if pair.heading == "OneCycleLR"]
    page = next(section for section in sections(PAGE) if section.heading == "From a curve to learning rates")
    (here,) = [block.code for block in page.blocks if "follow(" in block.code]
    found = []
    for code, stepped in (there, "scheduler"), (here, "momentum"):
        made = {**plan, "torch": torch, "model": torch.nn.Linear(1, 1), "optimizer": optimizer_with([1.0])}
        made["optimizer"].param_groups[0]["momentum"] = 0.95
        exec(code, made)
        found.append([])
        for _ in range(plan["total"]):
            found[-1].append(made["optimizer"].param_groups[0]["momentum"])
            made["optimizer"].step()
            made[stepped].step()
    np.testing.assert_allclose(*found, rtol=2**-23)


@given(plans())
def test_every_name_of_the_page_is_generated(plan):
    assert names().keys() == plan.keys()


def test_links_at_the_top_lead_to_every_section():
    text = PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^###? (.+)$", text, re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    links = re.findall(r"\]\(#([^)]+)\)", text.partition("```")[0])
    assert len(set(slugs)) == len(slugs)
    assert len(set(links)) == len(links)
    chapters = {
        "pytorch",
        "hugging-face-transformers",
        "optax",
        "timm",
        "torchtitan",
        "megatron-lm",
        "olmo-core",
        "modded-nanogpt",
    }
    assert set(slugs) - set(links) == chapters | {"cosine-plateau-scheduler"}
    assert set(links) <= set(slugs)


def test_a_percentage_of_steps_is_rounded_down_in_floats_there():
    plateaus = [(32.3, 10)]
    optimizer = optimizer_with([1.0])
    there = cosine_plateau(optimizer, 1000, warmup_steps=0, min_lr_ratio=0.0, plateau_steps=plateaus)
    assert [there(step) == there(step + 1) for step in (321, 322)] == [False, True]
    assert PlateauCurve(1000, plateaus=plateaus).flat_starts == (323,)


@given(st.lists(st.floats(0.1, 1), min_size=2, max_size=4))
def test_min_lr_is_a_share_of_each_group_there_only(peaks):
    there, here = (optimizer_with(peaks, lr=0.5) for _ in range(2))
    schedulers = [
        get_cosine_with_min_lr_schedule_with_warmup(there, 1, 3, min_lr=0.1),
        get_cosine_plateau_schedule_with_warmup(here, 1, 3, min_lr=0.1),
    ]
    for optimizer, scheduler in zip((there, here), schedulers, strict=True):
        advance(optimizer, scheduler, 3)
    np.testing.assert_allclose(lrs_of(there), np.array(peaks) * 0.1 / 0.5, rtol=1e-15)
    np.testing.assert_allclose(lrs_of(here), 0.1, rtol=2**-23)
