"""What the design page says about a wrong curve, peak or log, and at which field."""

from dataclasses import dataclass
from typing import Any

import pytest
from support.design.design import PEAK, answer_about, fault_of
from support.forecasts.logs import LOSSES, STEPS, csv_of, opened

from plateau_jax import PlateauCurve, StagedCurve
from plateau_jax.tools.design.answers import answer_page

GOOD = PlateauCurve(300, warmup_steps=30, plateaus=[(0, 70)], min_lr_ratio=0.1).to_dict()
STAGES = StagedCurve([(20, 1.0), (80,), (50, 0.0, "1-sqrt")]).to_dict()


# Curves.


@dataclass(frozen=True)
class Fault:
    """A wrong curve, the path of its field, and how its message begins."""

    curve: dict[str, Any]
    path: tuple[str | int, ...]
    message: str


def of_plateaus(plateaus, path, message):
    return Fault({**GOOD, "plateaus": plateaus}, ("plateaus", *path), message)


def of_stages(stages, path, message):
    return Fault({**STAGES, "stages": stages}, ("stages", *path), message)


every_fault = pytest.mark.parametrize(
    "fault",
    [
        Fault({**GOOD, "total_steps": 0}, ("total_steps",), "total_steps = 0 must lie in 1"),
        of_plateaus([[0, 10], [3, 200]], (1,), "plateaus[1] = (3, 200) must lie in 0 …"),
        of_plateaus([[0, None]], (0, 1), "plateaus[0].duration = None must be a number"),
        of_stages([[3, 1], ["x", 1]], (1, 0), "stages[1].steps = 'x' must"),
        of_stages([[3, 1, "oval"]], (0, 2), "stages[0].shape = 'oval' must"),
        Fault({"kind": "oval"}, ("kind",), "kind = 'oval' must be one of"),
    ],
    ids=lambda fault: fault.message,
)


def cooldown_of(curve):
    return {"kind": "cooldown", "curve": curve, "at": 3, "steps": 4}


def inner_curve(curve):
    """Return a curve in which the cooldown and the continuation are wrong, too."""
    cooldown = {**cooldown_of(curve), "steps": -4}
    return {"kind": "then", "curve": cooldown, "other": {"kind": "plateau", "total_steps": -1}}


@every_fault
def test_fault_stands_at_its_field(fault):
    found = fault_of({"curve": fault.curve, "peak": PEAK})
    assert fault.message in found["message"]
    assert found["path"] == ("curve", *fault.path)


@every_fault
def test_innermost_fault_counts(fault):
    found = fault_of({"curve": inner_curve(fault.curve), "peak": PEAK})
    assert f"curve.curve.{fault.message}" in found["message"]
    assert found["path"] == ("curve", "curve", "curve", *fault.path)


@pytest.mark.parametrize(
    ("curve", "path"),
    [
        (5, ("curve", "arguments")),
        (inner_curve(5), ("curve", "curve", "curve")),
    ],
)
def test_number_instead_of_a_curve(curve, path):
    fault = fault_of({"curve": curve, "peak": PEAK})
    assert " = 5 must be a mapping" in fault["message"]
    assert fault["path"] == path


def test_curve_of_too_many_stages():
    many = {"kind": "staged", "stages": [[10, 0.5]] * 20_000, "start": 1.0}
    fault = fault_of({"curve": many, "peak": PEAK})
    assert "characters of JSON; the page takes at most 200000" in fault["message"]
    assert fault["path"] == ("curve",)


# Peaks.


@pytest.mark.parametrize("peak", [-1, "x", None, 1e300])
def test_invalid_peak_is_a_fault_of_the_peak(peak):
    fault = fault_of({"curve": GOOD, "peak": peak})
    assert fault["path"] == ("peak",)
    assert fault["message"].startswith("peak = ")


def test_unlikely_peak_gets_a_remark():
    curve = PlateauCurve.from_dict(GOOD)
    (remark,) = answer_about(curve, 1e9)["advice"]
    assert remark["path"] == ("peak",)
    assert remark["message"].startswith("peak = 1e+09 is large")
    assert answer_about(curve, 10.0)["advice"] == []


# Warnings.


@dataclass(frozen=True)
class Unlikely:
    """A curve that is a likely mistake, its field, and how the advice about it begins."""

    curve: dict[str, Any]
    field: str
    advice: str


every_unlikely_curve = pytest.mark.parametrize(
    "unlikely",
    [
        Unlikely(
            {"kind": "plateau", "total_steps": 9, "warmup_steps": 3, "min_lr_ratio": 3e-5},
            "min_lr_ratio",
            "min_lr_ratio = 3e-05 looks like a learning rate",
        ),
        Unlikely(
            {"kind": "staged", "stages": [["50%", 3e-4], ["rest", 0]], "total_steps": 18},
            "stages",
            "stages have levels that look like learning rates",
        ),
        Unlikely(
            {
                "kind": "cooldown",
                "curve": {"kind": "plateau", "total_steps": 9},
                "at": 20,
                "steps": 5,
            },
            "at",
            "at = 20: the learning rate is 0 there already",
        ),
    ],
    ids=lambda unlikely: unlikely.advice,
)


def advice_about(curve):
    """Return the only advice about a curve. A warning in the terminal would be an error here."""
    entry = {"curve": curve, "peak": PEAK}
    answer = answer_page({"curves": [entry], "step": 5, "runs": []})
    (of_curve,) = answer["curves"]
    (advice,) = of_curve["advice"]
    return advice


@every_unlikely_curve
def test_warning_is_advice_at_its_field(unlikely):
    advice = advice_about(unlikely.curve)
    assert advice["path"] == ("curve", unlikely.field)
    assert advice["message"].startswith(unlikely.advice)
    continued = {"kind": "then", "curve": {"kind": "plateau", "total_steps": 9}}
    advice = advice_about({**continued, "other": unlikely.curve})
    assert advice["path"] == ("curve", "other", unlikely.field)


# Logs.

TEXT = csv_of(step=STEPS, loss=LOSSES)


def check_unclear(answer, message, *, argument=None, columns=()):
    """Check that an answer asks for an argument, and which columns it offers to choose from."""
    assert answer["argument"] == argument
    assert answer["columns"] == list(columns)
    assert message in answer["fault"]
    assert not answer["fault"].endswith("or")  # the page ends the sentence, and adds its own advice


def test_log_without_learning_rates_or_curve():
    answer = opened(TEXT, None, None)
    message = "no usual column for lr among 'step', 'loss'"
    check_unclear(answer, message, argument="lr", columns=["step", "loss"])


def test_log_of_too_many_lines():
    answer = opened("\n" * 100_001)
    message = "log.csv has 100001 lines; this page reads at most 100000"
    check_unclear(answer, message)


def test_resumed_run_is_advice():
    text = csv_of(step=[*STEPS, 900], loss=[*LOSSES, 3])
    (advice,) = opened(text)["advice"]
    count = "6 earlier losses are left out, from step 900 on"
    assert f"steps repeat, as in a resumed run: {count}" in advice
