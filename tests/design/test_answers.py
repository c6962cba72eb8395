"""Answers of the design page about curves: code to copy, handles, pictures, ratios; and their looks."""

import copy
import json
import re
import warnings
from collections.abc import Iterator
from functools import reduce
from importlib.resources import files
from operator import getitem
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from numpy.typing import NDArray
from support.curves.descriptions import build, descriptions
from support.design.design import PEAK, answer_about, describe_curve
from support.examples import examples
from support.numerics.oracle import percent_of

from plateau_jax import BatchPlan, Curve, CurveWarning, PlateauCurve, StagedCurve, compare
from plateau_jax.design.answers import answer_page, choices_per_field, initial_curves, warmup_arguments
from plateau_jax.design.handles import MAX_HANDLES, Handle, curve_and_peak_handles
from plateau_jax.validation.curve_warning import suppress_warnings

STABLE = PlateauCurve(60, warmup_steps=6, plateaus=[(0, 70)], min_lr_ratio=0.1)
STAGED = StagedCurve([(4, 1.0), (16,), (0, 0.5), (10, 0.1, "exponential"), (10, 0.0, "1-sqrt")])
CURVES = [
    PlateauCurve(1),
    STABLE,
    PlateauCurve(40, absolute_plateaus=[(3, 8), (18, 2)], warmup_shape="cosine", decay_shape="1-sqrt"),
    STAGED,
    STABLE.cooldown(30, 12, to=0.05, shape="linear"),
    STABLE.cooldown(30, 12).then(STAGED.then(STABLE, scale=0.3).cooldown(60, 5), scale=0.5),
    STAGED.part(0, 30).then(STABLE.part(8)),
]
SCALED = BatchPlan([(0, 8), (80, 16)]).scale(STAGED, 4, reference=16)


def execute(text: str, **names: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)  # generated levels may look like learning rates
        exec(text, names)
    return names


@given(descriptions(counts=range(5), scaled=True), st.sampled_from((PEAK, 1.0, 0.1)))
def test_copied_code_builds_the_curve(description, peak):
    curve = build(description)
    answer = answer_about(curve, peak)
    in_jax = execute(answer["optax"])
    in_torch = execute(answer["torch"], model=torch.nn.Linear(1, 1))
    assert in_jax["curve"] == in_torch["curve"] == curve
    function = "optax_schedule" if curve.unit is None else "scale_by_curve"
    assert f"{function}(curve, " in answer["optax"]
    assert f"{peak!r})" in answer["optax"]
    assert in_torch["scheduler"].curves == [curve]
    assert in_torch["scheduler"].base_lrs == [np.float32(peak)]
    assert answer["curve"] == json.loads(answer["json"]) == curve.to_dict()


@given(descriptions(counts=range(5), scaled=True))
def test_picture_points_lie_on_the_curve(description):
    curve = build(description)
    answer = answer_about(curve)
    steps = np.asarray(answer["steps"])
    assert (steps[0], steps[-1], answer["total"]) == (0, curve.total_steps, curve.total_steps)
    assert np.allclose(answer["levels"], curve(steps), rtol=0, atol=1e-6)


@given(descriptions(counts=range(5), scaled=True))
def test_table_names_the_columns_of_describe(description):
    """With a peak of 1, its learning rates are the levels."""
    curve = build(description)
    table = answer_about(curve, 1.0)["segments"]
    lines = [[column["heading"].removeprefix("lr ") for column in table["columns"]]]
    for row in table["rows"]:
        lines.append([row[column["name"]] for column in table["columns"]])
    described = [line.split() for line in curve.describe().splitlines()]
    assert [" ".join(line).split() for line in lines] == described


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
            if sign == 1:  # the first field: the plateau in percent becomes the last one in steps
                curve_entry: Any = reduce(getitem, path[:-3], entry)
                warmup, pair = curve_entry["warmup_steps"], curve_entry["plateaus"].pop(fields[0][0][-2])
                start, length = (percent_of(curve_entry["total_steps"] - warmup, part) for part in pair)
                curve_entry["absolute_plateaus"].append([warmup + start, length])
        holder: Any = reduce(getitem, path[:-1], entry)
        before = handle.value if holder[path[-1]] is None else holder[path[-1]]
        number = float(f"{before + sign * (value - handle.value):.12g}")
        number = 0.0 if abs(number) < 1e-12 * before else number
        holder[path[-1]] = int(number) if number.is_integer() else number
    return entry["curve"]


def name_and_curve(handle: Handle) -> tuple[str, Any]:
    """Return a handle's name and the path of its curve or argument, which stay when a plateau moves."""
    in_list = next((place for place, key in enumerate(handle.path) if key in PLATEAUS), None)
    return handle.name, handle.path[:in_list]


@examples(100)
@given(descriptions(counts=range(4), depth=2, scaled=True), st.integers(0, 3))
@example({"total_steps": 100, "plateaus": [(30, 70)]}, 0)  # all decay comes before it, or after
@example({"total_steps": 100, "plateaus": [(0, 70)]}, 3)
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
            assert "plateau" not in handle.name.lower(), handle
            continue
        if after.to_dict() != arguments:  # the constructor sorted the plateaus
            continue
        handles = {name_and_curve(moved): moved for moved in curve_and_peak_handles(after, PEAK)}
        after_move = handles.get(name_and_curve(handle))
        if after_move is None:  # such as the initial learning rate without a warmup
            continue
        assert after_move.value == pytest.approx(value, rel=1e-9, abs=1e-9)
        if handle.axis == "step":
            distance = after_move.value - handle.value
            assert after_move.step - handle.step == pytest.approx(distance, rel=1e-9, abs=1.001), handle
        else:  # the script takes the level per value from the handle
            levels = after_move.level * handle.value, handle.level * after_move.value
            assert levels[0] == pytest.approx(levels[1], abs=1e-6), handle


@pytest.mark.parametrize("plateaus", [[(20, 30)], [(10, 20), (50, 7)], [(12, 80)]])
def test_curves_beyond_plateau_limits_are_invalid(plateaus):
    curve = PlateauCurve(100, warmup_steps=10, absolute_plateaus=plateaus)
    handles = [each for each in curve_and_peak_handles(curve, PEAK) if each.name.startswith("Plateau")]
    assert len(handles) == 3 * len(plateaus)
    for handle in handles:
        for outside in (handle.low - 1, handle.high + 1):
            arguments = arguments_after_move(curve, handle, outside)
            with pytest.raises(ValueError, match="plateau"):
                Curve.from_dict(arguments)


def test_cooldown_may_start_until_it_ends_at_the_last_step():
    curve = STABLE.cooldown(30, 12)
    (start,) = (each for each in curve_and_peak_handles(curve, PEAK) if each.name == "Cooldown, start")
    assert Curve.from_dict(arguments_after_move(curve, start, start.high)).total_steps == 2**31 - 1


def test_handles_have_unique_names():
    nested = STABLE.cooldown(30, 12).then(STAGED.cooldown(20, 10).cooldown(16, 1)).cooldown(38, 1)
    for curve in (*CURVES, SCALED, nested.then(STABLE)):
        names = [handle.name for handle in curve_and_peak_handles(curve, PEAK)]
        assert names[0] == "Peak learning rate"
        assert len(set(names)) == len(names)
    stairs = StagedCurve([stage for _ in range(MAX_HANDLES) for stage in ((1,), (0, 0.5))], start=1.0)
    assert [handle["name"] for handle in answer_about(stairs)["handles"]] == ["Peak learning rate"]


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*CURVES, SCALED]), st.data())
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


def entries_of(*curves: Curve, peak: float = PEAK) -> list[dict[str, Any]]:
    return [{"curve": curve.to_dict(), "peak": peak} for curve in curves]


def test_ratios_and_learning_rates_match_the_library():
    entries = [{"curve": curve.to_dict(), "peak": 0.5 + place} for place, curve in enumerate(CURVES)]
    answer = answer_page({"curves": entries, "runs": [], "step": 24})
    table = compare(*CURVES)
    assert [ratios["bound"] for ratios in answer["ratios"]] == list(table.bounds)
    assert [ratios["peak_ratio"] for ratios in answer["ratios"]] == list(table.peaks)
    assert [ratios["best_peak"] for ratios in answer["ratios"]] == [0.5 * peak for peak in table.peaks]
    expected = [(0.5 + place) * curve(24) for place, curve in enumerate(CURVES)]
    assert answer["learning_rates"] == pytest.approx(expected, rel=1e-5)


def test_curve_at_zero_has_no_ratio():
    zero = build({"stages": [(10,)], "start": 0.0})
    first, second = answer_page({"curves": entries_of(STABLE, zero), "runs": []})["ratios"]
    assert (first["bound"], second) == (1, {"fault": "no learning rate above 0"})
    _, second = answer_page({"curves": entries_of(zero, STABLE), "runs": []})["ratios"]
    assert "the first curve" in second["fault"]


def test_omissions_of_long_curves_are_reported():
    curve = StagedCurve([(10, 1 - number / 500) for number in range(400)])
    answer = answer_about(curve)
    segments = len(curve.describe().splitlines()[1:])
    assert len(answer["segments"]["rows"]) == 200
    table, picture = (advice["message"] for advice in answer["advice"])
    assert table == f"The table shows the first 200 of {segments} segments."
    assert picture.startswith("The picture has no handles")


@given(st.floats(0, 1, exclude_min=True), st.floats(1e-37, 1e38))
def test_answers_are_json(scale, peak):
    """JSON has neither infinity nor NaN."""
    entries = entries_of(STABLE, STABLE.cooldown(30, 12).then(STAGED, scale=scale), peak=peak)
    json.dumps(answer_page({"curves": entries, "step": 5, "runs": []}), allow_nan=False)


def test_other_answers_are_about_valid_curves():
    faulty = {"curve": {**STABLE.to_dict(), "total_steps": 0}, "peak": PEAK}
    entries = [faulty, {"curve": STABLE.to_dict(), "peak": "3e-4"}]
    answer = answer_page({"curves": entries, "step": 40, "runs": []})
    assert list(answer["curves"][0]) == ["fault"]
    assert answer["curves"][1]["peak"] == PEAK
    assert answer["learning_rates"] == [pytest.approx(PEAK * STABLE(40), rel=1e-5)]
    assert [ratios["bound"] for ratios in answer["ratios"]] == [1]
    undescribed = answer_page({"curves": entries, "describe": False, "step": 40})
    assert undescribed == {"learning_rates": answer["learning_rates"]}


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
    staged = StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0)])
    with suppress_warnings():
        zeros = StagedCurve([(10_000,)])
    cosines = {warm: warm, staged: PlateauCurve(10_000, warmup_steps=500), zeros: PlateauCurve(10_000)}
    for curve, expected in cosines.items():
        cosine, given_curve = initial_curves([("Mine", curve)], PEAK)
        assert cosine == {"name": "Cosine", "peak": PEAK, "curve": expected.to_dict()}
        assert given_curve == {"name": "Mine", "peak": PEAK, "curve": curve.to_dict()}


def test_pictures_of_shapes_fall_and_rise() -> None:
    for choices in choices_per_field().values():
        for levels in (choice["levels"] for choice in choices):
            assert levels["falling"] == sorted(levels["falling"], reverse=True)
            assert levels["rising"] == sorted(levels["rising"])


# The looks of curves: each is visible in light and dark, and has its own dash.

PAGE = files("plateau_jax.design") / "page"


def colours(scheme: int) -> Iterator[NDArray[np.float64]]:
    """Yield linear RGB of the card, then of the curves."""
    css = (PAGE / "page.css").read_text()
    for name in ("card", *(f"c{number}" for number in range(6))):
        text = re.findall(rf"--{name}: light-dark\(#(\w+), #(\w+)\)", css)[0][scheme]
        srgb = np.array([int(text[place : place + 2], 16) for place in (0, 2, 4)]) / 255
        yield np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_differ_from_the_card(scheme):
    card, *curves = colours(scheme)
    for colour in curves:
        low, high = sorted(np.array([card, colour]) @ [0.2126, 0.7152, 0.0722] + 0.05)  # luminances
        assert high / low >= 3  # WCAG 2.2, 1.4.11


def test_every_curve_has_its_dash():
    """A look is a colour and a dash: all twelve dashes differ, for those who see no colour at all."""
    (listed,) = re.findall(r"DASHES = \[([^]]*)\]", (PAGE / "looks.js").read_text())
    dashes = re.findall(r'"([\d ]+)"', listed)
    assert len(set(dashes)) == len(dashes) == 12
