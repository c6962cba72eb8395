"""Wrong arguments of `StagedCurve.wsd` and `StagedCurve.through`."""

import numpy as np
import pytest
from support.curves.strategies import MAX_STEP
from support.curves.wrong_values import A_SHAPE, AN_INTEGER, IN_0_TO_1, Call, in_range, name_of
from support.numerics.shapes import SAMPLES_ABOVE_ZERO
from support.wrong import wrong

from plateau_jax import StagedCurve

# Warmup, stable, decay.


def wsd(error, *parts, total_steps=9, **options):
    lengths = {"warmup_steps": 0, "decay_steps": 0}
    return Call("wsd", (total_steps,), error, parts, {**lengths, **options})


TOO_LONG = "warmup_steps + decay_steps = 5 + 5 must be at most total_steps = 9"


@pytest.mark.parametrize(
    "call",
    [
        wsd(ValueError, "total_steps = 0", in_range(1, MAX_STEP), total_steps=0),
        wsd(TypeError, "warmup_steps = 0.2", "such as '2%'", warmup_steps=0.2),
        wsd(TypeError, "decay_steps = 'rest'", "such as '2%'", decay_steps="rest"),
        wsd(ValueError, "decay_steps = -1", in_range(0, MAX_STEP), decay_steps=-1),
        wsd(ValueError, TOO_LONG, warmup_steps="60%", decay_steps=5),
        wsd(ValueError, "decay_shape = None", A_SHAPE, decay_shape=None),
        wsd(ValueError, "min_lr_ratio = 1.5", IN_0_TO_1, min_lr_ratio=1.5),
        wsd(ValueError, "start = -0.1", IN_0_TO_1, start=-0.1),
    ],
    ids=name_of,
)
def test_wrong_wsd(call):
    call.check(StagedCurve)


@pytest.mark.parametrize("shape", SAMPLES_ABOVE_ZERO)
@wrong(ValueError, "decay_shape = {shape}", "decay from or to 0")
def test_shape_of_a_decay_to_0(shape):
    StagedCurve.wsd(9, warmup_steps=0, decay_steps=9, decay_shape=shape)


# Points.


def through(points, error, *parts):
    return Call("through", (points,), error, parts)


@pytest.mark.parametrize(
    "call",
    [
        through({0: 1.0}, TypeError, "points = {0: 1.0}", "sequence of pairs (step, level)"),
        through([(0, 1.0)], ValueError, "points = [(0, 1.0)]", "at least two points"),
        through([(0, 1.0), (0, 0.5)], ValueError, "points[1].step = 0", in_range(1, MAX_STEP)),
        through([(5, 1.0), (9, 1)], ValueError, "points[0].step = 5 must be 0, the first step"),
        through(
            [(0, 1.0), (5, 1.0), (4, 0.5), (9, 1.0)],
            ValueError,
            "points[2].step = 4",
            in_range(5, MAX_STEP),
        ),
        through([(0, 1.0), (5, 1.5)], ValueError, "points[1].level = 1.5", IN_0_TO_1),
        through(np.zeros(5), TypeError, "points[0] = np.float64(0.0) must be a pair (step, level)"),
    ],
    ids=name_of,
)
def test_wrong_points(call):
    call.check(StagedCurve)


@wrong(TypeError, f"points[1].step = np.float32(0.5) {AN_INTEGER}")
def test_step_in_an_array_of_floats():
    StagedCurve.through(np.array([(0, 1), (0.5, 1)], np.float32))
