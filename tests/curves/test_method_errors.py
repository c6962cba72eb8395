"""Wrong calls of a curve's methods, and of functions that take a curve."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import inf, nan
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from support.curves.strategies import MAX_STEP
from support.curves.wrong_values import A_SHAPE, NOT_SHAPES
from support.numerics.shapes import SAMPLES_ABOVE_ZERO
from support.wrong import wrong

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


@pytest.fixture
def curve() -> PlateauCurve:
    return PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)


@pytest.fixture
def branch() -> Curve:
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
        3j,
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
def test_step(curve: Curve, step: Any) -> None:
    curve(step)


@pytest.mark.parametrize(
    "peak", [True, np.True_, "0.1", b"1", None, 1j, [0.1], np.ones(2)], ids=repr
)
@wrong(TypeError, "peak_value = {peak}", "number")
def test_peak_that_is_not_a_number(curve: Curve, peak: Any) -> None:
    curve.learning_rate(3, peak)


@pytest.mark.parametrize("peak", [-0.1, -1e-30, -inf])
@wrong(ValueError, "peak_value = {peak}", "be 0, or")
def test_negative_peak(curve: Curve, peak: float) -> None:
    curve.learning_rate(3, peak)


@pytest.mark.parametrize("peak", [nan, inf, 2.0**-127, 1e-300, 1e39, 3.4028236e38, 10**150])
@wrong(ValueError, "peak_value = {peak}", "must")
def test_peak_that_float32_does_not_hold(curve: Curve, peak: float) -> None:
    curve.learning_rate(3, peak)


@wrong(TypeError, "optax_schedule(curve, peak_value)", "in jax.debug.callback, pass int(step)")
def test_jax_array_as_step(curve: Curve) -> None:
    curve.learning_rate(jnp.array(3), 0.1)


# Cooldowns.

NOT_STEPS = [True, 1.0, "one", None]


@pytest.mark.parametrize("at", NOT_STEPS)
@wrong(TypeError, "at = {at}", "integer")
def test_start_of_a_cooldown_is_not_an_integer(curve: Curve, at: Any) -> None:
    curve.cooldown(at, 5)


@wrong(ValueError, "at = -1", "lie in 0 … 2**31 - 1")
def test_start_of_a_cooldown_is_negative(curve: Curve) -> None:
    curve.cooldown(-1, 5)


@pytest.mark.parametrize("at", [2**31, 1e10])
@wrong(ValueError, "at = {at}", "clock=DataClock(65536)")
def test_start_of_a_cooldown_in_tokens(curve: Curve, at: Any) -> None:
    curve.cooldown(at, 5)


@pytest.mark.parametrize("steps", NOT_STEPS)
@wrong(TypeError, "steps = {steps}", "integer")
def test_steps_of_a_cooldown_are_not_an_integer(curve: Curve, steps: Any) -> None:
    curve.cooldown(5, steps)


@wrong(ValueError, "steps = 0", "lie in 1 … 2**31 - 1")
def test_cooldown_without_steps(curve: Curve) -> None:
    curve.cooldown(5, 0)


@pytest.mark.parametrize("steps", [2**31, 1e10])
@wrong(ValueError, "steps = {steps}", "clock=DataClock(65536)")
def test_steps_of_a_cooldown_in_tokens(curve: Curve, steps: Any) -> None:
    curve.cooldown(5, steps)


@wrong(ValueError, "at + steps = 2147483648", "2**31 - 1")
def test_cooldown_past_the_last_step(curve: Curve) -> None:
    curve.cooldown(MAX_STEP, 1)


@wrong(ValueError, "to = 1e-300", "above the level at step 0, 0.0")
def test_cooldown_up_from_0(curve: Curve) -> None:
    curve.cooldown(0, 5, to=1e-300)


@wrong(ValueError, "to = 0.5", "above the level at step 550, 0.37779244")
def test_cooldown_up(curve: Curve) -> None:
    curve.cooldown(550, 5, to=0.5)


@pytest.mark.parametrize("to", [1.5, -0.1])
@wrong(ValueError, "to = {to}", "[0, 1]")
def test_level_of_a_cooldown(curve: Curve, to: float) -> None:
    curve.cooldown(100, 5, to=to)


@pytest.mark.parametrize("shape", [*NOT_SHAPES, None], ids=repr)
@wrong(ValueError, "shape = {shape}", A_SHAPE)
def test_shape_of_a_cooldown(curve: Curve, shape: Any) -> None:
    curve.cooldown(5, 5, shape=shape)


@pytest.mark.parametrize("shape", ["1-x^1e-1", "t^-+2"])
@wrong(ValueError, "shape = {shape}", "a decimal for P")
def test_power_of_a_cooldown(curve: Curve, shape: str) -> None:
    curve.cooldown(5, 5, shape=shape)


@pytest.mark.parametrize("shape", SAMPLES_ABOVE_ZERO)
@wrong(ValueError, "shape = {shape}", "cooldown from or to 0")
def test_shape_of_a_cooldown_to_0(shape: str) -> None:
    flat = StagedCurve([(10,)], start=1)
    flat.cooldown(5, 5, shape=shape)


# Continuations.


@pytest.mark.parametrize("other", [None, 3, "curve", ["total_steps", 9]], ids=repr)
@wrong(TypeError, "other = {other}", "a Curve")
def test_continuation_that_is_not_a_curve(curve: Curve, other: Any) -> None:
    curve.then(other)


@pytest.mark.parametrize("scale", [0, 0.0, -0.5, 1.0000000000000002])
@wrong(ValueError, "scale = {scale}", "(0, 1]")
def test_scale_out_of_range(curve: Curve, scale: float) -> None:
    curve.then(curve, scale=scale)


@pytest.mark.parametrize("scale", [nan, inf])
@wrong(ValueError, "scale = {scale}", "finite")
def test_scale_that_is_not_finite(curve: Curve, scale: float) -> None:
    curve.then(curve, scale=scale)


@pytest.mark.parametrize("scale", [True, "0.5", None])
@wrong(TypeError, "scale = {scale}", "number")
def test_scale_that_is_not_a_number(curve: Curve, scale: Any) -> None:
    curve.then(curve, scale=scale)


@wrong(ValueError, f"total_steps = {2**30} + {2**30}", "2**31 - 1")
def test_continuation_past_the_last_step() -> None:
    half = PlateauCurve(2**30)
    half.then(half)


# Parts.


@pytest.mark.parametrize("start", NOT_STEPS)
@wrong(TypeError, "start = {start}", "integer")
def test_start_of_a_part_is_not_an_integer(curve: Curve, start: Any) -> None:
    curve.part(start)


@wrong(ValueError, "start = -1", "lie in 0 … 999")
def test_start_of_a_part_is_negative(curve: Curve) -> None:
    curve.part(-1)


@wrong(ValueError, "start = 5", "lie in 0 … 4")
def test_part_without_steps(curve: Curve) -> None:
    curve.part(5, 5)


@pytest.mark.parametrize("stop", [True, 1.0, "one"])
@wrong(TypeError, "stop = {stop}", "integer")
def test_stop_of_a_part_is_not_an_integer(curve: Curve, stop: Any) -> None:
    curve.part(0, stop)


@pytest.mark.parametrize("stop", [0, 1001])
@wrong(ValueError, "stop = {stop}", "lie in 1 … 1000")
def test_stop_of_a_part_out_of_range(curve: Curve, stop: int) -> None:
    curve.part(0, stop)


@wrong(ValueError, f"stop = {2**30}", "lie in 1 … 1000000000")
def test_stop_past_a_large_number_that_is_no_power_of_2() -> None:
    curve = PlateauCurve(10**9)
    curve.part(0, 2**30)


# Comparisons.


@wrong(TypeError, "other = None", "a Curve")
def test_same_until_something_else(curve: Curve) -> None:
    curve.same_until(None, 5)


@wrong(TypeError, "other = 5", "a Curve")
def test_first_difference_from_something_else(curve: Curve) -> None:
    curve.first_difference(5)


@pytest.mark.parametrize("step", NOT_STEPS)
@wrong(TypeError, "step = {step}", "integer")
def test_same_until_a_step_that_is_not_an_integer(curve: Curve, step: Any) -> None:
    curve.same_until(curve, step)


@wrong(ValueError, "step = -1", "at least 0")
def test_same_until_a_negative_step(curve: Curve) -> None:
    curve.same_until(curve, -1)


# Averaging weights.


@pytest.mark.parametrize("step", [700.0, True, [700]], ids=repr)
@wrong(TypeError, "steps[1] = {step}", "integer")
def test_checkpoint_step_that_is_not_an_integer(branch: Curve, step: Any) -> None:
    branch.merge_weights([600, step])


@wrong(TypeError, "steps = 5 must be a sequence of integers")
def test_one_checkpoint_step(branch: Curve) -> None:
    branch.merge_weights(5)


@wrong(ValueError, "steps[0] = -1", "at least 0")
def test_negative_checkpoint_step(branch: Curve) -> None:
    branch.merge_weights([-1, 600])


@pytest.mark.parametrize("steps", [[], [600], [7, 70, 70], [70, 60]], ids=repr)
@wrong(ValueError, "steps = {steps}", "two rising integers")
def test_checkpoint_steps_that_do_not_rise(branch: Curve, steps: list[int]) -> None:
    branch.merge_weights(steps)


@wrong(ValueError, f"steps = [600, {2**31}]", "at most 2**31 - 1")
def test_checkpoint_steps_past_the_last_step(branch: Curve) -> None:
    branch.merge_weights([600, 2**31])


@wrong(TypeError, "steps[0] = ", "600.0", "integer")
def test_checkpoint_steps_in_an_array_of_floats(branch: Curve) -> None:
    branch.merge_weights(np.array([600.0, 7]))


@wrong(ValueError, "rises from step 50 to step 99", "steps[0] = 50 to steps[-1]")
def test_merged_curve_rises(branch: Curve) -> None:
    branch.merge_weights([50, 600])


@pytest.mark.parametrize("start", [0, 1000])
@wrong(ValueError, "the curve is 0 at steps[0] = {start}")
def test_merged_curve_begins_at_0(branch: Curve, start: int) -> None:
    branch.merge_weights([start, 1001])


# Averaging weights of means.


@pytest.mark.parametrize("length", [50.0, True, "50", {50}], ids=repr)
@wrong(TypeError, "mean_of = {length}", "integer")
def test_length_that_is_not_an_integer(branch: Curve, length: Any) -> None:
    branch.merge_weights([1000], mean_of=length)


@wrong(TypeError, "mean_of[1] = 50.0", "integer")
def test_one_length_that_is_not_an_integer(branch: Curve) -> None:
    branch.merge_weights([700, 800], mean_of=[100, 50.0])


@wrong(ValueError, "mean_of = 0", "at least 1")
def test_mean_of_no_update(branch: Curve) -> None:
    branch.merge_weights([1000], mean_of=0)


@wrong(ValueError, "mean_of[0] = 1001", "at most steps[0] = 1000")
def test_mean_of_more_updates_than_there_were(branch: Curve) -> None:
    branch.merge_weights([1000], mean_of=[1001])


@wrong(ValueError, "steps has length 2, and mean_of 3")
def test_wrong_number_of_lengths(branch: Curve) -> None:
    branch.merge_weights([700, 800], mean_of=[100, 100, 100])


@wrong(ValueError, "steps = []", "one or more rising integers")
def test_no_means(branch: Curve) -> None:
    branch.merge_weights([], mean_of=50)


@wrong(ValueError, "steps[2] = 780 begins at step 680", "must begin at steps[1] = 700")
def test_blocks_that_overlap(branch: Curve) -> None:
    branch.merge_weights([600, 700, 780, 1000], mean_of=[100, 100, 100, 220])


@wrong(ValueError, "steps[1] = 800 begins at step 500", "must begin at steps[0] = 700")
def test_block_within_the_next_one(branch: Curve) -> None:
    branch.merge_weights([700, 800], mean_of=[100, 300])


@wrong(
    ValueError,
    "steps[1] = 700 begins at step 650, and must begin at steps[0] = 600",
)
def test_gap_between_blocks(branch: Curve) -> None:
    branch.merge_weights([600, 700, 800], mean_of=50)


@wrong(
    ValueError,
    "steps[-1] = 750 must be at least total_steps = 1000: no block contains updates 751 to 1000",
)
def test_blocks_that_do_not_reach_the_end(branch: Curve) -> None:
    branch.merge_weights([600, 650, 700, 750], mean_of=50)


@wrong(
    ValueError,
    "steps[0] - mean_of = 650 must be at most 600, where the curve begins to fall: no block ",
    "contains updates 601 to 650",
)
def test_blocks_that_begin_within_the_cooldown(branch: Curve) -> None:
    branch.merge_weights(range(700, 1001, 50), mean_of=50)


@wrong(ValueError, "steps[0] - mean_of = 1000 must be below the end of the curve", "= 1000")
def test_blocks_after_the_end(branch: Curve) -> None:
    branch.merge_weights([1050, 1100], mean_of=50)


@wrong(ValueError, "rises from step 50 to step 99", "from steps[0] - mean_of = 50 to total_steps")
def test_blocks_that_begin_in_the_warmup(branch: Curve) -> None:
    branch.merge_weights(range(100, 1001, 50), mean_of=50)


@wrong(ValueError, "the curve is 0 at steps[0] - mean_of[0] = 0")
def test_blocks_that_begin_at_0(branch: Curve) -> None:
    branch.merge_weights([100, 1000], mean_of=[100, 900])


# Stacks.


@wrong(ValueError, "curves is empty", "at least one Curve")
def test_stack_of_no_curves() -> None:
    stack([])


@pytest.mark.parametrize("other", [3, None, [5]], ids=repr)
@wrong(TypeError, "curves[1] = {other}", "a Curve")
def test_stack_of_something_else(curve: Curve, other: Any) -> None:
    stack([curve, other])


curves_need_an_order = wrong(TypeError, "curves = ", "several Curves, in order")


@curves_need_an_order
def test_stack_of_a_curve_without_a_list(curve: Curve) -> None:
    stack(curve)


@curves_need_an_order
def test_stack_of_a_set(curve: Curve) -> None:
    stack({curve})


@curves_need_an_order
def test_stack_of_a_frozenset(curve: Curve) -> None:
    stack(frozenset([curve]))


@curves_need_an_order
def test_stack_of_a_dictionary(curve: Curve) -> None:
    stack({curve: None})


# Classes.


@pytest.mark.parametrize("curve_type", [Curve, PlateauCurve, Then])
@wrong(TypeError, "missing 1 required", "'kind'")
def test_subclass(curve_type: Any) -> None:
    class Recipe(curve_type):
        pass


@wrong(ValueError, "of a PlateauCurve, not of a StagedCurve")
def test_arguments_of_a_different_class(curve: Curve) -> None:
    StagedCurve.from_dict(curve.to_dict())


@wrong(ValueError, "of a Part, not of a Cooldown")
def test_arguments_of_a_different_derived_class(curve: Curve) -> None:
    Cooldown.from_dict(curve.part(5).to_dict())


@wrong(ValueError, "warmup_steps = 1000", "total_steps - 1 = 999")
def test_replaced_argument_is_checked(curve: PlateauCurve) -> None:
    replace(curve, warmup_steps=1000)


# Long values.


def as_total_steps(value: Any) -> None:
    PlateauCurve(value)


def as_plateaus(value: Any) -> None:
    PlateauCurve(9, plateaus=value)


def as_plateau(value: Any) -> None:
    PlateauCurve(9, plateaus=[value])


def as_start_of_a_plateau(value: Any) -> None:
    PlateauCurve(9, plateaus=[(value, 1)])


def as_shape(value: Any) -> None:
    PlateauCurve(9, decay_shape=value)


def as_continuation(value: Any) -> None:
    PlateauCurve(9).then(value)


def as_kind(value: Any) -> None:
    Curve.from_dict({"kind": str(value)})


def as_rule(value: Any) -> None:
    HoldBelow(0.5, value)


def as_peak(value: Any) -> None:
    optax_schedule(PlateauCurve(9), value)


def as_clock(value: Any) -> None:
    scale_by_curve(PlateauCurve(9), 3e-4, value)


def as_clock_of_a_record(value: Any) -> None:
    resume_record(PlateauCurve(9), 3e-4, value)


def as_record(value: Any) -> None:
    check_resume(value, {}, 3)


def as_curve(value: Any) -> None:
    compare(PlateauCurve(9), value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(np.zeros((50, 50)), id="array"),
        pytest.param("two\nlines" * 999, id="text"),
        pytest.param([[0.5]] * 999, id="list"),
    ],
)
@pytest.mark.parametrize(
    "program",
    [
        as_total_steps,
        as_plateaus,
        as_plateau,
        as_start_of_a_plateau,
        as_shape,
        as_continuation,
        StagedCurve,
        Curve.from_dict,
        as_kind,
        BatchPlan.from_dict,
        as_rule,
        as_peak,
        as_clock,
        DataClock,
        as_clock_of_a_record,
        as_record,
        as_curve,
    ],
)
def test_message_shows_a_line_of_a_long_value(program: Any, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        program(value)
    (line,) = str(caught.value).splitlines()
    assert len(line) < 900
