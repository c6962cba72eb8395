"""Messages as data: what they say on each surface, and that errors with them can be pickled and copied."""

import copy
import pickle

import pytest

from plateau_jax import BatchPlan, Curve, HoldBelow, LossRun, PlateauCurve, StagedCurve
from plateau_jax.__main__ import main
from plateau_jax.curves import plateau_curve
from plateau_jax.design.answers import describe_curve, open_curves
from plateau_jax.design.messages import JsonWords, PageWords
from plateau_jax.option_parser import OptionWords
from plateau_jax.validation.checks import must, ratio
from plateau_jax.validation.messages import PYTHON, WRITE, Name, code, computed, message_of, within

WORDS = PYTHON, OptionWords(), PageWords(3e-4), JsonWords()
CURVE = PlateauCurve(1000, warmup_steps=100)
NO_PICKLE = (item for item in ())  # a generator
TWO_LOSSES = [{"step": step, "a_loss": 1.0, "b_loss": 2.0} for step in (1, 2)]

WRONG = [
    lambda: PlateauCurve(10.0),
    lambda: PlateauCurve(9, warmup_steps=0.5),
    lambda: PlateauCurve(9, warmup_shape=NO_PICKLE),
    lambda: PlateauCurve(9, plateaus=[50, 30]),
    lambda: PlateauCurve(9, plateaus=[(NO_PICKLE, 30)]),
    lambda: PlateauCurve(9, plateaus=[(5, 200)]),
    lambda: PlateauCurve(9, plateaus=[(0, 100)]),
    lambda: PlateauCurve(900, plateaus=[(10, 30)], absolute_plateaus=[(100, 30)]),
    lambda: StagedCurve([(0.5, 500, NO_PICKLE)]),
    lambda: StagedCurve([(0.5, 500, "\n")]),
    lambda: StagedCurve([("50%", 1.0)]),
    lambda: StagedCurve([(9, 0.0, "exponential")]),
    lambda: CURVE.cooldown(2**31 - 1, 1),
    lambda: Curve.from_dict({"kind": "then", "curve": CURVE.to_dict(), "other": {"total_steps": NO_PICKLE}}),
    lambda: Curve.from_dict({"total_step": 9}),
    lambda: BatchPlan([(0, NO_PICKLE)]),
    lambda: HoldBelow([(0.5, NO_PICKLE)]),
    lambda: LossRun.read(TWO_LOSSES, CURVE, 1.0),
]


@pytest.mark.parametrize("call", WRONG, ids=range(len(WRONG)))
def test_errors_survive_pickle_and_copy(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    error, message = caught.value, message_of(caught.value)
    texts = [words.text(message) for words in WORDS]
    assert texts[0] == str(error)
    assert all("\n" not in text for text in texts)
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in (*copies, copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert [words.text(message_of(other)) for words in WORDS] == texts
        assert message_of(other).place == message.place
        assert getattr(other, "columns", None) == getattr(error, "columns", None)


@pytest.mark.parametrize(
    ("advice", "in_code", "plain"),
    [
        ("", "", ""),
        ("give 4", ": give 4", ": give 4"),
        (code("// 2"), ": // 2", ""),
        (WRITE, ": write", ": type"),
    ],
)
def test_advice_is_for_all_unless_it_is_code(advice, in_code, plain):
    message = must("peak", 3, "be even", advice=advice)
    assert [words.text(message) for words in WORDS] == [
        f"peak = 3 must be even{in_code}",
        f"--peak 3 must be even{in_code}",
        f"{{peak}}: 3 must be even{plain}",
        f"“peak”: 3 must be even{plain}",
    ]


def test_new_check_is_one_line_in_one_place(monkeypatch, capsys):
    def check(place, value):
        if value == 0.3:
            raise ValueError(must(place, value, within(0, computed(9, Name("total_steps"), " - 1"))))
        return ratio(place, value)

    monkeypatch.setattr(plateau_curve, "ratio", check)
    with pytest.raises(ValueError, match=r"^min_lr_ratio = 0.3 must lie in 0 … total_steps - 1 = 9$"):
        PlateauCurve(10, min_lr_ratio=0.3)
    with pytest.raises(SystemExit):
        main(["10", "--min-lr-ratio", "0.3"])
    assert "error: --min-lr-ratio 0.3 must lie in 0 … TOTAL - 1 = 9\n" in capsys.readouterr().err
    fault = describe_curve({"curve": {"total_steps": 10, "min_lr_ratio": 0.3}, "peak": 1.0})["fault"]
    assert (fault["message"], fault["field"]) == (
        "{min_lr_ratio}: 0.3 must lie between 0 and 9",
        "min_lr_ratio",
    )
    answer = open_curves({"text": '{"total_steps": 10, "min_lr_ratio": 0.3}'})
    assert answer == {"fault": "“min_lr_ratio”: 0.3 must lie between 0 and 9"}
