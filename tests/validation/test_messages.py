"""Messages: one wording in Python, on the command line and on the page, with the path of the argument."""

import copy
import inspect
import json
import pickle
import pydoc
from dataclasses import replace

import numpy as np
import pytest
from support.design.design import describe_curve
from support.rejections import rejected, rejects

from plateau_jax import (
    BatchPlan,
    Curve,
    HoldBelow,
    PlateauCurve,
    StagedCurve,
    compare,
    optax_schedule,
    outlook,
    plot,
    scale_by_curve,
)
from plateau_jax.validation.checks import Message, message_of, must

INITIAL = scale_by_curve(PlateauCurve(9), 3e-4).init(None)
NO_PICKLE = (item for item in ())  # a generator
NESTED = {"kind": "cooldown", "curve": {"total_steps": 0}, "at": 5, "steps": 5}
A_STAGE = "; a stage is (steps, to, shape)"
A_LENGTH = "be an integer, or with total_steps a percentage such as '2%' or the word 'rest'" + A_STAGE
LASTS, A_PLATEAU = "it lasts from step 100 to step", "the second number is the length, not the end"
NO_DECAY = "for a curve that never decays use StagedCurve"

MESSAGES = [
    ({"total_steps": 1e4}, TypeError, "total_steps", " = 10000.0 must be an integer"),
    (
        {"warmup_steps": 0.1},
        TypeError,
        "warmup_steps",
        " = 0.1 must be an integer, or a percentage of total_steps such as '2%'",
    ),
    ({"plateaus": [50, 30]}, TypeError, ("plateaus", 0), " = 50 must be a pair (start, duration) in percent"),
    ({"plateaus": [(5, "9,5")]}, TypeError, ("plateaus", 0, "duration"), " = '9,5' must be a number"),
    (
        {"plateaus": [(5, 2), (500, 300)]},
        ValueError,
        ("plateaus", 1),
        " = (500, 300) must lie in 0 … 100 %; for steps use absolute_plateaus",
    ),
    (
        {"plateaus": [(50, 30), (10, 45)]},
        ValueError,
        ("plateaus", 1),
        f" = (10, 45) must end before the next plateau starts, at step 500: {LASTS} 550; {A_PLATEAU}",
    ),
    (
        {"absolute_plateaus": [(500, 800)]},
        ValueError,
        ("absolute_plateaus", 0),
        f" = (500, 800) must end by total_steps = 1000: {LASTS.replace('100', '500')} 1300; {A_PLATEAU}",
    ),
    (
        {"plateaus": [(0, 100)]},
        ValueError,
        "plateaus",
        f" must leave at least one of the 1000 steps after the warmup to decay; {NO_DECAY}",
    ),
    ({"stages": [(0.02, 1.0)]}, TypeError, ("stages", 0, "steps"), f" = 0.02 must {A_LENGTH}"),
    ({"stages": [(1.0, 500)]}, ValueError, ("stages", 0, "to"), f" = 500 must lie in [0, 1]{A_STAGE}"),
    (
        {"stages": [("50%", 1.0)], "total_steps": None},
        ValueError,
        ("stages", 0, "steps"),
        " = '50%' is a fraction of all steps, and needs total_steps",
    ),
    (
        {"stages": [("5%", 1.0), (5, 0)]},
        ValueError,
        "stages",
        " add up to 55 steps, not to total_steps = 1000: write 'rest' for one of the lengths",
    ),
    (
        {"stages": [(1000, 0.0, "exponential")]},
        ValueError,
        ("stages", 0, "shape"),
        " = 'exponential': an exponential stage from or to 0 is not defined",
    ),
    ({"kind": "oval"}, ValueError, "kind", None),
    ({"min_lr": 0.1}, ValueError, (), None),
    ({**NESTED, "curve": 5}, TypeError, "curve", " = 5 must be a mapping, as to_dict returns it"),
    (
        {"kind": "then", "curve": {"total_steps": 9}, "other": NESTED},
        ValueError,
        ("other", "curve", "total_steps"),
        " = 0 must lie in 1 … 2**31 - 1 = 2147483647",
    ),
]


def _complete(arguments):
    arguments = arguments if "curve" in arguments else {"total_steps": 1000} | arguments
    return {name: value for name, value in arguments.items() if value is not None}


@pytest.mark.parametrize(("arguments", "error", "path", "text"), MESSAGES, ids=str)
def test_message_names_the_path_alike_everywhere(tmp_path, capsys, arguments, error, path, text):
    arguments = _complete(arguments)
    with pytest.raises(error) as caught:
        Curve.from_dict(arguments)
    message = message_of(caught.value)
    assert message.path == ((path,) if isinstance(path, str) else path)
    if text is not None:
        assert message == Message(path, text) == str(caught.value)
    if not {"kind", "min_lr"} & arguments.keys():
        with pytest.raises(error) as constructed:
            (StagedCurve if "stages" in arguments else PlateauCurve)(**arguments)
        assert str(constructed.value) == message
    written = json.dumps(arguments)
    shown = str(message).replace("(", "[").replace(")", "]")  # JSON has lists in place of tuples
    fault = describe_curve({"curve": arguments, "peak": 1})["fault"]
    assert fault["message"] == message
    assert fault["path"][: len(message.path)] == ("curve", *message.path)[: len(message.path)]
    (tmp_path / "curve.json").write_text(written)
    printed = rejected(capsys, ["--from", str(tmp_path / "curve.json")])
    assert printed.replace("(", "[").replace(")", "]").endswith(f"curve.json: {shown}\n")


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (
            {"total_steps": 9, "min_lr": 0.1},
            "'min_lr' is not an argument of PlateauCurve, which has total_ste",
        ),
        (
            {"stages": [[9]], "at": 1},
            "'at' is not an argument of StagedCurve, which has stages, start, total_",
        ),
        (
            {**NESTED, "curve": {"step": 3}},
            "curve: 'step' is not an argument of PlateauCurve, which has total",
        ),
        (
            {"kind": "oval"},
            "'oval' must be one of 'cooldown', 'then', 'part', 'scaled', 'staged', or left out",
        ),
    ],
)
def test_unknown_keys_are_named_with_the_known_ones(arguments, known):
    rejects(ValueError, known, call=Curve.from_dict, arguments=arguments)


WRONG = [
    *(lambda wrong=wrong: Curve.from_dict(_complete(wrong)) for wrong, *_ in MESSAGES),
    lambda: PlateauCurve(9, warmup_shape=NO_PICKLE),
    lambda: StagedCurve([(5, 0.5, NO_PICKLE)]),
    lambda: StagedCurve([(5, 0.5, "\n")]),
    lambda: PlateauCurve(9).cooldown(2**31 - 1, 1),
    lambda: Curve.from_dict(
        {"kind": "then", "curve": {"total_steps": 9}, "other": {"total_steps": NO_PICKLE}}
    ),
    lambda: BatchPlan([(0, NO_PICKLE)]),
    lambda: HoldBelow([(0.5, NO_PICKLE)]),
]


@pytest.mark.parametrize("call", WRONG, ids=range(len(WRONG)))
def test_errors_survive_pickle_and_copy(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    error = caught.value
    assert "\n" not in str(error)
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in (*copies, copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert message_of(other).path == message_of(error).path


def test_new_check_is_one_line_in_one_place():
    message = must(("stages", 0, "to"), 5, "lie in [0, 1]")
    assert message == "stages[0].to = 5 must lie in [0, 1]"
    assert message.within(("curve", "other")) == "curve.other.stages[0].to = 5 must lie in [0, 1]"


def test_classes_keep_their_signature():
    first = "(total_steps: int, *, warmup_steps: int | str = 0, "
    assert str(inspect.signature(PlateauCurve)).startswith(first)
    assert list(inspect.signature(StagedCurve).parameters) == ["stages", "start", "total_steps"]
    assert "__init__(self, total_steps" in pydoc.plain(pydoc.render_doc(PlateauCurve))
    assert replace(PlateauCurve(9), total_steps=10) == PlateauCurve(10)


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
