"""Wrong calls of a curve's methods, and of functions that take a curve."""

import copy
import json
import pickle
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
from support.curves.strategies import MAX_STEP
from support.curves.wrong_values import (
    A_CURVE,
    A_NUMBER,
    A_PEAK,
    A_SHAPE,
    AN_INTEGER,
    IN_0_TO_1,
    Call,
    at_least,
    at_most,
    in_range,
    name_of,
)
from support.numerics.shapes import SAMPLES_ABOVE_ZERO
from support.wrong import wrong

from plateau_jax import (
    Curve,
    PlateauCurve,
    StagedCurve,
    stack,
)
from plateau_jax.curves.derived_curves import Cooldown


@pytest.fixture
def curve():
    return PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)


@pytest.fixture
def branch():
    """A curve that holds until step 600, and then falls to 0 within 400 steps."""
    return StagedCurve([(100, 1.0), (900,)]).cooldown(600, 400)


# Values and learning rates.


@pytest.mark.parametrize(
    "step",
    [
        True,
        np.True_,
        3.0,
        np.float32(3),
        nan,
        "3",
        b"3",
        None,
        Decimal(3),
        Fraction(3),
        [1.0, 2.0],
        [1, None],
        [True, 2],
        [[1], [2, 3]],
        np.arange(3.0),
        np.array([True]),
        np.array([2.0], object),
    ],
    ids=repr,
)
@wrong(TypeError, "step must be an integer or an array of integers, not {step}")
def test_step(curve, step):
    curve(step)


@pytest.mark.parametrize("peak", [True, np.True_, "0.1", b"1", None, 1j, [0.1]], ids=repr)
@wrong(TypeError, "peak_value = {peak}", A_NUMBER)
def test_peak_that_is_not_a_number(curve, peak):
    curve.learning_rate(3, peak)


@pytest.mark.parametrize("peak", [-0.1, -inf, nan, inf, 2.0**-127, 1e39, 3.4028236e38, 10**150])
@wrong(ValueError, "peak_value = {peak}", A_PEAK)
def test_peak_that_float32_does_not_hold(curve, peak):
    curve.learning_rate(3, peak)


# Derived curves and comparisons.

CURVE = PlateauCurve(1000)
HALF_OF_ALL_STEPS = PlateauCurve(2**30)


@pytest.mark.parametrize(
    "call",
    [
        Call("cooldown", (-1, 5), ValueError, ["at = -1", in_range(0, MAX_STEP)]),
        Call("cooldown", (5, 0), ValueError, ["steps = 0", in_range(1, MAX_STEP)]),
        Call("cooldown", (MAX_STEP, 1), ValueError, ["at + steps = 2147483648", "2147483647"]),
        Call(
            "cooldown",
            (0, 5),
            ValueError,
            ["to = 1e-300", "above the level at step 0, 0.0"],
            {"to": 1e-300},
        ),
        Call(
            "cooldown",
            (550, 5),
            ValueError,
            ["to = 0.5", "above the level at step 550, 0.37779244"],
            {"to": 0.5},
        ),
        Call("cooldown", (100, 5), ValueError, ["to = -0.1", IN_0_TO_1], {"to": -0.1}),
        Call("cooldown", (5, 5), ValueError, ["shape = None", A_SHAPE], {"shape": None}),
        Call("then", (None,), TypeError, ["other = None", A_CURVE]),
        Call("then", (CURVE,), ValueError, ["scale = 0", "(0, 1]"], {"scale": 0}),
        Call("then", (CURVE,), ValueError, ["scale = 1.0", "(0, 1]"], {"scale": 1 + 2**-52}),
        Call("part", (-1,), ValueError, ["start = -1", in_range(0, 999)]),
        Call("part", (5, 5), ValueError, ["start = 5", in_range(0, 4)]),
        Call("part", (0, 0), ValueError, ["stop = 0", in_range(1, 1000)]),
        Call("same_until", (None, 5), TypeError, ["other = None", A_CURVE]),
        Call("first_difference", (5,), TypeError, ["other = 5", A_CURVE]),
        Call("same_until", (CURVE, -1), ValueError, ["step = -1", at_least(0)]),
    ],
    ids=name_of,
)
def test_wrong_call(curve, call):
    call.check(curve)


@wrong(ValueError, f"total_steps = {2**30} + {2**30}", at_most(MAX_STEP))
def test_continuation_past_the_last_step():
    HALF_OF_ALL_STEPS.then(HALF_OF_ALL_STEPS)


@pytest.mark.parametrize("shape", SAMPLES_ABOVE_ZERO)
@wrong(ValueError, "shape = {shape}", "cooldown from or to 0")
def test_shape_of_a_cooldown_to_0(shape):
    flat = StagedCurve([(10,)], start=1)
    flat.cooldown(5, 5, shape=shape)


# Averaging weights.


def merge(steps, error, *parts, mean_of=None):
    return Call("merge_weights", (steps,), error, parts, {"mean_of": mean_of})


@pytest.mark.parametrize(
    "call",
    [
        merge(5, TypeError, "steps = 5 must be a sequence of integers"),
        merge([-1, 600], ValueError, "steps[0] = -1", at_least(0)),
        merge([600], ValueError, "steps = [600]", "two rising integers"),
        merge([7, 70, 70], ValueError, "steps = [7, 70, 70]", "two rising integers"),
        merge([600, 2**31], ValueError, f"steps = [600, {2**31}]", f"at most {MAX_STEP}"),
        # Means.
        merge([700, 800], TypeError, "mean_of[1] = 50.0", AN_INTEGER, mean_of=[100, 50.0]),
        merge([1000], ValueError, "mean_of = 0", at_least(1), mean_of=0),
        merge([1000], ValueError, "mean_of[0] = 1001", "at most steps[0] = 1000", mean_of=[1001]),
        merge([700, 800], ValueError, "steps has length 2, and mean_of 3", mean_of=[1, 1, 1]),
        merge([], ValueError, "steps = []", "one or more rising integers", mean_of=50),
        merge(
            [600, 700, 780, 1000],
            ValueError,
            "steps[2] = 780 begins at step 680",
            "must begin at steps[1] = 700",
            mean_of=[100, 100, 100, 220],
        ),
        merge(
            [600, 700, 800],
            ValueError,
            "steps[1] = 700 begins at step 650, and must begin at steps[0] = 600",
            mean_of=50,
        ),
        merge(
            [600, 650, 700, 750],
            ValueError,
            "steps[-1] = 750 must be at least total_steps = 1000: no block contains updates 751 to",
            mean_of=50,
        ),
        merge(
            range(700, 1001, 50),
            ValueError,
            "steps[0] - mean_of = 650 must be at most 600, where the curve begins to fall: no ",
            "contains updates 601 to 650",
            mean_of=50,
        ),
        merge([1050, 1100], ValueError, "= 1000 must be below the end of the curve", mean_of=50),
        merge(
            range(100, 1001, 50),
            ValueError,
            "rises from step 50 to step 99",
            "from steps[0] - mean_of = 50 to total_steps",
            mean_of=50,
        ),
    ],
    ids=name_of,
)
def test_wrong_merge(branch, call):
    call.check(branch)


# Stacks.


@wrong(ValueError, "curves is empty", "at least one Curve")
def test_stack_of_no_curves():
    stack([])


@wrong(TypeError, "curves[1] = 3", A_CURVE)
def test_stack_of_something_else(curve):
    stack([curve, 3])


@pytest.mark.parametrize("curves", [CURVE, {CURVE}, {CURVE: None}], ids=type)
@wrong(TypeError, "curves = ", "several Curves, in order")
def test_stack_without_an_order(curves):
    stack(curves)


# Classes.


@pytest.mark.parametrize("curve_type", [Curve, PlateauCurve, Cooldown])
@wrong(TypeError, "missing 1 required", "'kind'")
def test_subclass(curve_type):
    class Recipe(curve_type):
        pass


@wrong(ValueError, "of a PlateauCurve, not of a StagedCurve")
def test_arguments_of_a_different_class(curve):
    StagedCurve.from_dict(curve.to_dict())


@wrong(ValueError, "warmup_steps = 1000", "total_steps - 1 = 999")
def test_replaced_argument_is_checked(curve):
    replace(curve, warmup_steps=1000)


# Depth.


@pytest.fixture(scope="module")
def deepest():
    """A curve nested 64 deep, as many as are allowed."""
    curve: Curve = CURVE
    for index in range(64):
        curve = curve.cooldown(900 - index, 1000)
    return curve


def test_curve_nested_64_deep_can_be_copied_and_saved(deepest):
    copies = [
        copy.deepcopy(deepest),
        pickle.loads(pickle.dumps(deepest)),
        Curve.from_dict(json.loads(json.dumps(deepest.to_dict()))),
        eval(repr(deepest), {"PlateauCurve": PlateauCurve}),
    ]
    for copied in copies:
        assert copied == deepest
        assert hash(copied) == hash(deepest)


@wrong(ValueError, "nested 65 deep")
def test_cooldown_of_the_deepest(deepest):
    deepest.cooldown(5, 5)


@wrong(ValueError, "nested 65 deep")
def test_deepest_as_a_continuation(deepest):
    CURVE.then(deepest)


# Long values.


@pytest.mark.parametrize("value", [np.zeros((50, 50)), "two\nlines" * 999, [[0.5]] * 999], ids=type)
@pytest.mark.parametrize("program", [PlateauCurve, PlateauCurve(9).then, Curve.from_dict])
def test_message_shows_a_line_of_a_long_value(program, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        program(value)
    (line,) = str(caught.value).splitlines()
    assert len(line) < 900
