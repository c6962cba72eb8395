"""What the design page says about a wrong curve, peak or log, and at which field."""

from typing import Any

import pytest
from support.design.design import PEAK, answer_about, fault_of
from support.forecasts.logs import LOSSES, STEPS, csv_of, opened

from plateau_jax import PlateauCurve, StagedCurve
from plateau_jax.design.answers import answer_page

GOOD = PlateauCurve(300, warmup_steps=30, plateaus=[(0, 70)], min_lr_ratio=0.1).to_dict()
STAGES = StagedCurve([(20, 1.0), (80,), (50, 0.0, "1-sqrt")]).to_dict()

# A curve, the path of the field, and its message.
FAULTS: list[tuple[Any, list[Any], str]] = [
    ({**GOOD, "total_steps": 0}, ["total_steps"], "total_steps = 0 must lie in 1"),
    ({**GOOD, "plateaus": [[0, 10], [3, 200]]}, ["plateaus", 1], "plateaus[1] = (3, 200) must lie in 0 …"),
    ({**GOOD, "plateaus": [[0, 100]]}, ["plateaus"], "plateaus must leave at least one"),
    ({**GOOD, "plateaus": [[None, 9]]}, ["plateaus", 0, 0], "plateaus[0].start = None must be a number"),
    ({**GOOD, "plateaus": [[0, None]]}, ["plateaus", 0, 1], "plateaus[0].duration = None must be a number"),
    ({**STAGES, "stages": []}, ["stages"], "stages add up to 0 steps"),
    ({**STAGES, "stages": [[3, 1], ["x", 1]]}, ["stages", 1, 0], "stages[1].steps = 'x' must"),
    ({**STAGES, "stages": [[3, 1], [3, 2]]}, ["stages", 1, 1], "stages[1].to = 2 must lie in"),
    ({**STAGES, "stages": [[3, 1, "oval"]]}, ["stages", 0, 2], "stages[0].shape = 'oval' must"),
    ({"kind": "oval"}, ["kind"], "kind = 'oval' must be one of"),
    (5, [], " = 5 must be a mapping"),
]


@pytest.mark.parametrize("place", ["alone", "curve", "other", "deep"])
@pytest.mark.parametrize(("arguments", "path", "message"), FAULTS)
def test_faults_stand_at_their_field(arguments, path, message, place):
    cooldown = {"kind": "cooldown", "curve": arguments, "at": 3, "steps": 4}
    nested, inner = {
        "alone": (arguments, []),
        "curve": (cooldown, ["curve"]),
        "other": ({"kind": "then", "curve": GOOD, "other": arguments}, ["other"]),
        # The innermost fault counts.
        "deep": ({"kind": "then", "curve": {**cooldown, "steps": -4}, "other": {"total_steps": -1}},
                 ["curve", "curve"]),
    }[place]  # fmt: skip
    fault = fault_of({"curve": nested, "peak": PEAK})
    assert (".".join([*inner, message]) if path else message) in fault["message"]
    alone = [] if path or inner else ["arguments"]
    assert list(fault["path"]) == ["curve", *inner, *path, *alone]


@pytest.mark.parametrize("peak", [-1, "x", None, True, 1e300, 1e-300, float("nan")])
def test_invalid_peak_is_a_fault_of_the_peak(peak):
    fault = fault_of({"curve": GOOD, "peak": peak})
    assert fault["path"] == ("peak",)
    assert fault["message"].startswith("peak = ")


def test_curve_of_too_many_stages_is_rejected_at_once():
    many = {"stages": [[10, 0.5]] * 3000, "start": 1.0}
    both = {"kind": "then", "curve": many, "other": {"kind": "part", "curve": many}}
    pairs = [[step, 8] for step in range(5999)]
    scaled = {"kind": "scaled", "curve": GOOD, "pairs": pairs, "unit": 1, "reference": 8}
    for curve in (both, scaled):
        message = fault_of({"curve": curve, "peak": PEAK})["message"]
        assert "curve has 6000 stages, plateaus and batches; this page takes at most 5000" in message


ADVICE: list[tuple[Any, str, str]] = [
    ({"total_steps": 9, "warmup_steps": 3, "min_lr_ratio": 3e-5}, "min_lr_ratio",
     "min_lr_ratio = 3e-05 looks like a learning rate"),
    ({"stages": [["50%", 3e-4], ["rest", 0]], "total_steps": 18}, "stages",
     "stages have levels that look like learning rates"),
    ({"stages": [[9], [9, 0]]}, "start", "start = 0 and no stage rises, so the curve is 0 at every step"),
    ({"total_steps": 1000, "plateaus": [[0, 0.5]]}, "plateaus",
     "plateaus = [(0, 0.5)] look like fractions of 1"),
    ({"kind": "cooldown", "curve": {"total_steps": 9}, "at": 20, "steps": 5}, "at",
     "at = 20: the learning rate is 0 there already"),
]  # fmt: skip


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(("arguments", "field", "begin"), ADVICE)
def test_warnings_are_advice_at_their_field(arguments, field, begin, is_nested):
    """They are not warnings in the terminal, where nobody would see them."""
    path: tuple[str, ...] = ("curve",)
    if is_nested:
        arguments, path = {"kind": "then", "curve": GOOD, "other": arguments}, ("curve", "other")
    entry = {"curve": arguments, "peak": PEAK}
    (advice,) = answer_page({"curves": [entry], "step": 5, "runs": []})["curves"][0]["advice"]
    assert advice["path"] == (*path, field)
    assert advice["message"].startswith(begin)


def test_unlikely_peak_gets_a_remark():
    curve = PlateauCurve.from_dict(GOOD)
    (remark,) = answer_about(curve, 1e9)["advice"]
    assert (remark["path"], remark["message"][:21]) == (("peak",), "peak = 1e+09 is large")
    assert answer_about(curve, 10.0)["advice"] == []


TEXT = csv_of(step=STEPS, loss=LOSSES)
NO_CURVE = {"curve": None, "peak": None}
# A log, what the user chose next to it, the argument that helps, the columns to choose from, and the message.
LOGS: list[tuple[str, dict[str, Any], str | None, list[str], str]] = [
    (TEXT, NO_CURVE, "lr", ["step", "loss"], "no usual column for lr among 'step', 'loss'"),
    (csv_of(step=[500, 600], loss=[3, 2], lr=[0, 0]), NO_CURVE, "curve", [], "no learning rate above 0"),
    (csv_of(n=STEPS, loss=LOSSES), {}, "step", ["n", "loss"], "the log has no usual column for step"),
    ("{", {}, None, [], "log.csv, row 1: this line is not JSON"),
    ("\n" * 100_001, {}, None, [], "log.csv has 100001 lines; this page reads at most 100000"),
    (csv_of(step=STEPS, loss=-LOSSES), {}, None, [], "the log: losses[0] = -2."),
]


@pytest.mark.parametrize(("text", "chosen", "argument", "columns", "message"), LOGS)
def test_unclear_logs_ask_for_an_argument(text, chosen, argument, columns, message):
    answer = opened(text, **chosen)
    assert (answer["argument"], answer["columns"]) == (argument, columns)
    assert message in answer["fault"]
    assert not answer["fault"].endswith("or")  # the page ends the sentence, and adds its own advice


def test_warnings_about_a_log_are_advice():
    (advice,) = opened(csv_of(step=[*STEPS, 900], loss=[*LOSSES, 3]))["advice"]
    assert "steps repeat, as in a resumed run: 6 earlier losses are left out, from step 900 on" in advice
    (advice,) = opened(csv_of(step=STEPS, loss=10 * LOSSES))["advice"]
    assert "take the logarithm" in advice
