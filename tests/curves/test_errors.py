"""Wrong arguments of curves, also of curves within curves: a message names each by its path."""

import copy
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from support.curves.requirements import (
    A_COUNT,
    A_DECAY_SHAPE,
    A_MAPPING,
    A_NUMBER,
    A_PERCENTAGE,
    A_SHAPE,
    A_STEP,
    FINITE,
    IN_0_TO_1,
    in_range,
)
from support.curves.strategies import MAX_STEP

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.arguments.checks import Message, message_of


def check_rejection(arguments, error, beginning, part):
    """Check that a curve is rejected, and that the message is a line that names its argument."""
    if "stages" in arguments:
        curve_type = StagedCurve
    else:
        curve_type = PlateauCurve
        arguments = {"total_steps": 100, **arguments}
    with pytest.raises(error) as caught:
        curve_type(**arguments)
    message = message_of(caught.value)
    assert type(caught.value) is error
    assert message.startswith(beginning)
    assert part in message
    assert "\n" not in message
    assert Message(message.path, "") == beginning.partition(" ")[0]


def check_copies(error):
    for copied in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert message_of(copied).path == message_of(error).path


# Every kind of wrong value, of one argument for each check. Other arguments with the same check
# have one wrong value, below.

NOT_INTEGERS = [True, np.True_, 10.5, None, nan, 3j, [10], Fraction(10)]
NOT_COUNTS = ["k", ".5k", "1,5k", "-1k", "1e3k", "0x1B", "1_0k", "10kB", "9" * 5000 + "k"]
NOT_NUMBERS_OF_STEPS = ["10%", "1e99999", "1e-999999999", "ten", "nan", "10K", "5m", "2b", "1.5G"]
NOT_PAIRS = [(50,), (50, 10, 5), 50, {85, 10}]
NOT_PERCENTAGES = ["-1%", "100.0001%", "nan%", "inf%", "%", "2%%", "2 % 3", "1/2%", "2%\n."]
NOT_SHAPES = ["x^2", "1 - x^2", "1-X^2", "(1-x)2", "1-x", "", "sqrt", "Linear", "t^-1", 2]
# Items of a dictionary or a set have no order that the user chose.
NOT_SEQUENCES = [None, 50, "50", np.array(50), {(85, 10)}, {(85, 10): 0}, {85: 10}.items()]
NOT_STAGES = [5, (), (5, 0, "(1-x)^2", 1)]


@dataclass
class Values:
    """Wrong values of one argument."""

    argument: str
    values: Sequence[Any]
    error: type[Exception]
    requirement: str
    """A part of the message."""


VALUES = [
    Values("total_steps", [*NOT_INTEGERS, *NOT_COUNTS, *NOT_NUMBERS_OF_STEPS], TypeError, A_COUNT),
    Values("total_steps", ["1.2345k", "0.0000001M"], ValueError, "be a whole number; "),
    Values("total_steps", [0], ValueError, in_range(1, MAX_STEP)),
    Values("warmup_steps", [0.1], TypeError, "percentage of total_steps such as '2%'"),
    Values("warmup_steps", [*NOT_PERCENTAGES, f"{'9' * 5000}%"], ValueError, A_PERCENTAGE),
    Values(
        "min_lr_ratio",
        ["0.1", 0j, [0.1], np.True_, True, None, np.ma.masked],
        TypeError,
        A_NUMBER,
    ),
    Values("min_lr_ratio", [nan, inf, -inf], ValueError, FINITE),
    Values("min_lr_ratio", [-0.1, 1.0000000000000002], ValueError, IN_0_TO_1),
    Values("decay_shape", [None, *NOT_SHAPES, "exponential"], ValueError, A_DECAY_SHAPE),
    Values("decay_shape", ["1-x^20.01", "(1-x)^20.01", "1-x^0.049"], ValueError, "P in [0.05, 20]"),
    Values("plateaus", NOT_SEQUENCES, TypeError, "sequence of pairs (start, duration)"),
    Values("stages", [{"warmup": 5}], TypeError, "sequence of stages"),
]


@pytest.mark.parametrize("wrong", VALUES, ids=lambda wrong: f"{wrong.argument}-{wrong.requirement}")
def test_wrong_values(wrong):
    for value in wrong.values:
        beginning = f"{wrong.argument} = {shown(value)}"
        check_rejection({wrong.argument: value}, wrong.error, beginning, wrong.requirement)


def shown(value):
    """Return a value as the beginning of its message shows it, on one line."""
    return " ".join(repr(value).split())[:150]


ITEMS = [
    Values("plateaus", NOT_PAIRS, TypeError, "pair (start, duration) in percent"),
    Values("plateaus", [(100.5, 10), (10, -0.5)], ValueError, "0 … 100 %; for steps"),
    Values("stages", NOT_STAGES, TypeError, "a stage (steps, to,"),
]


@pytest.mark.parametrize("wrong", ITEMS, ids=lambda wrong: f"{wrong.argument}-{wrong.requirement}")
def test_wrong_items(wrong):
    for value in wrong.values:
        beginning = f"{wrong.argument}[0] = {shown(value)}"
        check_rejection({wrong.argument: [value]}, wrong.error, beginning, wrong.requirement)


NOT_POWERS = ["", "½", "-1", "nan", "inf", "2" * 10**6]


@pytest.mark.parametrize("power", NOT_POWERS, ids="{:.20}".format)
def test_power_of_a_shape(power):
    shape = f"1-x^{power}"
    beginning = f"stages[0].shape = {shown(shape)}"
    check_rejection({"stages": [(5, 0.5, shape)]}, ValueError, beginning, "a decimal for P")


# One mistake of each argument.


@dataclass
class Wrong:
    """Arguments with a mistake, the beginning of the message, and a part of it."""

    arguments: dict[str, Any]
    error: type[Exception]
    beginning: str
    part: str


ARGUMENTS = [
    # JSON, TOML and OmegaConf read 2e5 as a float.
    Wrong({"total_steps": 2e5}, TypeError, "total_steps = 200000.0", A_COUNT),
    Wrong({"total_steps": MAX_STEP + 1}, ValueError, "total_steps = 2147483648", A_STEP),
    Wrong({"warmup_steps": 100}, ValueError, "warmup_steps = 100 must", "total_steps - 1 = 99"),
    Wrong({"init_lr_ratio": 1.5}, ValueError, "init_lr_ratio = 1.5", IN_0_TO_1),
    Wrong({"warmup_shape": "1-x^2"}, ValueError, "warmup_shape = '1-x^2'", "'linear', 'cosine'"),
    # Plateaus.
    Wrong({"plateaus": [("9,5", 5)]}, TypeError, "plateaus[0].start = '9,5'", A_NUMBER),
    Wrong({"plateaus": [(5, "x")]}, TypeError, "plateaus[0].duration = 'x'", A_NUMBER),
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
        {"plateaus": [(28, 5)], "absolute_plateaus": [(10, 20)]},
        ValueError,
        "absolute_plateaus[0] = (10, 20)",
        "end before the next plateau starts, at step 28",
    ),
    Wrong(
        {"warmup_steps": 10, "plateaus": [(0, 100)]},
        ValueError,
        "plateaus must leave at least one of the 90",
        "StagedCurve",
    ),
    Wrong(
        {"absolute_plateaus": [(0, 100)]},
        ValueError,
        "absolute_plateaus must leave at least one of the 100",
        "StagedCurve",
    ),
    # Stages.
    Wrong({"stages": [("Rest",)]}, TypeError, "stages[0].steps = 'Rest'", "the word 'rest'; a"),
    Wrong({"stages": [(-1, 0.5)]}, ValueError, "stages[0].steps = -1", in_range(0, MAX_STEP)),
    Wrong({"stages": [("2%", 1)]}, ValueError, "stages[0].steps = '2%'", "needs total_steps"),
    Wrong({"stages": [(5, "50%")]}, TypeError, "stages[0].to = '50%'", f"{A_NUMBER}; a stage is"),
    Wrong({"stages": [(5, 500)]}, ValueError, "stages[0].to = 500", f"{IN_0_TO_1}; a stage is"),
    Wrong({"stages": [(5, 1)], "start": 2}, ValueError, "start = 2", IN_0_TO_1),
    Wrong({"stages": [(5, 0.5, "sqrt")]}, ValueError, "stages[0].shape = 'sqrt'", A_SHAPE),
    Wrong({"stages": [(5, 0.5, "t^-4.01")]}, ValueError, "stages[0].shape = 't", "[0.25, 4]"),
    Wrong({"stages": [(0, 1)]}, ValueError, "stages add up to 0 steps", "2147483647"),
    Wrong({"stages": [(MAX_STEP,), (1,)]}, ValueError, "stages add up to 2147483648", A_STEP),
    Wrong(
        {"stages": [(5, 0, "exponential")], "start": 1},
        ValueError,
        "stages[0].shape = 'exponential': an",
        "or to 0",
    ),
    Wrong(
        {"stages": [("rest",), ("rest",)], "total_steps": 9},
        ValueError,
        "stages[1].steps = 'rest'",
        "may appear only once",
    ),
    Wrong(
        {"stages": [(5,), (3,)], "total_steps": 9},
        ValueError,
        "stages add up to 8 steps",
        "= 9: write 'rest'",
    ),
]


@pytest.mark.parametrize("wrong", ARGUMENTS, ids=lambda wrong: wrong.beginning)
def test_wrong_arguments(wrong):
    check_rejection(wrong.arguments, wrong.error, wrong.beginning, wrong.part)


def test_rest_is_not_advised_if_nothing_is_left():
    with pytest.raises(ValueError, match=r"^stages add up to 12 .* total_steps = 9$"):
        StagedCurve([(8, 1), ("50%",), ("rest",)], total_steps=9)


# Curves within curves.


ROOT = {"kind": "plateau", "total_steps": 9}
COOLDOWN = {"kind": "cooldown", "curve": ROOT, "at": 5, "steps": 5}
STAGED = {"kind": "staged", "stages": [[9, 1.0]]}
A_DIFFERENT_VERSION = "or the curve was saved by a different version of plateau-jax"
UNKNOWN_ARGUMENT = (
    "got an unexpected keyword argument 'format'; its arguments are stages, start, total_steps; "
    f"{A_DIFFERENT_VERSION}"
)
UNKNOWN_KIND = (
    "must be one of 'cooldown', 'then', 'part', 'plateau', 'scaled', 'staged'; "
    f"{A_DIFFERENT_VERSION}"
)


@pytest.mark.parametrize(
    ("arguments", "error", "beginning"),
    [
        ([], TypeError, f"arguments = [] {A_MAPPING}"),
        ({**COOLDOWN, "curve": 5}, TypeError, f"curve = 5 {A_MAPPING}"),
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
            {**COOLDOWN, "curve": {**STAGED, "format": 2}},
            TypeError,
            f"curve: StagedCurve: {UNKNOWN_ARGUMENT}",
        ),
        # Missing and unknown kinds.
        ({**COOLDOWN, "curve": {}}, ValueError, "curve.kind = None must be one of 'cooldown', "),
        ({"kind": "wsd"}, ValueError, f"kind = 'wsd' {UNKNOWN_KIND}"),
        ({"kind": ["staged"]}, ValueError, f"kind = ['staged'] {UNKNOWN_KIND}"),
        # Missing arguments.
        (
            {**COOLDOWN, "curve": {"kind": "plateau"}},
            TypeError,
            "curve: PlateauCurve: missing a required argument: 'total_steps'; its arguments are ",
        ),
    ],
)
def test_arguments_of_inner_curves_have_a_path(arguments, error, beginning):
    with pytest.raises(error) as caught:
        Curve.from_dict(arguments)
    assert type(caught.value) is error
    assert str(caught.value).startswith(beginning)
    message = message_of(caught.value)
    assert message.path
    assert beginning.startswith(Message(message.path, ""))
    check_copies(caught.value)


class Unreadable:
    def __index__(self):
        raise ValueError("from elsewhere")


def test_error_of_a_value_itself_is_kept():
    form = PlateauCurve(100).to_dict() | {"total_steps": Unreadable()}
    with pytest.raises(ValueError, match=r"^from elsewhere$"):
        Curve.from_dict(form)
