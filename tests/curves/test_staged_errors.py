"""Wrong arguments of `StagedCurve.wsd` and `StagedCurve.through`."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest
from support.curves.wrong_values import (
    A_PERCENTAGE,
    A_SHAPE,
    NOT_PAIRS,
    NOT_PERCENTAGES,
    NOT_SHAPES,
)
from support.numerics.shapes import SAMPLES_ABOVE_ZERO
from support.wrong import wrong

from plateau_jax import StagedCurve

# Warmup, stable, decay.


def wsd(
    total_steps: Any = 9, warmup_steps: Any = 0, decay_steps: Any = 0, **arguments: Any
) -> StagedCurve:
    return StagedCurve.wsd(
        total_steps, warmup_steps=warmup_steps, decay_steps=decay_steps, **arguments
    )


@pytest.mark.parametrize("total", ["10%", 9.0, True, None])
@wrong(TypeError, "total_steps = {total}", "integer")
def test_total_steps_that_are_not_an_integer(total: Any) -> None:
    wsd(total)


@pytest.mark.parametrize("total", [0, -1, 2**31])
@wrong(ValueError, "total_steps = {total}", "1 …")
def test_total_steps_out_of_range(total: int) -> None:
    wsd(total)


of_each_length = pytest.mark.parametrize("argument", ["warmup_steps", "decay_steps"])


@of_each_length
@pytest.mark.parametrize("steps", [0.2, "rest", None, True])
def test_length_that_is_not_an_integer(argument: str, steps: Any) -> None:
    with pytest.raises(TypeError, match="percentage of total_steps such as '2%'") as caught:
        wsd(**{argument: steps})
    assert str(caught.value).startswith(f"{argument} = {steps!r}")


@of_each_length
@pytest.mark.parametrize("steps", NOT_PERCENTAGES)
def test_length_that_is_not_a_percentage(argument: str, steps: str) -> None:
    with pytest.raises(ValueError, match=A_PERCENTAGE) as caught:
        wsd(**{argument: steps})
    assert str(caught.value).startswith(f"{argument} = {steps!r}")


@of_each_length
def test_negative_length(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument} = -1 must lie in 0 … "):
        wsd(**{argument: -1})


@wrong(ValueError, "warmup_steps + decay_steps = 5 + 5 must be at most total_steps = 9")
def test_warmup_and_decay_longer_than_the_curve() -> None:
    wsd(warmup_steps="60%", decay_steps=5)


@pytest.mark.parametrize("shape", [*NOT_SHAPES, None], ids=repr)
@wrong(ValueError, "decay_shape = {shape}", A_SHAPE)
def test_shape_of_the_decay(shape: Any) -> None:
    wsd(decay_steps=9, decay_shape=shape)


@pytest.mark.parametrize("shape", SAMPLES_ABOVE_ZERO)
@wrong(ValueError, "decay_shape = {shape}", "decay from or to 0")
def test_shape_of_a_decay_to_0(shape: str) -> None:
    wsd(decay_steps=9, decay_shape=shape)


@pytest.mark.parametrize("ratio", [-0.1, 1.5])
@wrong(ValueError, "min_lr_ratio = {ratio}", "lie in [0, 1]")
def test_level_of_the_decay_out_of_range(ratio: float) -> None:
    wsd(decay_steps=9, min_lr_ratio=ratio)


@pytest.mark.parametrize("ratio", ["10%", None, True])
@wrong(TypeError, "min_lr_ratio = {ratio}", "number")
def test_level_of_the_decay_that_is_not_a_number(ratio: Any) -> None:
    wsd(decay_steps=9, min_lr_ratio=ratio)


@pytest.mark.parametrize("level", [-0.1, 1.5])
@wrong(ValueError, "start = {level}", "lie in [0, 1]")
def test_first_level_out_of_range(level: float) -> None:
    wsd(warmup_steps=3, start=level)


# Points.


@pytest.mark.parametrize("points", [None, 5, "points", {(0, 1.0)}, {0: 1.0}], ids=repr)
@wrong(TypeError, "points = {points}", "sequence of pairs (step, level)")
def test_points_without_an_order(points: Any) -> None:
    StagedCurve.through(points)


@pytest.mark.parametrize("points", [[], [(0, 1.0)]], ids=repr)
@wrong(ValueError, "points = {points}", "at least two points")
def test_fewer_than_two_points(points: Any) -> None:
    StagedCurve.through(points)


@pytest.mark.parametrize("point", NOT_PAIRS, ids=repr)
@wrong(TypeError, "points[1] = {point}", "pair (step, level)")
def test_point_that_is_not_a_pair(point: Any) -> None:
    StagedCurve.through([(0, 1.0), point])


@pytest.mark.parametrize("step", [True, 5.0, "five", None, nan, 0.5])
@wrong(TypeError, "points[1].step = {step}", "integer")
def test_step_of_a_point_is_not_an_integer(step: Any) -> None:
    StagedCurve.through([(0, 1.0), (step, 0.5)])


@pytest.mark.parametrize("step", [2**31, 10**50])
@wrong(ValueError, "points[1].step = {step}", "lie in 0 … 2**31 - 1 =")
def test_step_of_a_point_past_the_last_step(step: int) -> None:
    StagedCurve.through([(0, 1.0), (step, 0.5)])


@wrong(ValueError, "points[2].step = 0", "lie in 1 … 2**31 - 1 =")
def test_all_points_at_step_0() -> None:
    StagedCurve.through([(0, 1.0), (0, 1.0), (0, 0.5)])


@pytest.mark.parametrize("step", [1, 5, 2**31 - 1, 2**31])
@wrong(ValueError, "points[0].step = {step} must be 0, the first step of the curve")
def test_first_point_that_is_not_at_step_0(step: int) -> None:
    StagedCurve.through([(step, 1.0), (step + 9, 0.5)])


@pytest.mark.parametrize("step", [4, -1])
@wrong(ValueError, "points[2].step = {step}", "lie in 5 … 2**31 - 1 =")
def test_point_before_the_point_before_it(step: int) -> None:
    StagedCurve.through([(0, 1.0), (5, 1.0), (step, 0.5), (9, 1.0)])


@pytest.mark.parametrize("level", [True, "0.5", None, 0j, [0.5]], ids=repr)
@wrong(TypeError, "points[1].level = {level}", "number")
def test_level_of_a_point_is_not_a_number(level: Any) -> None:
    StagedCurve.through([(0, 1.0), (5, level)])


@pytest.mark.parametrize("level", [-0.1, 1.5])
@wrong(ValueError, "points[1].level = {level}", "lie in [0, 1]")
def test_level_of_a_point_out_of_range(level: float) -> None:
    StagedCurve.through([(0, 1.0), (5, level)])


@pytest.mark.parametrize("level", [nan, inf])
@wrong(ValueError, "points[1].level = {level}", "finite")
def test_level_of_a_point_is_not_finite(level: float) -> None:
    StagedCurve.through([(0, 1.0), (5, level)])


@pytest.mark.parametrize("step", [0.5, nan, inf])
@wrong(TypeError, "points[1].step = np.float32({step}) must be an integer")
def test_step_in_an_array_of_floats(step: float) -> None:
    StagedCurve.through(np.array([(0, 1), (step, 1)], np.float32))


@wrong(TypeError, "points[0] = np.float64(0.0) must be a pair")
def test_array_of_numbers_as_points() -> None:
    StagedCurve.through(np.zeros(5))


@wrong(TypeError, "points[0] = array([0., 0., 0.]) must be a pair")
def test_array_of_triples_as_points() -> None:
    StagedCurve.through(np.zeros((5, 3)))


@wrong(TypeError, "points[0].step = np.False_", "integer")
def test_array_of_bools_as_points() -> None:
    StagedCurve.through(np.zeros((5, 2), bool))
