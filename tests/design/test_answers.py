"""What the page is told of a curve: lines to copy, handles, messages, ratios."""

import copy
import json
import warnings
from typing import Any

import numpy as np
import optax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.curves.descriptions import build, descriptions

from plateau_jax import Curve, CurveWarning, PlateauCurve, Stage, StagedCurve, compare
from plateau_jax.design.answers import opened, outlooks, parsed, rates, shown
from plateau_jax.design.handles import MOST, Handle, handles_of
from plateau_jax.numerics.exact_segments import describe_segments

PEAK = 3e-4
STABLE = PlateauCurve(300, warmup_steps=30, plateaus=[(0, 70)], min_lr_ratio=0.1)
STAGED = StagedCurve([(20, 1.0), (80,), (0, 0.5), (50, 0.1, "exponential"), Stage(50, 0.0, "1-sqrt")])
CURVES = [
    PlateauCurve(1),
    STABLE,
    PlateauCurve(200, absolute_plateaus=[(3, 40), (90, 7)], warmup_shape="cosine", decay_shape="1-sqrt"),
    STAGED,
    STABLE.cooldown(150, 60, to=0.05, shape="linear"),
    STABLE.cooldown(150, 60).then(STAGED.then(STABLE, scale=0.3).cooldown(100, 5), scale=0.5),
]


def ask(curve: Curve, peak: float = PEAK) -> dict[str, Any]:
    return shown({"curve": curve.to_dict(), "peak": peak})


def executed(text: str, **names: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)  # levels that are drawn may look like rates
        exec(text, names)
    return names


@given(descriptions(counts=range(5)))
def test_copied_lines_make_the_curve(description):
    curve = build(description)
    answer = ask(curve)
    assert executed(answer["optax"])["curve"] == curve
    assert executed(answer["torch"], model=torch.nn.Linear(1, 1))["curve"] == curve
    assert Curve.from_dict(json.loads(answer["json"])) == curve
    assert answer["curve"] == json.loads(answer["json"]) == curve.to_dict()


@pytest.mark.parametrize("curve", CURVES, ids=repr)
@pytest.mark.parametrize("peak", [PEAK, 1, 0.1])
def test_copied_lines_give_the_rates_of_the_page_at_every_step(curve, peak, monkeypatch):
    wanted = np.float32(peak) * curve(np.arange(curve.total_steps + 3))
    answer = ask(curve, peak)
    monkeypatch.setattr(optax, "adamw", lambda schedule: schedule)
    schedule = executed(answer["optax"])["tx"]
    assert np.array_equal(np.asarray(schedule(np.arange(len(wanted)))), wanted)
    lines = executed(answer["torch"], model=torch.nn.Linear(1, 1))
    found: list[float] = []
    for _ in wanted:
        found += lines["scheduler"].get_last_lr()
        lines["optimizer"].step()
        lines["scheduler"].step()
    assert np.array_equal(np.float32(found), wanted)


def test_copied_lines_are_short():
    curve = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 70)]).cooldown(6_000, 1_500, to=0.1)
    assert ask(curve)["optax"] == (
        "import optax\n"
        "from plateau_jax import PlateauCurve, optax_schedule\n\n"
        "curve = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 70)])\n"
        "curve = curve.cooldown(6_000, 1_500, to=0.1)\n"
        "tx = optax.adamw(optax_schedule(curve, peak_value=0.0003))\n"
    )


@given(descriptions(counts=range(5)))
def test_the_picture_is_of_the_curve(description):
    curve = build(description)
    answer = ask(curve)
    steps = np.asarray(answer["steps"])
    assert (steps[0], steps[-1]) == (0, curve.total_steps)
    assert np.allclose(answer["levels"], curve(steps), rtol=0, atol=1e-6)
    assert len(answer["segments"]) == 1 + len(curve.describe().splitlines()[1:])


def moved(curve: Curve, handle: Handle, value: float) -> dict[str, Any]:
    """What the page describes once a handle has this value."""
    entry: Any = {"curve": copy.deepcopy(curve.to_dict())}
    for path, sign in handle.moves:
        holder = entry
        for name in path[:-1]:
            holder = holder[name]
        before = holder[path[-1]]
        number = float(f"{before + sign * (value - handle.value):.12g}")
        number = 0.0 if abs(number) < 1e-12 * before else number
        holder[path[-1]] = int(number) if number.is_integer() else number
    return entry["curve"]


def same(others: list[Handle], handle: Handle) -> Handle | None:
    return next((one for one in others if (one.name, one.moves) == (handle.name, handle.moves)), None)


@given(descriptions(counts=range(4), depth=2), st.integers(0, 3))
@settings(max_examples=50)
def test_a_handle_goes_where_it_is_dragged(description, way):
    curve = build(description)
    for handle in handles_of(curve, PEAK)[1:]:
        assert handle.low <= handle.value <= handle.high, handle
        assert 0 <= handle.step <= curve.total_steps, handle
        aim = (handle.low, handle.value + handle.drag, handle.value - handle.drag, handle.high)[way]
        value = min(max(aim, handle.low), handle.high)
        arguments = moved(curve, handle, value)
        try:
            after = Curve.from_dict(arguments)
        except ValueError:  # such as a warmup into a plateau that is given in steps
            continue
        if after.to_dict() != arguments:  # plateaus are sorted
            continue
        there = same(handles_of(after, PEAK), handle)
        if there is None:  # such as the first rate of a warmup that is gone
            continue
        assert there.value == pytest.approx(value, rel=1e-9, abs=1e-9)
        went = (there.value - handle.value) / handle.per
        if handle.axis == "step":
            assert there.step - handle.step == pytest.approx(went, rel=1e-9, abs=1.001), handle
        else:
            assert there.level - handle.level == pytest.approx(went, abs=1e-6), handle


@given(descriptions(counts=range(1, 4), kind="plateaus"))
def test_a_plateau_that_is_dragged_as_far_as_it_goes_is_allowed(description):
    curve = build(description)
    for handle in handles_of(curve, PEAK):
        if handle.name.startswith("Plateau"):
            for value in (handle.low, handle.high):
                Curve.from_dict(moved(curve, handle, value))


@pytest.mark.parametrize("curve", CURVES, ids=repr)
def test_handles_have_names_of_their_own_and_values_in_words(curve):
    found = handles_of(curve, PEAK)
    assert found[0].name == "Peak learning rate"
    assert all(handle.text for handle in found)
    assert len({(handle.name, handle.moves) for handle in found}) == len(found)


def test_too_many_handles_are_none():
    stairs = StagedCurve([stage for _ in range(MOST) for stage in ((1,), (0, 0.5))], start=1.0)
    assert [handle["name"] for handle in ask(stairs)["handles"]] == ["Peak learning rate"]


GOOD = STABLE.to_dict()


@pytest.mark.parametrize(
    ("arguments", "path", "field", "index", "message"),
    [
        ({**GOOD, "total_steps": 0}, [], "total_steps", None, "total_steps = 0 must lie"),
        ({**GOOD, "total_steps": "ten"}, [], "total_steps", None, "total_steps = 'ten' must be an integer"),
        ({**GOOD, "total_steps": None}, [], "total_steps", None, "total_steps = None must be an integer"),
        ({**GOOD, "plateaus": [[0, 10], [3, 200]]}, [], "plateaus", 1, "must lie in 0 … 100 %"),
        ({**GOOD, "plateaus": [[0, 50], [40, 10]]}, [], "plateaus", None, "overlaps"),
        ({**GOOD, "plateaus": [[0, None]]}, [], "plateaus", 0, "must be a number"),
        ({**GOOD, "plateaus": [[0, 100]]}, [], "plateaus", None, "at least one must be left"),
        ({**GOOD, "decay_shape": "1-x^y"}, [], "decay_shape", None, "decay_shape = '1-x^y': write P as"),
        ({**STAGED.to_dict(), "stages": []}, [], "stages", None, "stages last 0 steps"),
        ({**STAGED.to_dict(), "stages": [[3, 1], [3, 2]]}, [], "stages", 1, "must lie in [0, 1]"),
        ({**STAGED.to_dict(), "stages": [[3, 1, "oval"]]}, [], "stages", 0, "shape = 'oval' must be"),
        ({"kind": "oval"}, [], "kind", None, "kind = 'oval' must be one of"),
        (None, [], None, None, "must be a mapping"),
        ([], [], None, None, "must be a mapping"),
    ],
)
@pytest.mark.parametrize("place", ["alone", "curve", "other", "deep"])
def test_the_constructors_message_stands_where_it_belongs(arguments, path, field, index, message, place):
    around: dict[str, Any] = {
        "alone": lambda: (arguments, []),
        "curve": lambda: ({"kind": "cooldown", "curve": arguments, "at": 3, "steps": 4}, ["curve"]),
        "other": lambda: ({"kind": "then", "curve": GOOD, "other": arguments}, ["other"]),
        "deep": lambda: (
            {
                "kind": "then",
                "curve": {"kind": "cooldown", "curve": arguments, "at": 3, "steps": -4},
                "other": {"total_steps": -1},
            },
            ["curve", "curve"],
        ),
    }
    given_, inner = around[place]()
    fault = shown({"curve": given_, "peak": PEAK})["fault"]
    assert message in fault["message"]
    assert (list(fault["path"]), fault["field"], fault["index"]) == (inner + path, field, index)


@pytest.mark.parametrize("peak", [-1, "x", None, True, 1e300, 1e-300, float("nan")])
def test_a_wrong_peak_is_said_beside_the_peak(peak):
    fault = shown({"curve": GOOD, "peak": peak})["fault"]
    assert (fault["field"], fault["path"]) == ("peak", [])
    assert fault["message"].startswith("peak = ")


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(CURVES), st.data())
def test_whatever_stands_in_a_field_gets_an_answer(curve, data):
    question: Any = {"curve": copy.deepcopy(curve.to_dict()), "peak": PEAK}
    holder, key = question, "curve"
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
    holder[key] = data.draw(_junk)
    answer = shown(question)
    if "fault" in answer:
        assert answer["fault"]["message"]
    else:
        assert Curve.from_dict(answer["curve"]).to_dict() == answer["curve"]


def test_likely_mistakes_are_said():
    (advice,) = shown({"curve": {"total_steps": 1000, "plateaus": [[0.5, 0.3]]}, "peak": PEAK})["advice"]
    assert "look like fractions" in advice
    inner = {"kind": "staged", "stages": [[100, 3e-4]]}
    (advice,) = shown({"curve": {"kind": "then", "curve": inner, "other": GOOD}, "peak": PEAK})["advice"]
    assert "look like learning rates" in advice
    assert ask(STABLE)["advice"] == []


def test_ratios_are_those_of_compare():
    entries = [{"curve": curve.to_dict(), "peak": 0.5 + place} for place, curve in enumerate(CURVES)]
    found = outlooks({"curves": entries})["outlooks"]
    table = compare(*CURVES)
    assert [one["bound"] for one in found] == list(table.bounds)
    assert [one["advised"] for one in found] == list(table.peaks)
    assert [one["rate"] for one in found] == [0.5 * peak for peak in table.peaks]


def test_a_curve_without_a_rate_has_no_ratio():
    zero = {"curve": StagedCurve([(10,)]).to_dict(), "peak": 1}
    good = {"curve": GOOD, "peak": 1}
    first, second = outlooks({"curves": [good, zero]})["outlooks"]
    assert (first["bound"], second) == (1, {"fault": "no rate above 0"})
    first, second = outlooks({"curves": [zero, good]})["outlooks"]
    assert "the first curve" in second["fault"]


def test_rates_at_a_step_are_those_of_the_curves():
    entries = [{"curve": curve.to_dict(), "peak": PEAK} for curve in CURVES]
    found = rates({"curves": entries, "step": 120})["rates"]
    assert found == [pytest.approx(PEAK * curve(120), rel=1e-5) for curve in CURVES]


@given(descriptions(counts=range(4)))
def test_json_that_is_opened_is_the_curve(description):
    curve = build(description)
    assert opened({"text": json.dumps(curve.to_dict())}) == {"curve": curve.to_dict()}


def test_json_that_is_opened_gets_every_argument():
    assert opened({"text": '{"total_steps": 9, "warmup": "cosine"}'}) == {
        "curve": PlateauCurve(9, warmup_shape="cosine").to_dict()
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is not JSON"),
        ("{", "this is not JSON"),
        (None, "this is not JSON"),
        (3, "this is not JSON"),
        ("[" * 200_000, "nested too deep"),
        ("[]", "must be a mapping"),
        ('{"total_steps": 0}', "total_steps = 0"),
        ('{"total_step": 1}', "unknown keys ['total_step']"),
    ],
)
def test_text_that_is_no_curve_is_refused(text, message):
    assert message in opened({"text": text})["fault"]


def test_parsed_numbers_are_what_was_written():
    assert parsed('{"a": [1, 2.5, 1e-300]}') == {"a": [1, 2.5, 1e-300]}


def test_what_is_left_out_of_a_long_curve_is_said():
    curve = StagedCurve([(10, 1 - number / 500) for number in range(400)])
    answer = ask(curve)
    assert len(answer["segments"]) < 400
    assert [message.split()[:2] for message in answer["advice"]] == [["The", "table"], ["The", "picture"]]
    lines = len(describe_segments(curve.rows))
    assert f"of {lines} segments" not in answer["advice"][0]  # the header is not a segment
    assert f"of {lines - 1} segments" in answer["advice"][0]


@given(st.floats(0, 1, exclude_min=True), st.floats(1e-37, 1e38))
def test_answers_are_json(scale, peak):
    """Which has no infinity and no NaN."""
    curve = STABLE.cooldown(150, 60).then(STAGED, scale=scale)
    answer = ask(curve, peak)
    entries = [{"curve": STABLE.to_dict(), "peak": peak}, {"curve": curve.to_dict(), "peak": peak}]
    question = {"curves": entries, "step": 5}
    for found in (answer, outlooks(question), rates(question)):
        json.dumps(found, allow_nan=False)


def test_no_two_handles_have_one_name():
    curve = STABLE.cooldown(150, 60).then(STAGED.cooldown(100, 50).cooldown(80, 5)).cooldown(190, 5)
    curve = curve.then(STABLE)
    names = [handle.name for handle in handles_of(curve, PEAK)]
    assert len(set(names)) == len(names)
