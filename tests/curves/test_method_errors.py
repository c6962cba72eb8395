"""Wrong calls of a curve's methods, of `wsd` and `through`, and of functions that take a curve."""

import copy
import json
import pickle
from math import inf, nan

import numpy as np
import pytest
from support.curves.requirements import (
    A_NUMBER,
    A_PEAK,
    A_SHAPE,
    AN_INTEGER,
    IN_0_TO_1,
    at_least,
    at_most,
    in_range,
)
from support.curves.strategies import MAX_STEP
from support.numerics.shapes import SAMPLES_ABOVE_ZERO
from support.raises import raises

from plateau_jax import (
    Curve,
    PlateauCurve,
    StagedCurve,
    stack,
)


@pytest.fixture
def curve():
    return PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)


# Values and learning rates.


NOT_STEPS = [True, np.True_, 3.0, nan, "3", None, [True, 2], [[1], [2, 3]], np.arange(3.0)]


@pytest.mark.parametrize("step", NOT_STEPS, ids=repr)
@raises(TypeError, "step must be an integer or an array of integers, not {step}")
def test_step(curve, step):
    curve(step)


@pytest.mark.parametrize("peak", [True, np.True_, "0.1", None, 1j, np.complex64(1), [1]], ids=repr)
@raises(TypeError, "peak_value = {peak}", A_NUMBER)
def test_peak_that_is_not_a_number(curve, peak):
    curve.learning_rate(3, peak)


@pytest.mark.parametrize("peak", [-0.1, -inf, nan, inf, 2.0**-127, 1e39, 3.4028236e38, 10**150])
@raises(ValueError, "peak_value = {peak}", A_PEAK)
def test_peak_that_float32_does_not_hold(curve, peak):
    curve.learning_rate(3, peak)


# Derived curves and comparisons.

CURVE = PlateauCurve(1000)
HALF_OF_ALL_STEPS = PlateauCurve(2**30)


def test_wrong_cooldown(curve):
    with raises(ValueError, "at = -1", in_range(0, MAX_STEP)):
        curve.cooldown(-1, 5)
    with raises(ValueError, "steps = 0", in_range(1, MAX_STEP)):
        curve.cooldown(5, 0)
    with raises(ValueError, "at + steps = 2147483648", in_range(1, MAX_STEP)):
        curve.cooldown(MAX_STEP, 1)
    with raises(ValueError, "to = 0.5", "above the level at step 550, 0.37779244"):
        curve.cooldown(550, 5, to=0.5)
    with raises(ValueError, "to = -0.1", IN_0_TO_1):
        curve.cooldown(100, 5, to=-0.1)
    with raises(ValueError, "shape = None", A_SHAPE):
        curve.cooldown(5, 5, shape=None)


def test_wrong_continuation(curve):
    for scale in (0, 1 + 2**-52):
        with raises(ValueError, f"scale = {scale}", "(0, 1]"):
            curve.then(CURVE, scale=scale)


def test_wrong_part(curve):
    with raises(ValueError, "start = 5", in_range(0, 4)):
        curve.part(5, 5)
    with raises(ValueError, "stop = 0", in_range(1, 1000)):
        curve.part(0, 0)


def test_wrong_comparison(curve):
    with raises(ValueError, "step = -1", at_least(0)):
        curve.same_until(CURVE, -1)


@raises(ValueError, f"total_steps = {2**30} + {2**30}", at_most(MAX_STEP))
def test_continuation_past_the_last_step():
    HALF_OF_ALL_STEPS.then(HALF_OF_ALL_STEPS)


@pytest.mark.parametrize("shape", SAMPLES_ABOVE_ZERO)
@raises(ValueError, "shape = {shape}", "cooldown from or to 0")
def test_shape_of_a_cooldown_to_0(shape):
    flat = StagedCurve([(10,)], start=1)
    flat.cooldown(5, 5, shape=shape)


# Warmup, stable, decay.


def wsd(total_steps=9, warmup_steps=0, decay_steps=0, **options):
    StagedCurve.wsd(total_steps, warmup_steps=warmup_steps, decay_steps=decay_steps, **options)


def test_wrong_wsd():
    with raises(ValueError, "total_steps = 0", in_range(1, MAX_STEP)):
        wsd(total_steps=0)
    with raises(TypeError, "warmup_steps = 0.2", "such as '2%'"):
        wsd(warmup_steps=0.2)
    with raises(ValueError, "decay_steps = -1", in_range(0, MAX_STEP)):
        wsd(decay_steps=-1)
    with raises(ValueError, "warmup_steps + decay_steps = 5 + 5 must be at most total_steps = 9"):
        wsd(warmup_steps="60%", decay_steps=5)
    with raises(ValueError, "decay_shape = None", A_SHAPE):
        wsd(decay_shape=None)
    with raises(ValueError, "min_lr_ratio = 1.5", IN_0_TO_1):
        wsd(min_lr_ratio=1.5)
    with raises(ValueError, "decay_shape = 'exponential'", "decay from or to 0"):
        wsd(decay_steps=9, decay_shape="exponential")


# Points.


def test_wrong_points():
    with raises(ValueError, "points = [(0, 1.0)]", "at least two points"):
        StagedCurve.through([(0, 1.0)])
    with raises(ValueError, "points[1].step = 0", in_range(1, MAX_STEP)):
        StagedCurve.through([(0, 1.0), (0, 0.5)])
    with raises(ValueError, "points[0].step = 5 must be 0 in the first point"):
        StagedCurve.through([(5, 1.0), (9, 1)])
    with raises(ValueError, "points[2].step = 4", in_range(5, MAX_STEP)):
        StagedCurve.through([(0, 1.0), (5, 1.0), (4, 0.5), (9, 1.0)])
    with raises(ValueError, "points[1].level = 1.5", IN_0_TO_1):
        StagedCurve.through([(0, 1.0), (5, 1.5)])
    with raises(TypeError, "points[0] = np.float64(0.0) must be a pair (step, level)"):
        StagedCurve.through(np.zeros(5))


@pytest.mark.parametrize("levels", [(0, 1, 0), (1, 1, 0), (0.0, 1.0, 0.0), (0.5, 1, 0)])
def test_points_of_level_and_step(levels):
    """In the wrong order."""
    with pytest.raises((TypeError, ValueError), match=r"; a point is \(step, level\)"):
        StagedCurve.through(zip(levels, (0, 500, 1000), strict=True))


@raises(TypeError, f"points[1].step = np.float32(0.5) {AN_INTEGER}")
def test_step_in_an_array_of_floats():
    StagedCurve.through(np.array([(0, 1), (0.5, 1)], np.float32))


# Stacks.


@raises(ValueError, "curves is empty", "at least one Curve")
def test_stack_of_no_curves():
    stack([])


@raises(TypeError, "curves = ", "several Curves, in order")
def test_stack_of_a_single_curve():
    stack(CURVE)


@raises(ValueError, "of a PlateauCurve, not of a StagedCurve")
def test_arguments_of_a_different_class(curve):
    StagedCurve.from_dict(curve.to_dict())


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


@raises(ValueError, "nested 65 deep")
def test_deepest_as_a_continuation(deepest):
    CURVE.then(deepest)


def joined(curves):
    """Join curves as the error advises."""
    if len(curves) == 1:
        return curves[0]
    middle = len(curves) // 2
    return joined(curves[:middle]).then(joined(curves[middle:]))


def test_many_curves_are_joined_in_halves():
    cycle = PlateauCurve(10, warmup_steps=2)
    one_by_one = cycle
    with raises(ValueError, "nested 65 deep", "join many in halves"):
        for _ in range(66):
            one_by_one = one_by_one.then(cycle)
    many = joined([cycle] * 1000)
    steps = np.arange(10_000)
    np.testing.assert_array_equal(many(steps), cycle(steps % 10))


# Long values.


@pytest.mark.parametrize("value", [np.zeros((50, 50)), "two\nlines" * 999], ids=type)
def test_message_shows_a_line_of_a_long_value(value):
    with pytest.raises(TypeError) as caught:
        PlateauCurve(value)
    (line,) = str(caught.value).splitlines()
    assert len(line) < 900
