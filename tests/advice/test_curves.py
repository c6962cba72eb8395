"""Warnings about curves: a program that follows the advice to the letter is silent and right.

In the files of this folder, the block `with warns(advice)` is the program that warns. What follows
are programs with this advice, one for each alternative. In them, every warning is an error.
"""

import numpy as np
import pytest
from support.curve_warnings import ignore_curve_warnings, warns

from plateau_jax import PlateauCurve, StagedCurve

STABLE = StagedCurve([(100, 1.0), (800,)])


def test_end_that_is_a_learning_rate():
    peak = 3e-4
    with warns("For a learning rate write min_lr_ratio=3e-05 / peak"):
        PlateauCurve(1000, min_lr_ratio=3e-5)
    curve = PlateauCurve(1000, min_lr_ratio=3e-05 / peak)
    assert curve.learning_rate(1000, peak) == pytest.approx(3e-5)

    with warns("For a learning rate write min_lr_ratio=3e-05 / peak"):
        StagedCurve.wsd(1000, warmup_steps=10, decay_steps="20%", min_lr_ratio=3e-5)
    curve = StagedCurve.wsd(1000, warmup_steps=10, decay_steps="20%", min_lr_ratio=3e-05 / peak)
    assert curve.learning_rate(1000, peak) == pytest.approx(3e-5)


def test_end_that_is_a_small_fraction():
    """Also after a division by the peak."""
    peak = 0.1
    with warns("if you mean this fraction, ignore the CurveWarning"):
        PlateauCurve(1000, min_lr_ratio=1e-6 / peak)
    with ignore_curve_warnings():
        curve = PlateauCurve(1000, min_lr_ratio=1e-6 / peak)
    assert curve.learning_rate(1000, peak) == pytest.approx(1e-6)


def test_cooldown_to_a_learning_rate():
    peak = 3e-4
    with warns("For a learning rate write to=3e-05 / peak"):
        STABLE.cooldown(500, 100, to=3e-5)
    cooled = STABLE.cooldown(500, 100, to=3e-05 / peak)
    assert cooled.learning_rate(600, peak) == pytest.approx(3e-5)


def test_cooldown_from_0():
    curve = PlateauCurve(1000, plateaus=[(50, 20)])
    with warns("Begin the cooldown at a step at which the curve is above 0"):
        curve.cooldown(1000, 100)
    cooled = curve.cooldown(600, 100)
    np.testing.assert_array_equal(cooled([600, 700]), [curve(600), 0])


def test_scale_that_is_a_learning_rate():
    peak = 3e-4
    with warns("For a learning rate write 3e-05 / peak"):
        STABLE.then(PlateauCurve(100), scale=3e-5)
    lower = STABLE.then(PlateauCurve(100), scale=3e-05 / peak)
    assert lower.learning_rate(900, peak) == pytest.approx(3e-5)


def test_scale_that_is_a_small_fraction():
    with warns("if you mean this fraction, ignore the CurveWarning"):
        STABLE.then(PlateauCurve(100), scale=5e-4)
    with ignore_curve_warnings():
        assert STABLE.then(PlateauCurve(100), scale=5e-4)(900) == np.float32(5e-4)


def test_levels_that_are_learning_rates():
    peak = 3e-4
    with warns("Write each as learning rate / peak"):
        StagedCurve([(10, 3e-4), (80,), (10, 3e-5)])
    curve = StagedCurve([(10, 3e-4 / peak), (80,), (10, 3e-5 / peak)])
    assert curve.learning_rate(50, peak) == np.float32(peak)
    assert curve.learning_rate(100, peak) == pytest.approx(3e-5)

    with warns("Write each as learning rate / peak"):
        StagedCurve.through([(0, 0.0), (10, 3e-4), (100, 3e-5)])
    curve = StagedCurve.through([(0, 0.0), (10, 3e-4 / peak), (100, 3e-5 / peak)])
    assert curve.learning_rate(10, peak) == np.float32(peak)
    assert curve.learning_rate(100, peak) == pytest.approx(3e-5)


def test_curve_that_never_rises():
    with warns("To begin at the peak write start=1.0"):
        StagedCurve([(80,), (20, 0.0)])
    curve = StagedCurve([(80,), (20, 0.0)], start=1.0)
    np.testing.assert_array_equal(curve([0, 79, 90, 100]), [1, 1, 0.5, 0])


def test_plateaus_that_are_fractions():
    with warns("plateaus = [(0.5, 0.3)] look like fractions of 1, but are percentages. Multiply"):
        PlateauCurve(1000, plateaus=[(0.5, 0.3)])
    curve = PlateauCurve(1000, plateaus=[(0.5 * 100, 0.3 * 100)])
    assert curve == PlateauCurve(1000, plateaus=[(50, 30)])


def test_plateau_that_rounds_to_no_step():
    with warns("Write a longer one, or absolute_plateaus in steps"):
        PlateauCurve(100, plateaus=[(50, 0.5), (80, 10)])
    longer = PlateauCurve(100, plateaus=[(50, 1), (80, 10)])
    in_steps = PlateauCurve(100, plateaus=[(80, 10)], absolute_plateaus=[(50, 1)])
    for curve in (longer, in_steps):
        assert curve(49) > curve(50) == curve(51) > curve(52)


def test_percentage_that_rounds_to_no_step():
    with warns("Write a larger percentage, or a number of steps"):
        PlateauCurve(100, warmup_steps="0.5%")
    for warmup in ("1%", 1):
        assert PlateauCurve(100, warmup_steps=warmup).warmup_steps == 1
    with warns("Write a larger percentage, or a number of steps"):
        StagedCurve([("0.5%", 1.0), ("rest",)], total_steps=100)
    for warmup in ("1%", 1):
        np.testing.assert_array_equal(
            StagedCurve([(warmup, 1.0), ("rest",)], total_steps=100)([0, 1]), [0, 1]
        )
