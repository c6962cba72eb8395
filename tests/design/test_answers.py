"""Answers of the design page about curves: code to copy, handles, messages, ratios."""

import copy
import json
import warnings
from functools import reduce
from itertools import cycle
from operator import getitem
from typing import Any

import numpy as np
import optax
import pytest
import torch
from hypothesis import given, settings, strategies as st
from support.curves.descriptions import build, descriptions
from support.design.design import describe_curve
from support.numerics.oracle import percent_of

from plateau_jax import BatchPlan, Curve, CurveWarning, PlateauCurve, Stage, StagedCurve, compare
from plateau_jax.design.answers import answer_page, initial_curves, warmup_arguments
from plateau_jax.design.handles import MAX_HANDLES, Handle, curve_and_peak_handles
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
    STAGED.part(0, 150).then(STABLE.part(40)),
]
SCALED = BatchPlan([(0, 8), (400, 16)]).scale(STAGED, 4, reference=16)


def describe(curve: Curve, peak: float = PEAK) -> dict[str, Any]:
    return describe_curve({"curve": curve.to_dict(), "peak": peak})


def execute(text: str, **names: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)  # generated levels may look like learning rates
        exec(text, names)
    return names


@given(descriptions(counts=range(5), scaled=True))
def test_copied_code_builds_the_curve(description):
    curve = build(description)
    answer = describe(curve)
    assert execute(answer["optax"])["curve"] == curve
    assert execute(answer["torch"], model=torch.nn.Linear(1, 1))["curve"] == curve
    assert Curve.from_dict(json.loads(answer["json"])) == curve
    assert answer["curve"] == json.loads(answer["json"]) == curve.to_dict()


@pytest.mark.parametrize(("curve", "peak"), [*zip(CURVES, cycle([PEAK, 1, 0.1]), strict=False)], ids=repr)
def test_copied_code_gives_the_learning_rates(curve, peak, monkeypatch):
    expected = np.float32(peak) * curve(np.arange(curve.total_steps + 3))
    answer = describe(curve, peak)
    monkeypatch.setattr(optax, "adamw", lambda schedule: schedule)
    schedule = execute(answer["optax"])["tx"]
    assert np.array_equal(np.asarray(schedule(np.arange(len(expected)))), expected)
    names = execute(answer["torch"], model=torch.nn.Linear(1, 1))
    used: list[float] = []
    for _ in expected:
        used += names["scheduler"].get_last_lr()
        names["optimizer"].step()
        names["scheduler"].step()
    assert np.array_equal(np.float32(used), expected)


def test_copied_code_of_scaled_curve_counts_samples():
    answer, expected = describe(SCALED), np.float32(PEAK) * SCALED(np.arange(SCALED.total_steps + 3))
    names = execute(answer["torch"], model=torch.nn.Linear(1, 1))
    tx = execute(answer["optax"])["tx"]
    state = tx.init(0.0)
    for lr in expected:
        assert np.float32(names["optimizer"].param_groups[0]["lr"]) == lr
        names["optimizer"].step()
        names["scheduler"].step(count=4)
        _, state = tx.update(0.0, state, 0.0, count=4)
        assert state[-1].learning_rate == lr


def test_copied_code_is_short():
    curve = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 70)]).cooldown(6_000, 1_500, to=0.1)
    assert describe(curve)["optax"] == (
        "import optax\n"
        "from plateau_jax import PlateauCurve, optax_schedule\n\n"
        "curve = PlateauCurve(10000, warmup_steps=500, plateaus=[(0, 70)])\n"
        "curve = curve.cooldown(6000, 1500, to=0.1)\n"
        "tx = optax.adamw(optax_schedule(curve, peak_value=0.0003))\n"
    )


@given(descriptions(counts=range(5), scaled=True))
def test_picture_points_lie_on_the_curve(description):
    curve = build(description)
    answer = describe(curve)
    steps = np.asarray(answer["steps"])
    assert (steps[0], steps[-1]) == (0, curve.total_steps)
    assert np.allclose(answer["levels"], curve(steps), rtol=0, atol=1e-6)
    assert len(answer["segments"]) == 1 + len(curve.describe().splitlines()[1:])


PLATEAUS = "plateaus", "absolute_plateaus"


def changed_fields(entry: Any, path: Any) -> list[tuple[Any, int]]:
    """Return the paths of the fields that a handle changes; -1 for one that loses what the other gains."""
    if path[-2] in PLATEAUS:  # all of the plateau
        return [((*path, 0), 1)]
    fields = [(path, 1)]
    if len(path) > 3 and path[-1] == 0:
        *holder, index, _ = path
        if holder[-1] in PLATEAUS:  # the start, at the cost of the length
            fields.append(((*holder, index, 1), -1))
        else:  # a border of stages
            stages = reduce(getitem, holder, entry)
            later = [later for later in range(index + 1, len(stages)) if stages[later][0]]
            fields += [((*holder, following, 0), -1) for following in later[:1]]
    return fields


def arguments_after_move(curve: Curve, handle: Handle, value: float) -> dict[str, Any]:
    """Compute the curve's JSON after a handle is moved to a value, with a moved plateau in steps."""
    entry: Any = {"curve": copy.deepcopy(curve.to_dict())}
    if value == handle.value:
        return entry["curve"]
    fields = changed_fields(entry, handle.path)
    for path, sign in fields:
        if "plateaus" in path:
            path = (*path[:-3], "absolute_plateaus", -1, path[-1])
            if sign == 1:  # the first field
                write_in_steps(reduce(getitem, path[:-3], entry), fields[0][0][-2])
        holder: Any = reduce(getitem, path[:-1], entry)
        before = handle.value if holder[path[-1]] is None else holder[path[-1]]
        number = float(f"{before + sign * (value - handle.value):.12g}")
        number = 0.0 if abs(number) < 1e-12 * before else number
        holder[path[-1]] = int(number) if number.is_integer() else number
    return entry["curve"]


def write_in_steps(arguments: Any, index: Any) -> None:
    """Make a plateau in percent the last one in steps."""
    warmup, pair = arguments["warmup_steps"], arguments["plateaus"].pop(index)
    start, length = (percent_of(arguments["total_steps"] - warmup, percentage) for percentage in pair)
    arguments["absolute_plateaus"].append([warmup + start, length])


def find_handle(handles: list[Handle], wanted: Handle) -> Handle | None:
    def key(handle: Handle) -> Any:
        in_list = next((place for place, key in enumerate(handle.path) if key in PLATEAUS), None)
        return handle.name, handle.path[:in_list]

    return next((handle for handle in handles if key(handle) == key(wanted)), None)


@given(descriptions(counts=range(4), depth=2, scaled=True), st.integers(0, 3))
@settings(max_examples=50)
def test_handle_moves_to_the_dragged_value(description, aim_index):
    curve = build(description)
    for handle in curve_and_peak_handles(curve, PEAK)[1:]:
        assert handle.low <= handle.value <= handle.high, handle
        assert 0 <= handle.step <= curve.total_steps, handle
        unit = max(1, curve.total_steps // 1000) if handle.axis == "step" else 0.01
        aim = (handle.low, handle.value + unit, handle.value - unit, handle.high)[aim_index]
        value = min(max(aim, handle.low), handle.high)
        arguments = arguments_after_move(curve, handle, value)
        try:
            after = Curve.from_dict(arguments)
        except ValueError:  # such as a warmup that reaches into a plateau in steps
            continue
        if after.to_dict() != arguments:  # the constructor sorted the plateaus
            continue
        after_move = find_handle(curve_and_peak_handles(after, PEAK), handle)
        if after_move is None:  # such as the initial learning rate without a warmup
            continue
        assert after_move.value == pytest.approx(value, rel=1e-9, abs=1e-9)
        if handle.axis == "step":
            distance = after_move.value - handle.value
            assert after_move.step - handle.step == pytest.approx(distance, rel=1e-9, abs=1.001), handle
        else:  # the script takes the level per value from the handle
            levels = after_move.level * handle.value, handle.level * after_move.value
            assert levels[0] == pytest.approx(levels[1], abs=1e-6), handle


@given(descriptions(counts=range(1, 4), kind="plateaus"))
def test_plateau_limits_give_valid_curves(description):
    curve = build(description)
    for handle in curve_and_peak_handles(curve, PEAK):
        if handle.name.startswith("Plateau"):
            for value in (handle.low, handle.high):
                Curve.from_dict(arguments_after_move(curve, handle, value))


@pytest.mark.parametrize("curve", [*CURVES, SCALED], ids=repr)
def test_handles_have_unique_names(curve):
    handles = curve_and_peak_handles(curve, PEAK)
    assert handles[0].name == "Peak learning rate"
    assert len({handle.name for handle in handles}) == len(handles)


def test_too_many_handles_are_omitted():
    stairs = StagedCurve([stage for _ in range(MAX_HANDLES) for stage in ((1,), (0, 0.5))], start=1.0)
    assert [handle["name"] for handle in describe(stairs)["handles"]] == ["Peak learning rate"]


GOOD = STABLE.to_dict()


def test_unlikely_peak_gets_a_remark():
    (remark,) = describe(STABLE, 1e9)["advice"]
    assert (remark["path"], remark["message"][:21]) == (("peak",), "peak = 1e+09 is large")
    assert describe(STABLE, 10.0)["advice"] == []


def test_curve_of_too_many_stages_is_rejected_at_once():
    many = {"stages": [[10, 0.5]] * 3000, "start": 1.0}
    both = {"kind": "then", "curve": many, "other": {"kind": "part", "curve": many}}
    message = "his curve has 6000 stages, plateaus and batches; this page takes at most 5000"
    pairs = [[step, 8] for step in range(5999)]
    scaled = {"kind": "scaled", "curve": GOOD, "pairs": pairs, "unit": 1, "reference": 8}
    for curve in (both, scaled):
        assert message in describe_curve({"curve": curve, "peak": PEAK})["fault"]["message"]


@pytest.mark.parametrize(
    ("arguments", "path", "message"),
    [
        ({**GOOD, "total_steps": 0}, ["total_steps"], "total_steps = 0 must lie in 1"),
        ({**GOOD, "total_steps": "ten"}, ["total_steps"], "total_steps = 'ten' must be an integer"),
        ({**GOOD, "total_steps": None}, ["total_steps"], "total_steps = None must be an integer"),
        (
            {**GOOD, "plateaus": [[0, 10], [3, 200]]},
            ["plateaus", 1],
            "plateaus[1] = (3, 200) must lie in 0 …",
        ),
        ({**GOOD, "plateaus": [[0, 50], [40, 10]]}, ["plateaus", 0], "plateaus[0] = (0, 50) must end before"),
        ({**GOOD, "min_lr_ratio": "0,5"}, ["min_lr_ratio"], "min_lr_ratio = '0,5' must be a number"),
        (
            {**GOOD, "plateaus": [[0, None]]},
            ["plateaus", 0, 1],
            "plateaus[0].duration = None must be a number",
        ),
        ({**GOOD, "plateaus": [[0, 100]]}, ["plateaus"], "plateaus must leave at least one"),
        (
            {**GOOD, "decay_shape": "1-x^y"},
            ["decay_shape"],
            "decay_shape = '1-x^y' must have a decimal for P",
        ),
        ({**STAGED.to_dict(), "stages": []}, ["stages"], "stages add up to 0 steps"),
        ({**STAGED.to_dict(), "stages": [[3, 1], [3, 2]]}, ["stages", 1, 1], "stages[1].to = 2 must lie in"),
        ({**STAGED.to_dict(), "stages": [[3, 1, "oval"]]}, ["stages", 0, 2], "stages[0].shape = 'oval' must"),
        ({"kind": "oval"}, ["kind"], "kind = 'oval' must be one of"),
        (None, [], " = None must be a mapping"),
        ([], [], " = [] must be a mapping"),
    ],
)
@pytest.mark.parametrize("place", ["alone", "curve", "other", "deep"])
def test_fault_has_constructor_message_and_place(arguments, path, message, place):
    nestings: dict[str, Any] = {
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
    nested, inner = nestings[place]()
    fault = describe_curve({"curve": nested, "peak": PEAK})["fault"]
    shown = ".".join([*inner, message]) if path else message
    assert shown in fault["message"]
    alone = ["arguments"] if not path and not inner else []
    assert list(fault["path"]) == ["curve", *inner, *path, *alone]


@pytest.mark.parametrize("peak", [-1, "x", None, True, 1e300, 1e-300, float("nan")])
def test_invalid_peak_is_a_fault_of_the_peak(peak):
    fault = describe_curve({"curve": GOOD, "peak": peak})["fault"]
    assert fault["path"] == ("peak",)
    assert fault["message"].startswith("peak = ")


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(CURVES), st.data())
def test_any_field_value_gets_an_answer(curve, data):
    question: Any = {"curve": copy.deepcopy(curve.to_dict()), "peak": PEAK}
    holder, key = question, "curve"
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
    holder[key] = data.draw(_junk)
    answer = describe_curve(question)
    if "fault" in answer:
        assert answer["fault"]["message"]
    else:
        assert Curve.from_dict(answer["curve"]).to_dict() == answer["curve"]


def test_warnings_are_advice_alone():
    """In the terminal nobody would see them."""
    opened = {"stages": [["5%", 3e-4], ["rest"]], "total_steps": 100}  # a file written by hand
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = answer_page({"curves": [{"curve": opened, "peak": PEAK}], "step": 5, "runs": []})
    assert "look like learning rates" in answer["curves"][0]["advice"][0]["message"]


def outlooks_of(entries: list[Any]) -> list[Any]:
    return answer_page({"curves": entries, "runs": []})["outlooks"]


def test_ratios_match_compare():
    entries = [{"curve": curve.to_dict(), "peak": 0.5 + place} for place, curve in enumerate(CURVES)]
    outlooks = outlooks_of(entries)
    table = compare(*CURVES)
    assert [outlook["bound"] for outlook in outlooks] == list(table.bounds)
    assert [outlook["peak_ratio"] for outlook in outlooks] == list(table.peaks)
    assert [outlook["best_peak"] for outlook in outlooks] == [0.5 * peak for peak in table.peaks]


def test_curve_at_zero_has_no_ratio():
    zero = {"curve": build({"stages": [(10,)], "start": 0.0}).to_dict(), "peak": 1}
    good = {"curve": GOOD, "peak": 1}
    first, second = outlooks_of([good, zero])
    assert (first["bound"], second) == (1, {"fault": "no learning rate above 0"})
    first, second = outlooks_of([zero, good])
    assert "the first curve" in second["fault"]


def test_learning_rates_match_the_curves():
    entries = [{"curve": curve.to_dict(), "peak": PEAK} for curve in CURVES]
    values = answer_page({"curves": entries, "step": 120})["learning_rates"]
    assert values == [pytest.approx(PEAK * curve(120), rel=1e-5) for curve in CURVES]


def test_omissions_of_long_curves_are_reported():
    curve = StagedCurve([(10, 1 - number / 500) for number in range(400)])
    answer = describe(curve)
    assert len(answer["segments"]) < 400
    assert [advice["message"].split()[:2] for advice in answer["advice"]] == [
        ["The", "table"],
        ["The", "picture"],
    ]
    rows = len(describe_segments(curve.rows))  # with the column heads, which are not a segment
    assert f"of {rows} segments" not in answer["advice"][0]["message"]
    assert f"of {rows - 1} segments" in answer["advice"][0]["message"]


@given(st.floats(0, 1, exclude_min=True), st.floats(1e-37, 1e38))
def test_answers_are_json(scale, peak):
    """JSON has neither infinity nor NaN."""
    curve = STABLE.cooldown(150, 60).then(STAGED, scale=scale)
    entries = [{"curve": STABLE.to_dict(), "peak": peak}, {"curve": curve.to_dict(), "peak": peak}]
    json.dumps(answer_page({"curves": entries, "step": 5, "runs": []}), allow_nan=False)


def test_other_answers_are_about_valid_curves():
    entries = [{"curve": {**GOOD, "total_steps": 0}, "peak": PEAK}, {"curve": GOOD, "peak": "3e-4"}]
    answer = answer_page({"curves": entries, "step": 40, "runs": []})
    faulty, valid = answer["curves"]
    assert (list(faulty), valid["peak"]) == (["fault"], PEAK)
    assert answer["learning_rates"] == [pytest.approx(PEAK * STABLE(40), rel=1e-5)]
    assert [outlook["bound"] for outlook in answer["outlooks"]] == [1]


def test_fields_are_read_as_options_are():
    """The page sends the text of a field; a saved curve may lack arguments and have percentages."""
    typed = {"total_steps": "1e3", "warmup_steps": "2%", "plateaus": [["10", "5.5"]]}
    curve = PlateauCurve(1000, warmup_steps=20, plateaus=[(10, 5.5)])
    assert describe_curve({"curve": typed, "peak": PEAK})["curve"] == curve.to_dict()
    stages = [["2%", 1.0], ["rest"], ["20%", 0, "1-sqrt"]]
    curve = StagedCurve([(20, 1.0), (780,), (200, 0, "1-sqrt")])
    typed = {"total_steps": 1000, "stages": stages}
    assert describe_curve({"curve": typed, "peak": PEAK})["curve"] == curve.to_dict()


def test_repeated_handle_names_are_numbered():
    curve = STABLE.cooldown(150, 60).then(STAGED.cooldown(100, 50).cooldown(80, 5)).cooldown(190, 5)
    curve = curve.then(STABLE)
    names = [handle.name for handle in curve_and_peak_handles(curve, PEAK)]
    assert len(set(names)) == len(names)


@pytest.mark.filterwarnings("ignore:(min|init)_lr_ratio:plateau_jax.CurveWarning")
@given(descriptions(counts=range(5)))
def test_warmup_ends_where_the_curve_stops_rising(description):
    curve = build(description)
    arguments = warmup_arguments(curve)
    warm = PlateauCurve(curve.total_steps, **arguments)
    last = max(0, arguments["warmup_steps"] - 1)  # at the end itself, a stage may jump
    steps = np.linspace(0, last, 300).astype(np.int64)
    assert np.all(np.diff(curve(steps)) >= 0)
    if isinstance(curve, PlateauCurve) and curve.init_lr_ratio < 1:
        assert np.array_equal(warm(steps), curve(steps))


def test_single_curve_is_compared_at_its_warmup():
    warm = PlateauCurve(10_000, warmup_steps=500, init_lr_ratio=0.25, warmup_shape="cosine")
    cosine, _ = initial_curves([("Warm", warm)], PEAK)
    assert PlateauCurve.from_dict(cosine["curve"]) == warm
    staged = StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0)])
    cosine, _ = initial_curves([("Staged", staged)], PEAK)
    assert PlateauCurve.from_dict(cosine["curve"]) == PlateauCurve(10_000, warmup_steps=500)
