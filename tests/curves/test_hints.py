"""Hints in error messages: they say what to write instead of a wrong argument."""

import inspect
import pydoc
import re
from dataclasses import replace

import numpy as np
import pytest
from support.rejections import rejects

from plateau_jax import (
    BatchPlan,
    Curve,
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    compare,
    optax_schedule,
    outlook,
    plot,
    scale_by_curve,
    stack,
)
from plateau_jax.holds.rules import check_rules

INF = float("inf")
INITIAL = scale_by_curve(PlateauCurve(9), 3e-4).init(None)


@pytest.mark.parametrize(
    ("kind", "arguments", "parts"),
    [
        (TypeError, {"total_steps": 1e4}, ["total_steps = 10000.0 must be an integer: write 10000, or //"]),
        (TypeError, {"total_steps": np.float32(8)}, ["must be an integer: write 8, or // in place of /"]),
        (TypeError, {"total_steps": 10.5}, ["must be an integer: write // in place of /"]),
        (TypeError, {"total_steps": INF}, ["total_steps = inf must be", "give the Trainer max_steps"]),
        (
            TypeError,
            {"warmup_steps": 0.1},
            ["a fraction of the total: 10 % of 1000 steps is warmup_steps=100, or warmup_steps='10%'"],
        ),
        (TypeError, {"warmup_steps": np.float32(0.323)}, ["32.3 % of 1000 steps is warmup_steps=323"]),
        (TypeError, {"warmup_steps": 1.0}, ["write 1, or // in place of /"]),
        (TypeError, {"warmup_steps": "0.1"}, ["= '0.1' must be an integer", "percentage, as in '2%'"]),
        (ValueError, {"warmup_shape": 100}, ["warmup_shape = 100 must be", "steps go into warmup_steps"]),
        (TypeError, {"plateaus": (50, 30)}, ["plateaus[0] = 50 must be a pair", "mean plateaus=[(50, 30)]"]),
        (TypeError, {"plateaus": [50.5, 30, 90, 5]}, ["did you mean plateaus=[(50.5, 30), (90, 5)]?"]),
        (TypeError, {"plateaus": np.array([50, 30])}, ["did you mean plateaus=[(50, 30)]?"]),
        (TypeError, {"absolute_plateaus": [50, 30]}, ["did you mean absolute_plateaus=[(50, 30)]?"]),
        (ValueError, {"plateaus": [(500, 300)]}, ["0 … 100 %", "in steps: absolute_plateaus=[(500, 300)]"]),
        (ValueError, {"plateaus": [(50, 300.0)]}, ["in steps: absolute_plateaus=[(50, 300)]"]),
        (ValueError, {"plateaus": [(50, 80)]}, ["duration: 50–80 % is plateaus=[(50, 30)]"]),
        (ValueError, {"plateaus": [(32.3, 80)]}, ["32.3–80 % is plateaus=[(32.3, 47.7)]"]),
        (
            ValueError,
            {"absolute_plateaus": [(500, 800)]},
            ["number of steps: 500–800 is absolute_plateaus=[(500, 300)]"],
        ),
    ],
    ids=str,
)
def test_message_says_what_to_write_instead(kind, arguments, parts):
    rejects(kind, *parts, call=PlateauCurve, **{"total_steps": 1000, **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"plateaus": [50, "30"]},
        {"plateaus": [50, 30, 90]},
        {"plateaus": [(-5, 300)]},
        {"plateaus": [(50.5, 300)]},
        {"plateaus": [(80, 50)]},
        {"absolute_plateaus": [(500, 5000)]},
        {"warmup_steps": -0.1},
        {"warmup_shape": "steps"},
        {"warmup_shape": True},
        {"warmup_steps": INF},
        {"total_steps": float("nan")},
    ],
    ids=str,
)
def test_no_advice_if_none_applies(arguments):
    with pytest.raises((TypeError, ValueError)) as caught:
        PlateauCurve(**{"total_steps": 1000, **arguments})
    for advice in (
        "did you mean",
        "in steps:",
        "duration:",
        "number of steps:",
        " % of",
        "go into",
        "max_steps",
    ):
        assert advice not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: PlateauCurve(300, 30), "by name: write warmup_steps=30"),
        (lambda: PlateauCurve(300, 30, [(50, 30)]), "write warmup_steps=30, plateaus=[(50, 30)]"),
        (
            lambda: PlateauCurve(300, warmup=30),
            "PlateauCurve has no argument warmup: did you mean warmup_steps?",
        ),
        (lambda: PlateauCurve(total=300), "no argument total: did you mean total_steps?"),
        (lambda: PlateauCurve(300, num_steps=3), "did you mean warmup_steps or total_steps?"),
        (
            lambda: PlateauCurve(300, T_max=3),
            "no argument T_max: its arguments are total_steps, warmup_steps,",
        ),
        (lambda: PlateauCurve(), "missing 1 required positional argument: 'total_steps'"),
        (lambda: PlateauCurve("300"), "total_steps = '300' must be an integer"),
        (lambda: StagedCurve([(300,)], 1.0), "after stages by name: write start=1.0"),
        (lambda: StagedCurve([("rest",)], 900), "by name: write start=900 or total_steps=900"),
        (lambda: StagedCurve((100, 1.0), (900,)), "write StagedCurve([(100, 1.0), (900,)])"),
        (lambda: StagedCurve([(300,)], initial=1.0), "no argument initial: its arguments are stages, start"),
        (lambda: StagedCurve([("rest",)], total=9), "no argument total: did you mean total_steps?"),
        (lambda: StagedCurve([("rest",)], 0.0, 9), "by name: write start=0.0, total_steps=9"),
    ],
    ids=range(14),
)
def test_wrong_call_names_right_argument(call, advice):
    with pytest.raises(TypeError) as caught:
        call()
    assert advice in str(caught.value)
    assert caught.value.__cause__ is None


def test_classes_keep_their_signature():
    first = "(total_steps: int, *, warmup_steps: int | str = 0, "
    assert str(inspect.signature(PlateauCurve)).startswith(first)
    assert list(inspect.signature(StagedCurve).parameters) == ["stages", "start", "total_steps"]
    assert "__init__(self, total_steps" in pydoc.plain(pydoc.render_doc(PlateauCurve))
    assert replace(PlateauCurve(9), total_steps=10) == PlateauCurve(10)


@pytest.mark.parametrize(
    ("stage", "instead"),
    [
        ((1.0, 500), (500, 1.0)),
        ((0, 500, "cosine"), (500, 0, "cosine")),
        ((0.5, "rest"), ("rest", 0.5)),
        ((0, "50%", "cosine"), ("50%", 0, "cosine")),
    ],
)
def test_stage_with_level_first_is_turned_around(stage, instead):
    stages = [("50%", 1.0), stage] if isinstance(stage[1], str) else [(500, 1.0), stage]
    with pytest.raises(ValueError, match=re.escape(f"the steps come first: {instead}")):
        StagedCurve(stages, total_steps=1000)
    assert StagedCurve([stages[0], instead], total_steps=1000).stages[1].steps == 500


@pytest.mark.parametrize("warmup", [0, 1, 100])
@pytest.mark.parametrize("plateaus", [[(0, 100)], [(0, 50), (50, 50)]], ids=["one", "two"])
def test_advice_for_no_decay_is_a_constant_curve(warmup, plateaus):
    total = warmup + 200
    with pytest.raises(ValueError, match="must be left to decay") as caught:
        PlateauCurve(total, warmup_steps=warmup, plateaus=plateaus)
    curve = eval(re.search(r"StagedCurve\(.*\)$", str(caught.value))[0])
    steps = range(total + 1)
    assert curve.total_steps == total
    assert (curve(steps) == PlateauCurve(total, warmup_steps=warmup, min_lr_ratio=1)(steps)).all()


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ("sqrt", ": did you mean '1-sqrt'?"),
        ("Linear", ": did you mean 'linear'?"),
        ("cos", ": did you mean 'cosine'?"),
        ("exponential", "StagedCurve([(100, 1.0), (900, 0.01, 'exponential')])"),
        ("t^-0.5", "StagedCurve([(100, 1.0), (900, 0.01, 't^-0.5')])"),
    ],
)
def test_unknown_decay_shape_names_a_known_one(shape, advice):
    rejects(ValueError, advice, call=PlateauCurve, total_steps=9, decay_shape=shape)
    if advice.startswith("StagedCurve"):
        assert eval(advice).stages[-1].shape == shape


def test_rule_values_without_pairs_are_rejected():
    rejects(TypeError, "did you mean value=[(0.5, 3)]", call=HoldBelow, value=[0.5, 3])


@pytest.mark.parametrize("curve", [PlateauCurve(9), StagedCurve([(9, 1.0)])])
def test_curve_without_flat_part_is_rejected(curve):
    parts = "needs a flat part", "add plateaus=[(start %, duration %)]", "(steps,)"
    rejects(ValueError, *parts, call=check_rules, hold=HoldUntilFlat(2, limit=9), curve=curve)


LONG = StagedCurve([(9, 1.0 - i / 1000) for i in range(900)])


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ValueError, lambda: check_rules(HoldUntilFlat(2, limit=9), LONG)),
        (TypeError, lambda: check_rules([LONG], LONG)),
        (TypeError, lambda: LONG.then([LONG])),
        (TypeError, lambda: stack({"long": LONG})),
        (TypeError, lambda: stack([[LONG]])),
    ],
    ids=range(5),
)
def test_message_shortens_long_curve(error, call):
    with pytest.raises(error) as caught:
        call()
    assert "StagedCurve(stages=(Stage(steps=9, " in str(caught.value)
    assert len(str(caught.value)) < 700


GRID = np.zeros((50, 50))
WORDS = "two\nlines" * 999
NESTED_LIST = [[0.5]] * 999


@pytest.mark.parametrize("value", [GRID, WORDS, NESTED_LIST], ids=["array", "text", "list"])
@pytest.mark.parametrize(
    "call",
    [
        PlateauCurve,
        lambda value: PlateauCurve(9, warmup_steps=value),
        lambda value: PlateauCurve(9, plateaus=value),
        lambda value: PlateauCurve(9, plateaus=[value]),
        lambda value: PlateauCurve(9, plateaus=[(value, 1)]),
        lambda value: PlateauCurve(9, min_lr_ratio=value),
        lambda value: PlateauCurve(9, warmup_shape=value),
        lambda value: PlateauCurve(9, decay_shape=value),
        lambda value: PlateauCurve(9).cooldown(value, 3),
        lambda value: PlateauCurve(9).cooldown(3, value),
        lambda value: PlateauCurve(9).cooldown(3, 3, to=value),
        lambda value: PlateauCurve(9).then(value),
        lambda value: PlateauCurve(9).then(PlateauCurve(9), scale=value),
        lambda value: PlateauCurve(9).same_until(value, 3),
        StagedCurve,
        lambda value: StagedCurve([value]),
        lambda value: StagedCurve([(value, value)]),
        lambda value: StagedCurve([(3, value)]),
        lambda value: StagedCurve([(3,)], start=value),
        Curve.from_dict,
        lambda value: Curve.from_dict({"kind": str(value)}),
        BatchPlan,
        BatchPlan.from_dict,
        lambda value: HoldBelow(value, 3),
        lambda value: HoldBelow(0.5, value),
        lambda value: optax_schedule(PlateauCurve(9), value),
        lambda value: optax_schedule(value, 3e-4),
        lambda value: scale_by_curve(PlateauCurve(9), 3e-4, unit=value),
        lambda value: scale_by_curve(PlateauCurve(9), 3e-4).update(1.0, INITIAL, count=value),
        lambda value: outlook(value),
        lambda value: compare(PlateauCurve(9), value),
        lambda value: plot(PlateauCurve(9), value),
    ],
    ids=range(32),
)
def test_message_shows_a_line_of_a_long_value(call, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(value)
    (line,) = str(caught.value).splitlines()
    assert len(line) < 900


@pytest.mark.parametrize(
    ("written", "curve"),
    [
        ({"total_steps": 9}, PlateauCurve(9)),
        ({"kind": "staged", "stages": [[5, 1.0]]}, StagedCurve([(5, 1.0)])),
        (
            {"kind": "cooldown", "curve": {"total_steps": 9}, "at": 3, "steps": 2},
            PlateauCurve(9).cooldown(3, 2),
        ),
        (
            {"kind": "then", "curve": {"total_steps": 9}, "other": {"total_steps": 5}},
            PlateauCurve(9).then(PlateauCurve(5)),
        ),
    ],
    ids=str,
)
def test_missing_keys_get_defaults(written, curve):
    assert Curve.from_dict(written) == type(curve).from_dict(written) == curve
    needed = written.keys() & {"total_steps", "stages", "curve", "other", "at", "steps"}
    for name in needed:
        rest = {key: value for key, value in written.items() if key != name}
        rejects(ValueError, f"missing keys ['{name}']", call=type(curve).from_dict, arguments=rest)
