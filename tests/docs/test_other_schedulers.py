"""docs/other_schedulers/: both blocks of a section give the same learning rates.

"Before" is the original scheduler, "after" this project. Rounding to float32 costs "after" up to 2⁻²⁴ of the
peak and 2⁻²⁴ of the multiplier. torch, transformers and the formulas of `support.docs.published` compute in
float64; torch's recursions drift by some 2⁻⁴⁹ of the peak in 300 steps, and by 2⁻⁴⁰ in 100 000. optax
computes in float32; the largest error seen was 3.7·2⁻²⁴ of the peak.
"""

import inspect
import re

import jax
import numpy as np
import optax
import pytest
import torch
from hypothesis import HealthCheck, assume, given, strategies as st
from support.docs.other_schedulers import (
    FOLDER,
    INDEX,
    read_pairs,
    run,
    run_with_counts,
)
from support.docs.pages import sections
from support.docs.plans import LONGEST, is_allowed, plans
from support.docs.published import cosine_plateau
from support.examples import examples
from support.schedulers.runs import advance, lrs_of, optimizer_with
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from plateau_jax import PlateauCurve
from torch_bridge import get_cosine_plateau_schedule_with_warmup

pytestmark = pytest.mark.slow

STEPS = 4 * LONGEST + 1
"""At least `LONGEST` steps past every end. The number is constant, so that JAX compiles once."""

ROUNDED = 3 * 2**-24
"""The peak, the multiplier and their product are each rounded to float32."""


def expected_before(past_the_end, after, end, plan):
    """Derive the original's learning rates from those after, for as many updates as the page describes."""
    match past_the_end:
        case "":
            return after
        case "climbs again":
            fall = np.argmax(after[end::-1])  # steps since the curve left the peak
            return np.append(after[:end], after[end - fall : end + 1][::-1])
        case "restarts again":
            return np.append(after[:end], plan["peak"])
        case "keeps falling" | "continues its decay":
            return after[:end]
        case "raises":
            return after[: end + 1]
    raise AssertionError(past_the_end)


def ends_with_run(pair, plan):
    """Return whether the page makes no promise for steps past the end: for those without a decay."""
    return not plan["decay"] and bool(re.search("if there is a decay|`decay` of 0, it raises", pair.limits))


def rounding_error(pair, plan):
    """Bound the rounding error of the original, as a fraction of the peak."""
    if not pair.is_optax:
        return 2.0**-48
    # optax rounds the base of the exponential before raising it to a power, which multiplies the error.
    power = plan["total"] / plan["period"] if "exponential" in pair.before else 0
    power += plan["power"] if "polynomial" in pair.before else 0
    return (4 + power) * 2.0**-24


# Short runs and steps past the end warn; these warnings have their own tests.
@pytest.mark.filterwarnings("ignore:plateaus:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.parametrize(
    "pair",
    [
        pair.counting_updates() if pair.is_megatron else pair
        for pair in read_pairs()
        if not pair.is_olmo and not pair.is_configuration
    ],
    ids=lambda pair: pair.heading,
)
@examples(15)
@given(plans())
def test_both_blocks_give_equal_learning_rates(pair, plan):
    assume(is_allowed(pair, plan))
    namespace, after = run(pair.after, plan, STEPS)
    end = namespace["curve"].total_steps if "curve" in namespace else plan["total"]
    end -= "last_epoch=0" in pair.after  # one update ahead
    if ends_with_run(pair, plan):
        _, before = run(pair.before, plan, plan["total"])
        np.testing.assert_allclose(after[: plan["total"]], before, rtol=ROUNDED, atol=2**-48 * plan["peak"])
        return
    expected = np.float64(expected_before(pair.past_the_end, after, end, plan))
    steps = len(expected) if pair.past_the_end == "raises" else STEPS
    _, before = run(pair.before, plan, steps)
    error = abs(np.float64(before[: len(expected)]) - expected)
    assert np.all(error <= ROUNDED * expected + rounding_error(pair, plan) * plan["peak"])
    if pair.past_the_end == "keeps falling":
        assert before[-1] < 0.998 * after[-1] or after[-1] == 0 > before[-1]
    if pair.past_the_end == "raises":
        with pytest.raises(ValueError, match="Tried to step"):
            run(pair.before, plan, STEPS)


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step:UserWarning")  # as the page says
@pytest.mark.parametrize(
    "pair", [pair for pair in read_pairs() if pair.is_megatron or pair.is_olmo], ids=lambda pair: pair.heading
)
@examples(25, suppress_health_check=[HealthCheck.filter_too_much])  # some sections exclude most plans
@given(plans(), st.randoms(use_true_random=False))
def test_learning_rates_agree_for_any_batch_sizes(pair, plan, random):
    """Megatron-LM's updates continue past the end; OLMo-core's run ends there."""
    assume(is_allowed(pair, plan))
    samples = plan["batch"] * plan["stop" if pair.is_cut else "total"]
    largest = max(1, 3 * samples // random.randint(3, 90))
    counts = []
    within = pair.is_olmo or pair.is_cut or ends_with_run(pair, plan)
    while sum(counts) < (samples if within else samples + plan["batch"]):
        counts.append(random.randint(1, largest))
    if within:
        counts[-1] -= sum(counts) - samples
    if pair.is_olmo and random.randint(0, 1):
        counts = [plan["batch"]] * plan["total"]  # an update ends where a period does
    if pair.is_olmo:
        counts = [count * plan["length"] for count in counts]
    before, after, last = run_with_counts(pair, plan, counts)
    np.testing.assert_allclose(after, before, rtol=ROUNDED, atol=2**-48 * plan["peak"])
    if not pair.is_cut and not re.search("constant|inverse|InvSqrt", pair.heading, re.IGNORECASE):
        np.testing.assert_allclose(last, plan["floor"], rtol=ROUNDED, atol=2**-48 * plan["peak"])


def one_cycle_without_warmup(pair, plan):
    (after,) = re.findall(r"`(lambda_lr\(.+?\))`", pair.text)
    return pair.before, f"scheduler = {after}", plan | {"warmup": 0}


def other_shapes_of_early_torchtitan(pair, plan):
    assume(plan["warmup"] + plan["decay"] < plan["total"])
    (after,) = re.findall(r"`(StagedCurve\(.+?\))`", pair.text)
    fallen = {"linear": "fallen", "1-sqrt": "fallen**0.5", "cosine": "(1 - cos(pi * fallen)) / 2"}
    before = pair.before.replace("* fallen", f"* ({fallen[plan['shape']]})")
    return f"from math import cos, pi\n{before}", f"scheduler = lambda_lr(optimizer, {after})", plan


def inverse_sqrt_with_timescale(pair, plan):
    before = pair.before.replace("warmup)", "warmup, timescale=period)")
    return before, pair.after.replace("warmup or 10_000", "period"), plan


def wsd_with_cosine_warmup(pair, plan):
    before = pair.before.replace("decay_type=", "warmup_type='cosine', decay_type=")
    return before, pair.after.replace("(warmup, 1.0)", "(warmup, 1.0, 'cosine')"), plan


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.parametrize(
    ("heading", "programs"),
    [
        ("OneCycleLR", one_cycle_without_warmup),
        ("torchtitan before June 2025, lr_min", other_shapes_of_early_torchtitan),
        ("get_inverse_sqrt_schedule", inverse_sqrt_with_timescale),
        ("get_wsd_schedule", wsd_with_cosine_warmup),
    ],
)
@examples(25)
@given(plans())
def test_advice_in_the_text_gives_equal_learning_rates(heading, programs, plan):
    (pair,) = (pair for pair in read_pairs() if pair.heading == heading)
    before, after, plan = programs(pair, plan)
    imports = "from plateau_jax import StagedCurve\nfrom torch_bridge import lambda_lr\n"
    lrs = [run(code, plan, plan["total"])[1] for code in (before, imports + after)]
    np.testing.assert_allclose(*lrs, rtol=2**-22, atol=2**-48 * plan["peak"])


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@examples(15)
@given(plans())
def test_momentum_follows_one_cycle(plan):
    assume(2 <= plan["warmup"] < plan["total"])  # as the page says
    (before,) = [pair.before for pair in read_pairs() if pair.heading == "OneCycleLR"]
    (section,) = (section for section in sections(INDEX) if section.heading == "Momentum and weight decay")
    (after,) = section.python_blocks()
    after = re.sub("^(total|optimizer|model).*$", "", after, flags=re.MULTILINE)
    momenta = []
    for code, scheduler in (before, "scheduler"), (after, "momentum"):
        namespace = {
            **plan,
            "torch": torch,
            "model": torch.nn.Linear(1, 1),
            "optimizer": optimizer_with([1.0]),
        }
        namespace["optimizer"].param_groups[0]["momentum"] = 0.95
        exec(code, namespace)
        momenta.append([])
        for _ in range(plan["total"]):
            momenta[-1].append(namespace["optimizer"].param_groups[0]["momentum"])
            namespace["optimizer"].step()
            namespace[scheduler].step()
    np.testing.assert_allclose(*momenta, rtol=ROUNDED)


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


@pytest.mark.filterwarnings("ignore:(min|init)_lr_ratio:plateau_jax.CurveWarning")
@pytest.mark.parametrize("name", read_optax_arguments())
@examples(15)
@given(plans())
def test_table_translates_arguments_of_optax(name, plan):
    assume(plan["power"] >= 1 and plan["warmup"] < plan["total"])  # as the page says
    values = {
        "peak_value": plan["peak"],
        "init_value": plan["start"] if name.startswith("warmup") else plan["peak"],
        "end_value": plan["floor"],
        "alpha": plan["floor"] / plan["peak"],
        "exponent": 1.0,
        "warmup_steps": plan["warmup"],
        "decay_steps": plan["total"],
        "power": plan["power"],
        "transition_steps": plan["total"] - plan["warmup"],
        "transition_begin": plan["warmup"],
    }
    translations = read_optax_arguments()[name]
    original = getattr(optax, name)
    assert translations.keys() == inspect.signature(original).parameters.keys()
    arguments = {}
    for argument, here in translations.items():
        if here == "only 1":
            continue
        ours, _, expression = here.partition(" = ")
        arguments[ours] = eval(expression or argument, values.copy())
    peak = arguments.pop("peak_value")
    steps = np.arange(STEPS)
    before = jax.vmap(original(**{argument: values[argument] for argument in translations}))(steps)
    after = PlateauCurve(**arguments)(steps) * np.float32(peak)
    np.testing.assert_allclose(after, before, rtol=2**-22, atol=(4 + plan["power"]) * 2**-24 * peak)


@pytest.mark.parametrize("skipped", [0, 7])
def test_curve_waits_while_grad_scaler_skips(skipped):
    (section,) = (section for section in sections(INDEX) if section.heading == "With your own GradScaler")
    rows, overflow = "torch.randn(64, 8, device=device)", f"float('inf') ** (update == {skipped})"
    assert section.python().count(rows) == 1
    namespace = {}
    exec(section.python().replace(rows, f"{rows} * {overflow}"), namespace)
    state, _ = namespace["optimizer"].state.values()
    assert namespace["scheduler"].last_epoch == state["step"] < namespace["update"] == 19


def test_original_rounds_percentages_in_floating_point():
    plateaus = [(32.3, 10)]
    optimizer = optimizer_with([1.0])
    original = cosine_plateau(optimizer, 1000, warmup_steps=0, min_lr_ratio=0.0, plateau_steps=plateaus)
    assert [original(step) == original(step + 1) for step in (321, 322)] == [False, True]
    assert PlateauCurve(1000, plateaus=plateaus).flat_starts == (323,)


@given(st.lists(st.floats(0.1, 1), min_size=2, max_size=4))
def test_only_transformers_scales_min_lr_by_group(peaks):
    before, after = (optimizer_with(peaks, lr=0.5) for _ in range(2))
    schedulers = [
        get_cosine_with_min_lr_schedule_with_warmup(before, 1, 3, min_lr=0.1),
        get_cosine_plateau_schedule_with_warmup(after, 1, 3, min_lr=0.1),
    ]
    for optimizer, scheduler in zip((before, after), schedulers, strict=True):
        advance(optimizer, scheduler, 3)
    np.testing.assert_allclose(lrs_of(before), np.array(peaks) * 0.1 / 0.5, rtol=1e-15)
    np.testing.assert_allclose(lrs_of(after), 0.1, rtol=ROUNDED)
