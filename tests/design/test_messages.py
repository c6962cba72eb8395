"""Messages of the design page: the constructors' own, next to their field."""

import pytest
from support.design.design import describe_curve

from plateau_jax import PlateauCurve

PEAK = 3e-4
PLATEAUS = PlateauCurve(1_000, warmup_steps=100, plateaus=[(10, 30)], absolute_plateaus=[(700, 50)])

SHARE = {"total_steps": 9, "min_lr_ratio": 3e-5}
START = {"total_steps": 9, "warmup_steps": 3, "init_lr_ratio": 3e-5}
LOW, ZERO = {"stages": [[9, 3e-4], [9, 0]]}, {"stages": [[9], [9, 0]]}
FRACTIONS = {"total_steps": 1000, "plateaus": [[0, 0.5]]}
SHORT = {"total_steps": 1000, "plateaus": [[10, 0.01]]}
LATE = {"kind": "cooldown", "curve": {"total_steps": 9}, "at": 20, "steps": 5}


@pytest.mark.parametrize(
    ("arguments", "field", "begin"),
    [
        (SHARE, "min_lr_ratio", "min_lr_ratio = 3e-05 looks like a learning rate"),
        (START, "init_lr_ratio", "init_lr_ratio = 3e-05 looks like a learning rate"),
        (LOW, "stages", "stages have levels that look like learning rates"),
        (ZERO, "start", "start = 0 and no stage rises, so the curve is 0 at every step"),
        (FRACTIONS, "plateaus", "plateaus = [(0, 0.5)] look like fractions of 1"),
        (SHORT, "plateaus", "plateaus: a duration of 0.01 % of 1000 steps rounds down to 0 steps"),
        (LATE, "at", "at = 20: the learning rate is 0 there already"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_warnings_stand_at_their_field(arguments, field, begin, is_nested):
    path = ("curve",)
    if is_nested:
        arguments, path = (
            {"kind": "then", "curve": PLATEAUS.to_dict(), "other": arguments},
            ("curve", "other"),
        )
    (advice,) = describe_curve({"curve": arguments, "peak": PEAK})["advice"]
    assert advice["path"] == (*path, field)
    assert advice["message"].startswith(begin)
