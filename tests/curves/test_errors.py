"""Wrong arguments of curves: in Python, in JSON and on the command line, one message names each."""

import copy
import json
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from support.commands import error_of
from support.curves.strategies import MAX_STEP
from support.curves.wrong_values import (
    A_COUNT,
    A_DECAY_SHAPE,
    A_MAPPING,
    A_NUMBER,
    A_PERCENTAGE,
    A_SHAPE,
    A_STEP,
    AN_INTEGER,
    FINITE,
    IN_0_TO_1,
    NOT_PAIRS,
    NOT_PERCENTAGES,
    NOT_SHAPES,
    in_range,
)
from support.design.design import fault_of
from support.numerics.shapes import WITH_POWER

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.arguments.checks import Message, message_of

# Where the arguments of a curve are written.
PYTHON = "Python"
JSON = "JSON"  # for `from_dict`, `--from FILE` and the design page
COMMAND = "command"
EVERYWHERE = (PYTHON, JSON, COMMAND)

Check = Callable[..., None]
"""check(arguments, error, beginning, *parts): the arguments are rejected with this message."""


@dataclass
class Values:
    """Wrong values of one argument."""

    values: Sequence[Any]
    error: type[Exception]
    requirement: str
    """A part of the message."""
    tried_in: Sequence[str] = EVERYWHERE


@dataclass
class WrongValue:
    value: Any
    error: type[Exception]
    requirement: str

    def beginning(self, argument):
        """Return the beginning of the message, which shows at most 200 characters on one line."""
        shown = " ".join(repr(self.value).split())
        return f"{argument} = {shown[:150]}"


def each_value(*rows):
    """Run a test for each value of each row, wherever it is tried."""
    cases = []
    for row in rows:
        for place in row.tried_in:
            for value in row.values:
                wrong = WrongValue(value, row.error, row.requirement)
                cases.append(pytest.param(place, wrong, id=f"{place}-{value!r:.40}"))
    return pytest.mark.parametrize(("check", "wrong"), cases, indirect=["check"])


@pytest.fixture
def check(request, capsys, tmp_path):
    if request.param == PYTHON:
        return check_in_python
    if request.param == JSON:
        return partial(check_in_json, tmp_path / "curve.json", capsys)
    return partial(check_on_command_line, capsys)


def check_in_python(arguments, error, beginning, *parts):
    written = with_kind(arguments)
    curve_type = {"plateau": PlateauCurve, "staged": StagedCurve}[written.pop("kind")]
    with pytest.raises(error) as caught:
        curve_type(**written)
    check_message(str(caught.value), beginning, *parts)
    check_error(caught.value, error, beginning)


def check_in_json(file, capsys, arguments, error, beginning, *parts):
    text = json.dumps(with_kind(arguments))
    with pytest.raises(error) as caught:
        Curve.from_dict(json.loads(text))
    check_message_with_lists(str(caught.value), beginning, *parts)
    check_error(caught.value, error, beginning)
    check_design_page(json.loads(text), message_of(caught.value))
    file.write_text(text)
    printed = error_of(capsys, "--from", str(file))
    assert printed.endswith(f"curve.json: {caught.value}\n")


def check_on_command_line(capsys, arguments, error, beginning, *parts):
    printed = error_of(capsys, *command_words(with_kind(arguments)))
    assert len(printed.splitlines()) == 1
    check_message_with_lists(printed, f"python -m plateau_jax: error: {beginning}", *parts)


def with_kind(arguments):
    if "stages" in arguments:
        return {"kind": "staged", **arguments}
    return {"kind": "plateau", "total_steps": 100, **arguments}


def command_words(arguments):
    """Return the arguments of a curve as those of the command."""
    repeated = {
        "plateaus": "--plateau",
        "absolute_plateaus": "--absolute-plateau",
        "stages": "--stage",
    }
    words = []
    for name, value in arguments.items():
        if name == "kind":
            continue
        if name == "total_steps":
            words.insert(0, str(value))
        elif name in repeated:
            for items in value:
                words += [repeated[name], *map(str, items)]
        else:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def check_message(message, beginning, *parts):
    assert message.startswith(beginning)
    for part in parts:
        assert part in message


def check_message_with_lists(message, *parts):
    """Compare a message about JSON or the command line, which have lists in place of tuples."""
    check_message(with_lists(message), *map(with_lists, parts))


def with_lists(text):
    return text.replace("(", "[").replace(")", "]")


def check_error(error, error_type, beginning):
    assert type(error) is error_type
    assert "\n" not in str(error)
    argument = beginning.partition(" ")[0]
    assert Message(message_of(error).path, "") == argument


def check_copies(error):
    copies = [copy.copy(error), copy.deepcopy(error)]
    copies.extend(
        pickle.loads(pickle.dumps(error, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    )
    for copied in copies:
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert message_of(copied).path == message_of(error).path


def check_design_page(arguments, message):
    """Check that the page shows the message at the field of the argument."""
    fault = fault_of({"curve": arguments, "peak": 1})
    path = ("curve", *message.path)
    assert fault["message"] == message
    common = len(message.path)  # a field may be a part of the argument, or hold it
    assert fault["path"][:common] == path[:common]


# One argument of each check has every kind of wrong value. One value of each other argument shows
# that it is checked.

NOT_INTEGERS = [True, np.True_, 10.5, 10.0, None, nan, 3j, np.float32(10), [10], Fraction(10)]
NOT_COUNTS = ["k", ".5k", "1,5k", "-1k", "1e3k", "0x1B", "1_0k", "10kB", "9" * 5000 + "k"]


@each_value(
    Values(NOT_INTEGERS, TypeError, A_COUNT, [PYTHON]),
    Values([10.5, "10%", "1e99999", "1e-999999999", "ten", "nan"], TypeError, A_COUNT),
    Values(["10K", "5m", "2b", "1G", "1.5T"], TypeError, A_COUNT),
    Values(NOT_COUNTS, TypeError, A_COUNT, [PYTHON, JSON]),
    Values(["1.2345k", "0.0000001M"], ValueError, "be a whole number; "),
    # JSON, TOML and OmegaConf read 2e5 as a float.
    Values([2e5], TypeError, "'2B': write 200000"),
    Values([0, -5], ValueError, in_range(1, MAX_STEP)),
    Values([MAX_STEP + 1, 10**50], ValueError, A_STEP),
)
def test_total_steps(check, wrong):
    arguments = {"total_steps": wrong.value}
    check(arguments, wrong.error, wrong.beginning("total_steps"), wrong.requirement)


@each_value(
    Values([0.1, "rest", "half"], TypeError, "percentage of total_steps such as '2%'"),
    Values([100], ValueError, in_range(0, "total_steps - 1 = 99")),
    Values([*NOT_PERCENTAGES, f"{'9' * 5000}%"], ValueError, A_PERCENTAGE, [PYTHON, JSON]),
)
def test_warmup_steps(check, wrong):
    arguments = {"warmup_steps": wrong.value}
    check(arguments, wrong.error, wrong.beginning("warmup_steps"), wrong.requirement)


@each_value(
    Values(["0.1", 0j, [0.1], np.True_, None], TypeError, A_NUMBER, [PYTHON]),
    Values([True, "10%"], TypeError, A_NUMBER, [PYTHON, JSON]),
    Values([nan, inf, -inf], ValueError, FINITE, [PYTHON, JSON]),
    Values([-0.1, 1.0000000000000002, 2, 10**150], ValueError, IN_0_TO_1, [PYTHON, JSON]),
)
def test_min_lr_ratio(check, wrong):
    arguments = {"min_lr_ratio": wrong.value}
    check(arguments, wrong.error, wrong.beginning("min_lr_ratio"), wrong.requirement)


@each_value(
    Values([None], ValueError, A_DECAY_SHAPE, [PYTHON]),
    Values([*NOT_SHAPES, "exponential"], ValueError, A_DECAY_SHAPE, [PYTHON, JSON]),
    Values(["t^-1"], ValueError, A_DECAY_SHAPE),
    Values(["1-x^20.01", "(1-x)^20.01", "1-x^0.049"], ValueError, "P in [0.05, 20]"),
)
def test_decay_shape(check, wrong):
    arguments = {"decay_shape": wrong.value}
    check(arguments, wrong.error, wrong.beginning("decay_shape"), wrong.requirement)


NOT_POWERS = ["", "1e-1", " 2", "2\n", "1_0", "½", "inf", "2" * 10**6, "0.5" + "0" * 30]


@pytest.mark.parametrize("formula", WITH_POWER)
@pytest.mark.parametrize("power", NOT_POWERS, ids="{:.20}".format)
def test_power_of_a_shape(formula, power):
    wrong = WrongValue(formula.replace("P", power), ValueError, "a decimal for P")
    arguments = {"stages": [(5, 0.5, wrong.value)]}
    check_in_python(arguments, ValueError, wrong.beginning("stages[0].shape"), wrong.requirement)


NOT_SEQUENCES = [None, 50, "50", np.array(50), {(85, 10)}, {(85, 10): 0}, {85: 10}.items()]


@each_value(Values(NOT_SEQUENCES, TypeError, "sequence of pairs (start, duration)", [PYTHON]))
def test_plateaus(check, wrong):
    arguments = {"plateaus": wrong.value}
    check(arguments, wrong.error, wrong.beginning("plateaus"), wrong.requirement)


@each_value(
    Values(NOT_PAIRS, TypeError, "pair (start, duration) in percent", [PYTHON]),
    Values([(-1, 10), (100.5, 10), (10, -0.5), (500, 300)], ValueError, "0 … 100 %; for steps"),
)
def test_plateau(check, wrong):
    arguments = {"plateaus": [(20, 5), wrong.value]}
    check(arguments, wrong.error, wrong.beginning("plateaus[1]"), wrong.requirement)


@each_value(
    Values([5, "ab", None, (), (1, 0.5, "linear", 2), {10, 0.5}], TypeError, "a stage", [PYTHON]),
    Values([(5, 0, "(1-x)^2", 1)], TypeError, "be a stage (steps, to, shape)"),
)
def test_stage(check, wrong):
    arguments = {"stages": [(5,), wrong.value]}
    check(arguments, wrong.error, wrong.beginning("stages[1]"), wrong.requirement)


@dataclass
class Wrong:
    """Arguments with a mistake, the beginning of the message, and a part of it."""

    arguments: dict[str, Any]
    error: type[Exception]
    beginning: str
    part: str
    tried_in: Sequence[str] = EVERYWHERE


ARGUMENTS = [
    Wrong({"warmup_steps": "1K"}, TypeError, "warmup_steps = '1K'", A_COUNT),
    Wrong({"warmup_steps": "100%"}, ValueError, "warmup_steps = 100 must", "steps - 1 = 99"),
    Wrong({"warmup_steps": 3 * 10**9}, ValueError, "warmup_steps = 3000000000", A_STEP),
    Wrong({"init_lr_ratio": 1.5}, ValueError, "init_lr_ratio = 1.5", IN_0_TO_1),
    Wrong({"warmup_shape": "1-x^2"}, ValueError, "warmup_shape = '1-x^2'", "'linear', 'cosine'"),
    # Plateaus.
    Wrong({"plateaus": [("9,5", 5)]}, TypeError, "plateaus[0].start = '9,5'", A_NUMBER),
    Wrong({"plateaus": [(5, nan)]}, ValueError, "plateaus[0].duration = nan", FINITE, [PYTHON]),
    Wrong({"absolute_plateaus": 5}, TypeError, "absolute_plateaus = 5", "in steps", [PYTHON]),
    Wrong({"absolute_plateaus": [5]}, TypeError, "absolute_plateaus[0] = 5", "pair", [PYTHON]),
    Wrong(
        {"warmup_steps": 10, "absolute_plateaus": [(20, 5), (9, 5)]},
        ValueError,
        "absolute_plateaus[1] = (9, 5)",
        "the warmup ends, at step 10",
    ),
    Wrong(
        {"absolute_plateaus": [(-1, 5)]},
        ValueError,
        "absolute_plateaus[0].start = -1",
        in_range(0, MAX_STEP),
    ),
    Wrong(
        {"plateaus": [(95, 10)]},
        ValueError,
        "plateaus[0] = (95, 10) must end by total_steps = 100",
        "it lasts from step 95 to step 105; the second number is the length, not the end",
    ),
    Wrong(
        {"plateaus": [(25, 10), (10, 20)]},
        ValueError,
        "plateaus[1] = (10, 20)",
        "starts, at step 25",
    ),
    Wrong(
        {"plateaus": [(28, 5)], "absolute_plateaus": [(10, 20)]},
        ValueError,
        "absolute_plateaus[0] = (10, 20)",
        "at step 28",
    ),
    Wrong(
        {"warmup_steps": 10, "plateaus": [(0, 100)]},
        ValueError,
        "plateaus must leave at least one of the 90",
        "StagedCurve",
    ),
    # Stages.
    Wrong({"stages": {"warmup": 5}}, TypeError, "stages = {", "sequence of stages", [PYTHON, JSON]),
    Wrong({"stages": [("Rest",)]}, TypeError, "stages[0].steps = 'Rest'", "the word 'rest'; a"),
    Wrong({"stages": [(-1, 0.5)]}, ValueError, "stages[0].steps = -1", in_range(0, MAX_STEP)),
    Wrong({"stages": [("2%", 1)]}, ValueError, "stages[0].steps = '2%'", "needs total_steps"),
    Wrong({"stages": [(5, "50%")]}, TypeError, "stages[0].to = '50%'", f"{A_NUMBER}; a stage is"),
    Wrong({"stages": [(5, 500)]}, ValueError, "stages[0].to = 500", f"{IN_0_TO_1}; a stage is"),
    Wrong({"stages": [(5, 1)], "start": 2}, ValueError, "start = 2", IN_0_TO_1),
    Wrong({"stages": [(5, 0.5, "sqrt")]}, ValueError, "stages[0].shape = 'sqrt'", A_SHAPE),
    Wrong({"stages": [(5, 0.5, "t^-4.01")]}, ValueError, "stages[0].shape = 't", "[0.25, 4]"),
    Wrong({"stages": [(0, 1)]}, ValueError, "stages add up to 0 steps", "2147483647"),
    Wrong(
        {"stages": [(MAX_STEP,), (1,)]},
        ValueError,
        "stages add up to 2147483648 steps",
        A_STEP,
    ),
    Wrong(
        {"stages": [(5, 0, "exponential")], "start": 1},
        ValueError,
        "stages[0].shape = 'exponential': an",
        "or to 0",
        [PYTHON, JSON],
    ),
    Wrong(
        {"stages": [(5, 0.5, "t^-2")]},
        ValueError,
        "stages[0].shape = 't^-2': a t^-2 stage from",
        "to 0",
        [PYTHON, JSON],
    ),
    Wrong(
        {"stages": [("rest",), ("rest",)], "total_steps": 9},
        ValueError,
        "stages[1].steps = 'rest'",
        "once",
    ),
    Wrong(
        {"stages": [(5,), (3,)], "total_steps": 9},
        ValueError,
        "stages add up to 8 steps",
        "= 9: write 'rest'",
    ),
    Wrong(
        {"stages": [(8, 1), ("50%",), ("rest",)], "total_steps": 9},
        ValueError,
        "stages add up to 12 steps",
        "",
    ),
    # There is no advice to write 'rest': nothing is left for it.
    Wrong(
        {"stages": [(5, 1), (5,)], "total_steps": 9},
        ValueError,
        "stages add up to 10",
        "total_steps = 9\n",
        [COMMAND],
    ),
]


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        pytest.param(place, wrong, id=f"{place}-{wrong.beginning}")
        for wrong in ARGUMENTS
        for place in wrong.tried_in
    ],
    indirect=["check"],
)
def test_arguments(check, wrong):
    check(wrong.arguments, wrong.error, wrong.beginning, wrong.part)


# Curves within curves.


ROOT = {"kind": "plateau", "total_steps": 9}
COOLDOWN = {"kind": "cooldown", "curve": ROOT, "at": 5, "steps": 5}
UNKNOWN_KIND = "must be one of 'cooldown', 'then', 'part', 'plateau', 'scaled', 'staged'; or"


@pytest.mark.parametrize(
    ("arguments", "error", "beginning"),
    [
        ([], TypeError, f"arguments = [] {A_MAPPING}"),
        ({**COOLDOWN, "curve": 5}, TypeError, f"curve = 5 {A_MAPPING}"),
        ({**COOLDOWN, "at": "x"}, TypeError, f"at = 'x' {AN_INTEGER}"),
        (
            {
                "kind": "then",
                "curve": ROOT,
                "other": {**COOLDOWN, "curve": {**ROOT, "total_steps": 0}},
            },
            ValueError,
            "other.curve.total_steps = 0 must",
        ),
        # Unknown names.
        (
            {**COOLDOWN, "curve": {**ROOT, "step": 3}},
            ValueError,
            "curve: 'step' is not an argument of PlateauCurve, which has total",
        ),
        (
            {**ROOT, "x" * 300: 0.1},
            ValueError,
            f"'{'x' * 196}... is not an argument of PlateauCurve, which has total",
        ),
        # Missing and unknown kinds.
        ({"total_steps": 9}, ValueError, "kind is missing: write one of 'cooldown', "),
        ({**COOLDOWN, "curve": {}}, ValueError, "curve.kind is missing: write one of "),
        ({"kind": "wsd"}, ValueError, f"kind = 'wsd' {UNKNOWN_KIND}"),
        ({"kind": 5}, ValueError, f"kind = 5 {UNKNOWN_KIND}"),
        ({"kind": ["staged"]}, ValueError, f"kind = ['staged'] {UNKNOWN_KIND}"),
        # Missing arguments.
        ({"kind": "staged"}, TypeError, "stages is missing: StagedCurve needs stages"),
        (
            {"kind": "cooldown", "curve": ROOT},
            TypeError,
            "at is missing: Cooldown needs curve, at, steps",
        ),
        (
            {**COOLDOWN, "curve": {"kind": "plateau"}},
            TypeError,
            "curve.total_steps is missing: PlateauCurve needs total_steps",
        ),
    ],
)
def test_arguments_of_inner_curves_have_a_path(arguments, error, beginning):
    with pytest.raises(error) as caught:
        Curve.from_dict(arguments)
    assert type(caught.value) is error
    assert str(caught.value).startswith(beginning)
    message = message_of(caught.value)
    path = Message(message.path, "")
    assert beginning.startswith(path)
    names_argument = re.match(r"[\w.\[\]]+( = | is missing|: )", beginning)
    assert bool(path) == bool(names_argument)
    check_design_page(arguments, message)
    check_copies(caught.value)
