"""Errors of curves: each names the argument, shows its value, and has the word that helps."""

import copy
import json
import pickle
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import inf, nan

import jax.numpy as jnp
import numpy as np
import pytest
from support.commands import error_of
from support.curves.strategies import MAX_STEP
from support.design.design import fault_of
from support.errors import check_error, each, each_row

from plateau_jax import (
    BatchPlan,
    Curve,
    DataClock,
    HoldBelow,
    PlateauCurve,
    StagedCurve,
    check_resume,
    compare,
    optax_schedule,
    resume_record,
    scale_by_curve,
    stack,
)
from plateau_jax.curves.derived_curves import Cooldown, Then
from plateau_jax.validation.checks import Message, message_of

# Where wrong options of a curve are tried: as arguments of the constructor; in JSON, as `from_dict`,
# `--from FILE` and the design page read it; as options of the command line.
PYTHON, JSON, OPTIONS = "Python", "JSON", "options"
BOTH, WRITTEN, EVERYWHERE = (PYTHON, JSON), (JSON, OPTIONS), (PYTHON, JSON, OPTIONS)

NO_INTEGERS = [True, np.True_, 10.5, 10.0, None, nan, 3j, np.float32(10), [10], Fraction(10)]
NO_PAIRS = [(50,), (50, 10, 5), 50, "50", None, (), {85, 10}, frozenset((85, 10)), {85: 0, 10: 0}]
NO_PAIRS += [{85: 0, 10: 0}.keys(), {0: 85, 1: 10}.values()]
NO_SEQUENCES = [None, 50, "50", np.array(50), {(85, 10)}, {(85, 10): 0}, {85: 10}.items()]
NO_STAGES = [None, 5, "stages", {10, 20}, {10: 0.5}, np.array(5)]
NO_STAGE = [5, "ab", None, (), (1, 0.5, "linear", 2), {10, 0.5}, np.array(5)]
NO_PERCENTAGES = ["-1%", "100.0001%", "nan%", "inf%", "%", "2%%", "2 % 3", "1/2%", "2%\n.", f"{'9' * 5000}%"]
NO_DECIMALS = ["", "P", "1e-1", "+2", "-2", " 2", "2 ", "2\n", "1/2", "1,5", "1_0", "½", "٢", ".", "1.5.2"]
NO_DECIMALS += ["inf", "nan", "0x2", "2" * 10**6, "0.5" + "0" * 30]
NO_SHAPES = ["x^2", "1 - x^2", "1-x**2", "1-X^2", "(1-x)2", "1-x", "", "sqrt", "Linear", 2, ["linear"]]
PERCENTAGE, STAGE = "a percentage from 0% to 100%", "; a stage is (steps, to, shape)"
RATIO, DECIMAL = "lie in [0, 1]", "a decimal for P"
DECAYS = "one of 'linear', 'cosine', '1-sqrt', '1-x^P', '(1-x)^P', with a decimal for P, such as '1-x^2'"
SHAPES = "one of 'linear', 'cosine', '1-sqrt', 'exponential', '1-x^P', '(1-x)^P', 't^-P', with a decimal"
PERCENT = "0 … 100 %; for steps use absolute_plateaus"

# Wrong values of one argument: the message begins with it and with the value.
VALUES = [
    ("total_steps", TypeError, "integer", PYTHON, [*NO_INTEGERS, "10"]),
    ("total_steps", TypeError, "integer", EVERYWHERE, [10.5, "10%"]),
    # JSON, TOML and OmegaConf read 2e5 as a float.
    ("total_steps", TypeError, "integer: write 200000", EVERYWHERE, [2e5]),
    ("total_steps", ValueError, "of 65536 of them, here 457763, and train with clock=DataClock(65536)",
     EVERYWHERE, [3 * 10**10]),
    ("total_steps", ValueError, "here 457763, and train with clock=DataClock(65536)", BOTH, [3e10]),
    ("warmup_steps", TypeError, "such as '2%': write 10", BOTH, [10.0]),
    ("warmup_steps", ValueError, "of 65536 of them, here 45776", EVERYWHERE, [3 * 10**9]),
    ("absolute_plateaus[1].start", ValueError, "clock=DataClock(65536)", EVERYWHERE, [3 * 10**9]),
    ("absolute_plateaus[1].length", ValueError, "clock=DataClock(65536)", EVERYWHERE, [3 * 10**9]),
    ("stages[1].steps", TypeError, f"{STAGE}: write 10", BOTH, [10.0]),
    ("stages[1].steps", ValueError, "clock=DataClock(65536)", EVERYWHERE, [3 * 10**9]),
    ("total_steps", TypeError, "integer", WRITTEN, ["1e99999", "ten", "nan"]),
    ("total_steps", ValueError, "1 … 2**31 - 1 = 2147483647", EVERYWHERE, [0, -5, MAX_STEP + 1, 10**50]),
    ("warmup_steps", TypeError, "integer", PYTHON, [*NO_INTEGERS, "10", b"10%"]),
    ("warmup_steps", TypeError, "percentage of total_steps such as '2%'", EVERYWHERE, [0.1, "rest", "half"]),
    ("warmup_steps", ValueError, "lie in 0 … total_steps - 1 = 99", EVERYWHERE, [-1, 100]),
    ("warmup_steps", ValueError, PERCENTAGE, BOTH, NO_PERCENTAGES),
    ("min_lr_ratio", ValueError, RATIO, BOTH, [-0.1, 1.0000000000000002, 2, 10**150]),
    ("init_lr_ratio", ValueError, RATIO, EVERYWHERE, [-0.1, 1.5]),
    ("min_lr_ratio", ValueError, "finite", BOTH, [nan, inf, -inf]),
    ("min_lr_ratio", TypeError, "number", PYTHON, ["0.1", 0j, [0.1], np.True_, None]),
    ("min_lr_ratio", TypeError, "number", BOTH, [True, "10%"]),
    ("init_lr_ratio", TypeError, "number", WRITTEN, ["high", "nan", "1e999"]),
    ("warmup_shape", ValueError, "one of 'linear', 'cosine'", PYTHON, [None]),
    ("warmup_shape", ValueError, "one of 'linear', 'cosine'", BOTH, ["1-sqrt", "Linear", ["linear"]]),
    ("warmup_shape", ValueError, "one of 'linear', 'cosine'", EVERYWHERE, ["1-x^2"]),
    ("decay_shape", ValueError, DECAYS, PYTHON, [None]),
    ("decay_shape", ValueError, DECAYS, BOTH, [*NO_SHAPES, "exponential"]),
    ("decay_shape", ValueError, DECAYS, EVERYWHERE, ["t^-1"]),
    ("decay_shape", ValueError, "P in [0.05, 20]", EVERYWHERE, ["1-x^20.01", "(1-x)^20.01"]),
    ("decay_shape", ValueError, "P in [0.05, 20]", EVERYWHERE, ["1-x^0.049", "(1-x)^.049"]),
    ("stages[0].shape", ValueError, "P in [0.25, 4]", EVERYWHERE, ["t^-4.01", "t^-0.249"]),
    ("plateaus", TypeError, "sequence of pairs (start, duration) in percent", PYTHON, NO_SEQUENCES),
    ("plateaus[1]", TypeError, "pair (start, duration) in percent", PYTHON, NO_PAIRS),
    ("plateaus[1]", TypeError, "pair", BOTH, [50]),
    ("plateaus[1]", ValueError, PERCENT, EVERYWHERE, [(-1, 10), (100.5, 10), (10, -0.5), (500, 300)]),
    ("plateaus[1].start", TypeError, "number", PYTHON, [None, "10", True, 1j]),
    ("plateaus[1].start", TypeError, "number", EVERYWHERE, ["9,5"]),
    ("plateaus[1].duration", TypeError, "number", PYTHON, [None, "10", True, 1j]),
    ("plateaus[1].duration", ValueError, "finite", BOTH, [nan, inf, -inf]),
    ("absolute_plateaus", TypeError, "sequence of pairs (start, length) in steps", PYTHON, NO_SEQUENCES),
    ("absolute_plateaus[1]", TypeError, "pair (start, length) in steps", PYTHON, NO_PAIRS),
    ("absolute_plateaus[1]", ValueError, "the warmup ends, at step 10", EVERYWHERE, [(-1, 5), (9, 5)]),
    ("absolute_plateaus[1].length", ValueError, "at least 0", EVERYWHERE, [-1]),
    ("absolute_plateaus[1].start", TypeError, "integer", PYTHON, [None, "10", True, 1j, np.float64(50)]),
    ("absolute_plateaus[1].start", TypeError, "integer", EVERYWHERE, [9.5]),
    ("absolute_plateaus[1].length", TypeError, "integer", PYTHON, [None, "10", True, 1j, np.float64(50)]),
    ("stages", TypeError, "sequence of stages", PYTHON, NO_STAGES),
    ("stages", TypeError, "sequence of stages", BOTH, [{"warmup": 5}]),
    ("stages[1]", TypeError, "be a stage (steps, to, shape); to and shape", PYTHON, NO_STAGE),
    ("stages[1]", TypeError, "be a stage (steps, to, shape)", EVERYWHERE, [(5, 0, "(1-x)^2", 1)]),
    ("stages[1].steps", TypeError, "integer", PYTHON, [True, 1.0, "1", None, nan]),
    ("stages[1].steps", TypeError, f"such as '2%' or the word 'rest'{STAGE}", EVERYWHERE,
     [0.02, "ten", "Rest"]),
    ("stages[1].steps", ValueError, "at least 0", EVERYWHERE, [-1]),
    ("stages[1].steps", ValueError, "all steps, and needs total_steps", EVERYWHERE, ["2%", "rest"]),
    ("stages[0].to", TypeError, f"number{STAGE}", PYTHON, [True, "0.5", 0j, [0.5]]),
    ("stages[0].to", TypeError, f"number{STAGE}", EVERYWHERE, ["50%"]),
    ("stages[0].to", ValueError, f"{RATIO}{STAGE}", EVERYWHERE, [-0.1, 1.0000000000000002, 500]),
    ("stages[0].to", ValueError, "finite", BOTH, [nan, inf]),
    ("start", TypeError, "number", BOTH, [True]),
    ("start", ValueError, RATIO, EVERYWHERE, [-0.1, 2]),
    ("start", ValueError, "finite", BOTH, [nan]),
    ("stages[0].shape", ValueError, SHAPES, BOTH, [*NO_SHAPES, None, "t^2"]),
    ("stages[0].shape", ValueError, SHAPES, EVERYWHERE, ["sqrt"]),
    *(("stages[0].shape", ValueError, DECIMAL, PYTHON, [f"{name}{power}" for power in NO_DECIMALS])
      for name in ("1-x^", "(1-x)^", "t^-")),
    ("decay_shape", ValueError, DECIMAL, BOTH, ["1-x^1e-1", "(1-x)^+2"]),
]  # fmt: skip
# Where in the options a value stands; all other arguments are options themselves.
PLACES = {
    "plateaus[1]": lambda value: {"plateaus": [(20, 5), value]},
    "plateaus[1].start": lambda value: {"plateaus": [(20, 5), (value, 5)]},
    "plateaus[1].duration": lambda value: {"plateaus": [(20, 5), (50, value)]},
    "absolute_plateaus[1]": lambda value: {"warmup_steps": 10, "absolute_plateaus": [(20, 5), value]},
    "absolute_plateaus[1].start": lambda value: {"absolute_plateaus": [(20, 5), (value, 5)]},
    "absolute_plateaus[1].length": lambda value: {"absolute_plateaus": [(20, 5), (50, value)]},
    "stages[1]": lambda value: {"stages": [(5,), value]},
    "stages[1].steps": lambda value: {"stages": [(5,), (value, 0.5)]},
    "stages[0].to": lambda value: {"stages": [(5, value)]},
    "stages[0].shape": lambda value: {"stages": [(5, 0.5, value)]},
    "start": lambda value: {"stages": [(5, 1)], "start": value},
}

# Values that do not go together, and those that the message shows in another form.
TOGETHER = [
    (OPTIONS, {"total_steps": "1e50"}, ValueError, f"total_steps = {10**50}", "1 … 2**31 - 1"),
    (PYTHON, {"init_lr_ratio": np.float32(1.5)}, ValueError, "init_lr_ratio = 1.5", RATIO),
    (EVERYWHERE, {"warmup_steps": "100%"}, ValueError, "warmup_steps = 100 must", "total_steps - 1 = 99"),
    (EVERYWHERE, {"plateaus": [(95, 10)]}, ValueError, "plateaus[0] = (95, 10) must end by total_steps = 100",
     "it lasts from step 95 to step 105; the second number is the length, not the end"),
    (EVERYWHERE, {"absolute_plateaus": [(101, 0)]}, ValueError, "absolute_plateaus[0] = (101, 0)",
     "by total_steps"),
    (EVERYWHERE, {"plateaus": [(25, 10), (10, 20)]}, ValueError, "plateaus[1] = (10, 20)",
     "starts, at step 25"),
    (EVERYWHERE, {"plateaus": [(10, 20)], "absolute_plateaus": [(29, 5)]}, ValueError,
     "plateaus[0] = (10, 20)", "29"),
    (EVERYWHERE, {"plateaus": [(28, 5)], "absolute_plateaus": [(10, 20)]}, ValueError,
     "absolute_plateaus[0] = (10, 20)", "at step 28"),
    (EVERYWHERE, {"warmup_steps": 10, "plateaus": [(0, 100)]}, ValueError,
     "plateaus must leave at least one of the 90", "StagedCurve"),
    (BOTH, {"stages": []}, ValueError, "stages add up to 0 steps", "2147483647"),
    (EVERYWHERE, {"stages": [(0, 1)]}, ValueError, "stages add up to 0 steps", "2147483647"),
    (EVERYWHERE, {"stages": [(MAX_STEP,), (1,)]}, ValueError, "stages add up to 2147483648 steps",
     "2147483647. To count samples or tokens", "clock=DataClock(65536)"),
    (BOTH, {"stages": [(5, 0, "exponential")], "start": 1}, ValueError, "stages[0].shape = 'exponential': an",
     "or to 0"),
    (BOTH, {"stages": [(5, 0.5, "exponential")]}, ValueError, "stages[0].shape = 'exponential': an",
     "from or to 0"),
    (BOTH, {"stages": [(5, 0, "t^-2")], "start": 1}, ValueError,
     "stages[0].shape = 't^-2': a t^-2 stage from", "to 0"),
    # A shape is checked even if it has no effect.
    (BOTH, {"stages": [(5, None, "Linear")]}, ValueError, "stages[0].shape = 'Linear'", "one of"),
    (BOTH, {"stages": [(0, 0.5, None)]}, ValueError, "stages[0].shape = None", "one of"),
    (BOTH, {"stages": [("2%%", 1.0), ("rest",)], "total_steps": 9}, ValueError, "stages[0].steps = ",
     PERCENTAGE),
    (BOTH, {"stages": [("rest",)], "total_steps": "100%"}, TypeError, "total_steps = '100%'", "integer"),
    (BOTH, {"stages": [("rest",)], "total_steps": 0}, ValueError, "total_steps = 0", "1 …"),
    (EVERYWHERE, {"stages": [("rest",), ("rest",)], "total_steps": 9}, ValueError, "stages[1].steps = 'rest'",
     "once"),
    (EVERYWHERE, {"stages": [(5,), (3,)], "total_steps": 9}, ValueError, "stages add up to 8 steps",
     "= 9: write 'rest'"),
    # Nothing is left for 'rest'.
    (OPTIONS, {"stages": [(5, 1), (5,)], "total_steps": 9}, ValueError, "stages add up to 10",
     "total_steps = 9\n"),
    (EVERYWHERE, {"stages": [(8, 1), ("50%",), ("rest",)], "total_steps": 9}, ValueError,
     "stages add up to 12 steps"),
    (PYTHON, {"warmup_shape": (item for item in ())}, ValueError, "warmup_shape = <generator", "'cosine'"),
]  # fmt: skip


def _tried():
    rows = [
        (surfaces, PLACES.get(path, lambda value, path=path: {path: value})(value), error, begin, word)
        for path, error, word, surfaces, values in VALUES
        for value in values
        # The message shows at most 200 characters of a value, on one line.
        for begin in [f"{path} = {' '.join(repr(value).split())[:150]}"]
    ]
    for surfaces, options, error, *parts in [*rows, *TOGETHER]:
        for surface in (surfaces,) if isinstance(surfaces, str) else surfaces:
            yield pytest.param(surface, options, error, parts, id=f"{surface}-{parts[0]:.40}")


def _as_options(options):
    """Return the arguments of a curve as options of the command line."""
    repeated = {"plateaus": "--plateau", "absolute_plateaus": "--absolute-plateau", "stages": "--stage"}
    words = [str(options[name]) for name in ("total_steps",) if name in options]
    for name, value in options.items():
        if name in repeated:
            words += [word for item in value for word in (repeated[name], *map(str, item))]
        elif name != "total_steps":
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _in_json(text):
    """Replace tuples by lists, which JSON has in place of them."""
    return text.replace("(", "[").replace(")", "]")


@pytest.mark.parametrize(("surface", "options", "error", "parts"), list(_tried()))
def test_wrong_options_are_named_alike(surface, options, error, parts, tmp_path, capsys):
    options = options if options.keys() & {"stages", "total_steps"} else {"total_steps": 100} | options
    name = parts[0].partition(" ")[0]
    if surface == OPTIONS:
        printed = error_of(capsys, *_as_options(options))
        assert len(printed.splitlines()) == 1
        assert _in_json(printed).startswith(_in_json(f"python -m plateau_jax: error: {parts[0]}"))
        assert all(_in_json(part) in _in_json(printed) for part in parts)
        return
    if surface == PYTHON:
        with pytest.raises(error) as caught:
            (StagedCurve if "stages" in options else PlateauCurve)(**options)
        message = str(caught.value)
        assert message.startswith(parts[0])
        assert all(part in message for part in parts)
    else:
        written = json.dumps(options)
        with pytest.raises(error) as caught:
            Curve.from_dict(json.loads(written))
        message = str(caught.value)
        assert _in_json(message).startswith(_in_json(parts[0]))
        assert all(_in_json(part) in _in_json(message) for part in parts)
        _check_page(json.loads(written), message_of(caught.value))
        (tmp_path / "curve.json").write_text(written)
        printed = error_of(capsys, "--from", str(tmp_path / "curve.json"))
        assert printed.endswith(f"curve.json: {message}\n")
    assert type(caught.value) is error
    assert "\n" not in message
    assert Message(message_of(caught.value).path, "") == name
    _check_copies(caught.value)


def _check_page(curve, message):
    fault, length = fault_of({"curve": curve, "peak": 1}), len(message.path)
    assert fault["message"] == message
    assert fault["path"][:length] == ("curve", *message.path)[:length]


def _check_copies(error):
    pickles = [pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in (*map(pickle.loads, pickles), copy.copy(error), copy.deepcopy(error)):
        assert (type(other), str(other)) == (type(error), str(error))
        assert message_of(other).path == message_of(error).path


NESTED = {"kind": "cooldown", "curve": {"total_steps": 0}, "at": 5, "steps": 5}
WSD = {"kind": "wsd", "total_steps": 9, "warmup_steps": 1, "decay_steps": 1}
IN_CURVES = [
    ({**NESTED, "curve": 5}, TypeError, "curve = 5 must be a mapping"),
    ({**NESTED, "curve": {"total_steps": 9}, "at": "x"}, TypeError, "at = 'x' must be an integer"),
    ({"kind": "then", "curve": {"total_steps": 9}, "other": NESTED}, ValueError,
     "other.curve.total_steps = 0 must"),
    ({**NESTED, "curve": {"step": 3}}, ValueError,
     "curve: 'step' is not an argument of PlateauCurve, which has total"),
    ({"total_steps": 9, "min_lr": 0.1}, ValueError,
     "'min_lr' is not an argument of PlateauCurve, which has total"),
    ({"stages": [[9]], "at": 1}, ValueError,
     "'at' is not an argument of StagedCurve, which has stages, start, tot"),
    ({"total_steps": 9, "x" * 300: 0.1}, ValueError,
     f"'{'x' * 196}... is not an argument of PlateauCurve, which has total"),
    *(({"kind": kind}, ValueError,
      f"kind = {kind!r} must be one of 'cooldown', 'then', 'part', 'scaled', 'staged', 'wsd', 'through', or")
      for kind in ("plateau", "Staged", 5, ["staged"], {})),
    ({}, TypeError, "total_steps is missing: PlateauCurve needs total_steps"),
    # A value of null was left out.
    ({"kind": None, "total_steps": None}, TypeError, "total_steps is missing: PlateauCurve needs"),
    ({"stages": None, "start": 1}, TypeError, "stages is missing: StagedCurve needs stages"),
    ({"kind": "cooldown", "curve": None}, TypeError, "curve is missing: Cooldown needs curve, at, steps"),
    ({**NESTED, "curve": {"total_steps": 9}, "at": None}, TypeError, "at is missing: Cooldown needs"),
    ({**NESTED, "curve": {}}, TypeError, "curve.total_steps is missing: PlateauCurve needs total_steps"),
    ({"min_lr": None, "total_steps": 9}, ValueError, "'min_lr' is not an argument of PlateauCurve"),
    ({"kind": "wsd", "total_steps": 9, "warmup_steps": 1}, TypeError,
     "decay_steps is missing: StagedCurve.wsd needs total_steps, warmup_steps, decay_steps"),
    ({**WSD, "decay_steps": 0.2}, TypeError, "decay_steps = 0.2 must be an integer, or a percentage"),
    ({**WSD, "decay_steps": 5e9}, ValueError, "decay_steps = 5000000000.0 must lie in 0 … 2**31 - 1"),
    ({**WSD, "plateaus": []}, ValueError, "'plateaus' is not an argument of StagedCurve.wsd, which has"),
    ({"kind": "through"}, TypeError, "points is missing: StagedCurve.through needs points"),
    ({"kind": "through", "points": [[0, 1], [2e5, 0]]}, TypeError,
     "points[1].step = 200000.0 must be an integer: write 200000"),
    ({"kind": "through", "points": [[0, 1], [2e10, 0]]}, ValueError,
     "points[1].step = 20000000000.0 must lie in 1"),
    ({"kind": "then", "curve": {"total_steps": 9}, "other": {"kind": "through", "points": 5}}, TypeError,
     "other.points = 5 must be a sequence of pairs (step, level)"),
    ([], TypeError, "arguments = [] must be a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "begin"), IN_CURVES, ids=str)
def test_arguments_of_inner_curves_have_a_path(arguments, error, begin):
    with pytest.raises(error) as caught:
        Curve.from_dict(arguments)
    assert str(caught.value).startswith(begin)
    _check_page(arguments, message_of(caught.value))
    path = Message(message_of(caught.value).path, "")
    assert begin.startswith(path)
    assert bool(path) == bool(re.match(r"[\w.\[\]]+( = | is missing|: )", begin))
    _check_copies(caught.value)


CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)
LONG = PlateauCurve(2**30)
BRANCH = StagedCurve([(100, 1.0), (900,)]).cooldown(600, 400)
FALL = StagedCurve([(10,)], start=1)
NO_STEPS = [True, np.True_, 3.0, np.float32(3), nan, "3", b"3", None, 3j, Decimal(3), Fraction(3), [1.0, 2.0]]
NO_STEPS += [[1, None], [True, 2], [[1], [2, 3]], np.arange(3.0), np.array([True]), np.array([2.0], object)]

NO_PEAKS = [True, np.True_, "0.1", b"1", None, 1j, [0.1], np.ones(2)]

through = StagedCurve.through


def wsd(total=9, *, warmup_steps=0, decay_steps=0, **options):
    return StagedCurve.wsd(total, warmup_steps=warmup_steps, decay_steps=decay_steps, **options)


# Wrong values of one argument of a call.
OF_CALLS = [
    (lambda value: CURVE.cooldown(value, 5), "at", TypeError, "integer", [True, 1.0, "1", None]),
    (lambda value: CURVE.cooldown(value, 5), "at", ValueError, "at least 0", [-1]),
    (lambda value: CURVE.cooldown(5, value), "steps", TypeError, "integer", [True, 1.0, "1", None]),
    (lambda value: CURVE.cooldown(5, value), "steps", ValueError, "at least 1", [0]),
    (lambda value: CURVE.cooldown(5, value), "steps", ValueError, "clock=DataClock(65536)", [2**31, 1e10]),
    (lambda value: CURVE.cooldown(value, 5), "at", ValueError, "clock=DataClock(65536)", [2**31, 1e10]),
    (lambda value: CURVE.cooldown(0, 5, to=value), "to", ValueError, "above the level at step 0, 0.0",
     [1e-300]),
    (lambda value: CURVE.cooldown(550, 5, to=value), "to", ValueError,
     "above the level at step 550, 0.37779244", [0.5]),
    (lambda value: CURVE.cooldown(100, 5, to=value), "to", ValueError, "[0, 1]", [1.5, -0.1]),
    (lambda value: CURVE.cooldown(5, 5, shape=value), "shape", ValueError, SHAPES, [*NO_SHAPES, None]),
    (lambda value: CURVE.cooldown(5, 5, shape=value), "shape", ValueError, DECIMAL, ["1-x^1e-1", "t^-+2"]),
    (lambda value: FALL.cooldown(5, 5, shape=value), "shape", ValueError, "cooldown from or to 0",
     ["exponential", "t^-2"]),
    (lambda value: CURVE.then(value), "other", TypeError, "a Curve", [None, 3, "curve", ["total_steps", 9]]),
    (lambda value: CURVE.then(CURVE, scale=value), "scale", ValueError, "(0, 1]",
     [0, 0.0, -0.5, 1.0000000000000002]),
    (lambda value: CURVE.then(CURVE, scale=value), "scale", ValueError, "finite", [nan, inf]),
    (lambda value: CURVE.then(CURVE, scale=value), "scale", TypeError, "number", [True, "0.5", None]),
    (lambda value: CURVE.part(value), "start", TypeError, "integer", [True, 1.0, "1", None]),
    (lambda value: CURVE.part(value), "start", ValueError, "lie in 0 … 999", [-1]),
    (lambda value: CURVE.part(value, 5), "start", ValueError, "lie in 0 … 4", [5]),
    (lambda value: CURVE.part(0, value), "stop", TypeError, "integer", [True, 1.0, "1"]),
    (lambda value: CURVE.part(0, value), "stop", ValueError, "lie in 1 … 1000", [0, 1001]),
    (lambda value: CURVE.same_until(value, 5), "other", TypeError, "a Curve", [None]),
    (lambda value: CURVE.first_difference(value), "other", TypeError, "a Curve", [5]),
    (lambda value: CURVE.same_until(CURVE, value), "step", TypeError, "integer", [1.0, True, None]),
    (lambda value: CURVE.same_until(CURVE, value), "step", ValueError, "at least 0", [-1]),
    (lambda value: CURVE.learning_rate(3, value), "peak_value", TypeError, "number", NO_PEAKS),
    (lambda value: CURVE.learning_rate(3, value), "peak_value", ValueError, "be 0, or", [-0.1, -1e-30, -inf]),
    (lambda value: CURVE.learning_rate(3, value), "peak_value", ValueError, "must",
     [nan, inf, 2.0**-127, 1e-300, 1e39, 3.4028236e38, 10**150]),
    (lambda value: BRANCH.merge_weights([600, value]), "steps[1]", TypeError, "integer",
     [700.0, True, [700]]),
    (lambda value: BRANCH.merge_weights([value, 600]), "steps[0]", ValueError, "at least 0", [-1]),
    (lambda value: BRANCH.merge_weights(value), "steps", ValueError, "two rising integers",
     [[], [600], [7, 70, 70], [70, 60]]),
    (lambda value: BRANCH.merge_weights(value), "steps", ValueError, "at most 2**31 - 1", [[600, 2**31]]),
    (lambda value: stack([CURVE, value]), "curves[1]", TypeError, "a Curve", [3, None, [5]]),
    (lambda value: wsd(total=value), "total_steps", TypeError, "integer", ["10%", 9.0, True, None]),
    (lambda value: wsd(total=value), "total_steps", ValueError, "1 …", [0, -1, 2**31]),
    *((call, name, *row)
      for name, call in (
          ("warmup_steps", lambda value: wsd(warmup_steps=value)),
          ("decay_steps", lambda value: wsd(decay_steps=value)))
      for row in ((TypeError, "percentage of total_steps such as '2%'", [0.2, "rest", "2", None, True]),
                  (ValueError, PERCENTAGE, NO_PERCENTAGES[:-1]), (ValueError, "at least 0", [-1]))),
    (lambda value: wsd(decay_steps=9, decay_shape=value), "decay_shape", ValueError, SHAPES,
     [*NO_SHAPES, None]),
    (lambda value: wsd(decay_steps=9, decay_shape=value), "decay_shape", ValueError, "decay from or to 0",
     ["exponential", "t^-2"]),
    (lambda value: wsd(decay_steps=9, min_lr_ratio=value), "min_lr_ratio", ValueError, RATIO, [-0.1, 1.5]),
    (lambda value: wsd(decay_steps=9, min_lr_ratio=value), "min_lr_ratio", TypeError, "number",
     ["10%", None, True]),
    (lambda value: through(value), "points", TypeError, "sequence of pairs (step, level)",
     [None, 5, "points"]),
    (lambda value: through(value), "points", TypeError, "sequence of pairs", [{(0, 1.0)}, {0: 1.0}]),
    (lambda value: through(value), "points", ValueError, "at least two points", [[], [(0, 1.0)]]),
    (lambda value: through([(0, 1.0), value]), "points[1]", TypeError, "pair (step, level)", NO_PAIRS[:-2]),
    (lambda value: through([(0, 1.0), (value, 0.5)]), "points[1].step", TypeError, "integer",
     [True, 5.0, "5", None, nan, 0.5]),
    (lambda value: through([(0, 1.0), (value, 0.5)]), "points[1].step", ValueError, "lie in 1 … 2**31 - 1 =",
     [2**31, 10**50]),
    (lambda value: through([(value, 1.0), (9, 0.5)]), "points[0].step", ValueError, "0, the first step",
     [5]),
    (lambda value: through([(value, 1.0), (9, 0.5)]), "points[0].step", ValueError, "at least 0", [-1]),
    (lambda value: through([(0, 1.0), (5, 1.0), (value, 0.5), (9, 1.0)]), "points[2].step", ValueError,
     "at least 5", [4, -1]),
    (lambda value: through([(0, 1.0), (0, 1.0), (value, 0.5)]), "points[2].step", ValueError,
     "lie in 1 … 2**31 - 1 =", [0]),
    (lambda value: through([(0, 1.0), (5, value)]), "points[1].level", TypeError, "number",
     [True, "0.5", None, 0j, [0.5]]),
    (lambda value: through([(0, 1.0), (5, value)]), "points[1].level", ValueError, RATIO, [-0.1, 1.5]),
    (lambda value: through([(0, 1.0), (5, value)]), "points[1].level", ValueError, "finite", [nan, inf]),
]  # fmt: skip
ERRORS = [
    *(row for call, name, error, word, values in OF_CALLS
      for row in each(call, values, error, f"{name} = {{}}", word)),
    (lambda: CURVE.cooldown(MAX_STEP, 1), ValueError, "at + steps = 2147483648", "2**31 - 1"),
    (lambda: PlateauCurve(10**9).part(0, 2**30), ValueError, f"stop = {2**30}", "lie in 1 … 1000000000"),
    (lambda: LONG.then(LONG), ValueError, f"total_steps = {2**30} + {2**30}", "2**31 - 1"),
    *each(lambda value: CURVE(value), NO_STEPS, TypeError,
          "step must be an integer or an array of integers, not {}"),
    (lambda: CURVE.learning_rate(jnp.array(3), 0.1), TypeError, "optax_schedule(curve, peak_value)"),
    (lambda: BRANCH.merge_weights(np.array([600.0, 7])), TypeError, "steps[0] = ", "600.0", "integer"),
    (lambda: BRANCH.merge_weights([50, 600]), ValueError, "rises from step 50 to step 99",
     "steps[0] = 50 to steps[-1]"),
    (lambda: BRANCH.merge_weights([0, 600]), ValueError, "the curve is 0 at steps[0] = 0"),
    (lambda: BRANCH.merge_weights([1000, 1001]), ValueError, "the curve is 0 at steps[0] = 1000"),
    (lambda: stack([]), ValueError, "curves"),
    (lambda: wsd(warmup_steps="60%", decay_steps=5), ValueError,
     "warmup_steps + decay_steps = 5 + 5 must be at most total_steps = 9"),
    (lambda: wsd(decay_steps=5, decay_shape="t^-0.25", min_lr_ratio=1e-5),
     ValueError, "decay_shape = 't^-0.25': a t^-0.25 decay between these levels is too steep"),
    *each(lambda value: through(np.array([(0, 1), (value, 1)], np.float32)), [0.5, nan, inf],
          TypeError, "points[1].step = np.float32({}) must be an integer"),
    (lambda: through(np.zeros(5)), TypeError, "points[0] = np.float64(0.0) must be a pair"),
    (lambda: through(np.zeros((5, 3))), TypeError, "points[0] = array([0., 0., 0.]) must be a pair"),
    (lambda: through(np.zeros((5, 2), bool)), TypeError, "points[0].step = np.False_", "integer"),
    *each(lambda value: stack(value), [CURVE, {CURVE}, frozenset([CURVE]), {CURVE: None}], TypeError,
          "curves = ", "several Curves, in order"),
    (lambda: Curve(), TypeError, "abstract"),
    *each(lambda value: type("Recipe", (value,), {}), [Curve, PlateauCurve, StagedCurve, Cooldown, Then],
          TypeError, "Recipe cannot be derived from a curve: write a function"),
    (lambda: StagedCurve.from_dict(CURVE.to_dict()), ValueError, "of a PlateauCurve, not of a StagedCurve"),
    (lambda: Cooldown.from_dict(CURVE.part(5).to_dict()), ValueError, "of a Part, not of a Cooldown"),
    (lambda: replace(CURVE, warmup_steps=1000), ValueError, "warmup_steps = 1000", "total_steps - 1 = 999"),
]  # fmt: skip


@each_row(ERRORS)
def test_errors(row):
    _check_copies(check_error(row, CURVE=CURVE))


@pytest.mark.parametrize("power", ["0.25", "0.5", "1", "2"])
def test_inverse_power_rejects_distant_levels(power):
    shape, most = f"t^-{power}", 62 * float(power)
    low = 2.0**-most  # for P = 0.25 only near 2⁻¹⁵·⁵
    nearer, farther = (float(f"{low * factor:.3g}") for factor in (1.01, 0.99))
    steep = rf"between these levels is too steep: the lower one must be at least 2\*\*-{most:g} times"
    for levels_of in (lambda level: (1, level), lambda level: (level, 1)):
        start, end = levels_of(nearer)
        assert StagedCurve([(9, end, shape)], start=start)(9) == np.float32(end)
        start, end = levels_of(farther)
        with pytest.raises(ValueError, match=rf"^stages\[0\].shape = .*: a t\^-{power} stage {steep}"):
            StagedCurve([(9, end, shape)], start=start)
    with pytest.raises(ValueError, match=rf"^shape = .*: a t\^-{power} cooldown {steep}"):
        FALL.cooldown(5, 5, to=farther, shape=shape)
    assert StagedCurve([(9, 2.0**-31, "t^-0.5")], start=1.0)(9) == 2.0**-31  # exactly the limit


def test_nesting_stops_at_depth_64():
    curve = PlateauCurve(1000)
    for index in range(64):
        curve = curve.cooldown(900 - index, 1000)
    for copied in (copy.deepcopy(curve), pickle.loads(pickle.dumps(curve)), eval(repr(curve))):
        assert (copied, hash(copied)) == (curve, hash(curve))
    assert Curve.from_dict(json.loads(json.dumps(curve.to_dict()))) == curve
    for deeper in (
        lambda curve: curve.cooldown(5, 5),
        lambda curve: curve.part(5),
        lambda curve: curve.then(CURVE),
        lambda curve: CURVE.then(curve),
    ):
        check_error((deeper, ValueError, "nested 65 deep"), curve=curve)
    for times in (1, 10_000):  # also beyond Python's own limit
        arguments = curve.to_dict()
        for _ in range(times):
            arguments = {"kind": "then", "curve": CURVE.to_dict(), "other": arguments, "scale": 1.0}
        with pytest.raises(ValueError, match=r"nested .* deep"):
            Curve.from_dict(arguments)


LONG_VALUES = {"array": np.zeros((50, 50)), "text": "two\nlines" * 999, "list": [[0.5]] * 999}
OF_LONG_VALUES = [
    lambda value: PlateauCurve(value),
    lambda value: PlateauCurve(9, plateaus=value),
    lambda value: PlateauCurve(9, plateaus=[value]),
    lambda value: PlateauCurve(9, plateaus=[(value, 1)]),
    lambda value: PlateauCurve(9, decay_shape=value),
    lambda value: CURVE.then(value),
    lambda value: StagedCurve(value),
    lambda value: Curve.from_dict(value),
    lambda value: Curve.from_dict({"kind": str(value)}),
    lambda value: BatchPlan.from_dict(value),
    lambda value: HoldBelow(0.5, value),
    lambda value: optax_schedule(CURVE, value),
    lambda value: scale_by_curve(CURVE, 3e-4, value),
    lambda value: DataClock(value),
    lambda value: resume_record(CURVE, 3e-4, value),
    lambda value: check_resume(value, {}, 3),
    lambda value: compare(CURVE, value),
]


@pytest.mark.parametrize("kind", LONG_VALUES)
@pytest.mark.parametrize("call", OF_LONG_VALUES, ids=range(len(OF_LONG_VALUES)))
def test_message_shows_a_line_of_a_long_value(call, kind):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(LONG_VALUES[kind])
    (line,) = str(caught.value).splitlines()
    assert len(line) < 900
