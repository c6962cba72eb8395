"""Answers of the design page about curves: code to copy, handles, pictures, ratios, and looks."""

import copy
import json
import warnings

import numpy as np
import pytest
import torch
from design.design import PEAK, answer_about, describe_curve, run_copied
from hypothesis import example, given, strategies as st
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, descriptions

from plateau_jax import BatchPlan, Curve, CurveWarning, PlateauCurve, StagedCurve, compare
from plateau_jax.tools.design.answers import (
    compare_curves,
    describe_curves,
    initial_curves,
    learning_rates_at_step,
    warmup_arguments,
)
from plateau_jax.tools.theory.bounds import NOTE

STABLE = PlateauCurve(60, warmup_steps=6, plateaus=[(0, 70)], min_lr_ratio=0.1)
STAGES = [(4, 1.0), (16,), (0, 0.5), (10, 0.1, "exponential"), (10, 0.0, "1-sqrt")]
STAGED = StagedCurve(STAGES)
COOLED = STABLE.cooldown(30, 12)
IN_STEPS = PlateauCurve(
    40, absolute_plateaus=[(3, 8), (18, 2)], warmup_shape="cosine", decay_shape="1-sqrt"
)
COOLED_CONTINUATION = STAGED.then(STABLE, scale=0.3).cooldown(60, 5)
CURVES = [
    PlateauCurve(1),
    STABLE,
    IN_STEPS,
    STAGED,
    STABLE.cooldown(30, 12, to=0.05, shape="linear"),
    COOLED.then(COOLED_CONTINUATION, scale=0.5),
    STAGED.part(0, 30).then(STABLE.part(8)),
]
SCALED = BatchPlan([(0, 8), (80, 16)]).scale(STAGED, 4, reference=16)


# Code and pictures.


DESCRIPTIONS = descriptions(counts=range(5), scaled=True)


@given(DESCRIPTIONS, st.sampled_from((PEAK, 1.0, 0.1)))
def test_copied_code_builds_the_curve(description, peak):
    curve = build(description)
    answer = answer_about(curve, peak)
    with warnings.catch_warnings():
        # Generated levels may look like learning rates.
        warnings.simplefilter("ignore", CurveWarning)
        in_jax = run_copied(answer["optax"])
        in_torch = run_copied(answer["torch"], model=torch.nn.Linear(1, 1))

    assert in_jax["curve"] == curve
    _, _, statement = answer["torch"].partition("curve = ")
    statement, _, _ = statement.partition("optimizer = ")
    assert max(map(len, statement.splitlines())) <= 88
    function = "optax_schedule"
    if curve.unit is not None:
        function = "scale_by_curve"
    assert f"{function}(curve, " in answer["optax"]
    assert f"{peak!r})" in answer["optax"]

    scheduler = in_torch["scheduler"]
    assert in_torch["curve"] == curve
    assert scheduler.curves == [curve]
    assert scheduler.base_lrs == [np.float32(peak)]

    assert answer["curve"] == curve.to_dict()
    assert json.loads(answer["json"]) == curve.to_dict()


@given(DESCRIPTIONS)
def test_picture_points_lie_on_the_curve(description):
    curve = build(description)
    answer = answer_about(curve)
    steps = np.asarray(answer["steps"])
    assert steps[0] == 0
    assert steps[-1] == curve.total_steps
    assert answer["total"] == curve.total_steps
    assert np.allclose(answer["levels"], curve(steps), rtol=0, atol=1e-6)


def test_omissions_of_long_curves_are_reported():
    curve = StagedCurve([(10, 1 - number / 500) for number in range(400)])
    answer = answer_about(curve)
    segments = len(curve.describe().splitlines()) - 1
    assert len(answer["segments"]) == 1 + 200
    (of_table,) = answer["advice"]
    assert of_table["message"] == f"The table shows the first 200 of {segments} segments."
    (of_peak,) = answer["handles"]
    assert of_peak["path"] == ("peak",)


# Several curves.


def entries_of(*curves, peak=PEAK):
    return [{"curve": curve.to_dict(), "peak": peak} for curve in curves]


def answer_about_curves(*curves):
    return compare_curves({"curves": entries_of(*curves)})


def test_ratios_and_learning_rates_match_the_library():
    entries = []
    learning_rates = []
    for place, curve in enumerate(CURVES):
        peak = 0.5 + place
        entries.append({"curve": curve.to_dict(), "peak": peak})
        learning_rates.append(peak * curve(24))
    answer = learning_rates_at_step({"curves": entries, "step": 24})
    assert answer["learning_rates"] == pytest.approx(learning_rates, rel=1e-5)
    table = compare(*CURVES)
    answer = compare_curves({"curves": entries})
    for ratios, bound, ratio in zip(answer["ratios"], table.bounds, table.peaks, strict=True):
        assert ratios["bound"] == bound
        assert ratios["peak_ratio"] == ratio
        assert ratios["best_peak"] == 0.5 * ratio


def test_note_is_that_of_the_library():
    assert answer_about_curves(STABLE)["note"] == NOTE


def test_curve_at_zero_has_no_ratio():
    zero = build({"kind": "staged", "stages": [(10,)]})
    of_stable, of_zero = answer_about_curves(STABLE, zero)["ratios"]
    assert of_stable["bound"] == 1
    assert of_zero == {"fault": "no learning rate above 0"}
    _, of_stable = answer_about_curves(zero, STABLE)["ratios"]
    assert "the first curve" in of_stable["fault"]


def test_faulty_curve_has_only_its_fault():
    faulty = {"curve": {**STABLE.to_dict(), "total_steps": 0}, "peak": PEAK}
    entries = [faulty, {"curve": STABLE.to_dict(), "peak": "3e-4"}]
    of_faulty, of_stable = describe_curves({"curves": entries})["curves"]
    assert list(of_faulty) == ["fault"]
    assert of_stable["peak"] == PEAK


# Any value gets an answer.

TEXTS = st.text(max_size=5)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS


def containers_of(items):
    lists = st.lists(items, max_size=3)
    objects = st.dictionaries(TEXTS, items, max_size=3)
    return lists | objects


JUNK = st.recursive(LEAVES, containers_of, max_leaves=6)


def keys_of(value):
    """Return the keys of an object, or the indices of a list; of anything else, none."""
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, list):
        return list(range(len(value)))
    return []


@given(st.sampled_from([*CURVES, SCALED]), st.data())
def test_any_field_value_gets_an_answer(curve, data):
    question = {"curve": copy.deepcopy(curve.to_dict()), "peak": PEAK}
    holder = question
    key = "curve"
    while keys_of(holder[key]) and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(keys_of(holder)))
    holder[key] = data.draw(JUNK)
    answer = describe_curve(question)
    if "fault" in answer:
        assert answer["fault"]["message"]
    else:
        described = Curve.from_dict(answer["curve"])
        assert described.to_dict() == answer["curve"]


@pytest.mark.filterwarnings("ignore:scale = :plateau_jax.CurveWarning")
@given(st.floats(0, 1, exclude_min=True), st.floats(1e-37, 1e38))
def test_answers_are_json(scale, peak):
    """JSON has neither infinity nor NaN."""
    continued = COOLED.then(STAGED, scale=scale)
    entries = entries_of(STABLE, continued, peak=peak)
    answers = [
        describe_curves({"curves": entries}),
        learning_rates_at_step({"curves": entries, "step": 5}),
        compare_curves({"curves": entries}),
    ]
    json.dumps(answers, allow_nan=False)


# The curves that the page starts with.


@pytest.mark.filterwarnings("ignore:(min|init)_lr_ratio:plateau_jax.CurveWarning")
@given(descriptions(counts=range(5)))
@example({"kind": "staged", "stages": [(5, 1.0)]})
def test_warmup_is_the_rise_at_the_beginning(description):
    curve = build(description)
    arguments = warmup_arguments(curve)
    warm = PlateauCurve(curve.total_steps, **arguments)
    last = max(0, arguments["warmup_steps"] - 1)  # at the end itself, a stage may jump
    steps = np.linspace(0, last, 300).astype(np.int64)
    assert np.all(np.diff(curve(steps)) >= 0)
    if isinstance(curve, PlateauCurve) and curve.init_lr_ratio < 1:
        assert np.array_equal(warm(steps), curve(steps))


WARM = PlateauCurve(10_000, warmup_steps=500, init_lr_ratio=0.25, warmup_shape="cosine")
with ignore_curve_warnings():
    ZEROS = StagedCurve([(10_000,)])


@pytest.mark.parametrize(("curve", "cosine"), [(WARM, WARM), (ZEROS, PlateauCurve(10_000))])
def test_single_curve_is_compared_at_its_warmup(curve, cosine):
    assert initial_curves([("Mine", curve)], PEAK) == [
        {"name": "Cosine", "peak": PEAK, "curve": cosine.to_dict()},
        {"name": "Mine", "peak": PEAK, "curve": curve.to_dict()},
    ]
