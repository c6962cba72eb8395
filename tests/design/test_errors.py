"""What the design page says about a wrong curve or peak, and at which field."""

import pytest
from design.design import PEAK, fault_of
from support.curves.requirements import A_NUMBER

from plateau_jax import PlateauCurve, StagedCurve
from plateau_jax.tools.design.answers import describe_curves

GOOD = PlateauCurve(300, warmup_steps=30, plateaus=[(0, 70)], min_lr_ratio=0.1).to_dict()
STAGES = StagedCurve([(20, 1.0), (80,), (50, 0.0, "1-sqrt")]).to_dict()


# Curves.


def inner_curve(curve):
    """Return a curve in which the cooldown and the continuation are wrong, too."""
    cooldown = {"kind": "cooldown", "curve": curve, "at": 3, "steps": -4}
    return {"kind": "then", "curve": cooldown, "other": {"kind": "plateau", "total_steps": -1}}


@pytest.mark.parametrize(
    ("curve", "path", "message"),
    [
        (
            {**GOOD, "plateaus": [[0, 10], [3, 200]]},
            ("plateaus", 1),
            "plateaus[1] = (3, 200) must lie in 0 …",
        ),
        (
            {**GOOD, "plateaus": [[0, None]]},
            ("plateaus", 0, 1),
            f"plateaus[0].duration = None {A_NUMBER}",
        ),
        (
            {**STAGES, "stages": [[3, 1], ["x", 1]]},
            ("stages", 1, 0),
            "stages[1].steps = 'x' must",
        ),
    ],
)
def test_innermost_fault_stands_at_its_field(curve, path, message):
    fault = fault_of({"curve": curve, "peak": PEAK})
    assert message in fault["message"]
    assert fault["path"] == ("curve", *path)
    fault = fault_of({"curve": inner_curve(curve), "peak": PEAK})
    assert f"curve.curve.{message}" in fault["message"]
    assert fault["path"] == ("curve", "curve", "curve", *path)


# Peaks.


def test_invalid_peak_is_a_fault_of_the_peak():
    fault = fault_of({"curve": GOOD, "peak": -1})
    assert fault["path"] == ("peak",)
    assert fault["message"].startswith("peak = ")


# Warnings.


NINE_STEPS = {"kind": "plateau", "total_steps": 9}


@pytest.mark.parametrize(
    ("curve", "field", "message"),
    [
        (
            {"kind": "plateau", "total_steps": 9, "warmup_steps": 3, "min_lr_ratio": 3e-5},
            "min_lr_ratio",
            "min_lr_ratio = 3e-05 looks like a learning rate",
        ),
        (
            {"kind": "staged", "stages": [["50%", 3e-4], ["rest", 0]], "total_steps": 18},
            "stages",
            "stages have levels that look like learning rates",
        ),
        (
            {"kind": "cooldown", "curve": NINE_STEPS, "at": 20, "steps": 5},
            "at",
            "at = 20: the learning rate is 0 there already",
        ),
    ],
)
def test_warning_is_advice_at_its_field(curve, field, message):
    """A warning in the terminal would be an error here."""
    continued = {"kind": "then", "curve": NINE_STEPS, "other": curve}
    for described, path in ((curve, ("curve",)), (continued, ("curve", "other"))):
        entry = {"curve": described, "peak": PEAK}
        (of_curve,) = describe_curves({"curves": [entry]})["curves"]
        (advice,) = of_curve["advice"]
        assert advice["path"] == (*path, field)
        assert advice["message"].startswith(message)
