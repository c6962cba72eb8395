"""Wrong arguments of `StagedCurve.wsd` and `StagedCurve.through`."""

import numpy as np
import pytest
from support.curves.requirements import A_SHAPE, AN_INTEGER, IN_0_TO_1, in_range
from support.curves.strategies import MAX_STEP
from support.raises import raises

from plateau_jax import StagedCurve

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
