"""Errors of clocks and hold rules, and of the counts and metrics that a scheduler gets."""

import numpy as np
import pytest
import torch
from support.clocks.holds import PATIENT, THREE_PLATEAUS
from support.curves.descriptions import scaled
from support.curves.requirements import A_REAL_SCALAR, AN_INTEGER, at_least, in_range
from support.curves.strategies import MAX_STEP
from support.raises import raises
from support.runs.scheduler_run import FollowerRun, SchedulerRun
from support.schedulers.runs import optimizer_with

from plateau_jax import DataClock, HoldBelow, HoldUntilFlat, PlateauCurve, resume_record
from torch_bridge import lambda_lr

# Arguments.


def test_wrong_data_clock():
    for unit in (0, 2**62 + 1):
        with raises(ValueError, f"unit = {unit}", in_range(1, 2**62)):
            DataClock(unit)
    for count in (0, 2**62):
        with raises(ValueError, f"count = {count}", in_range(1, 2**62 - 1)):
            DataClock(8, count)


def test_wrong_hold_until_flat():
    for patience in (0, 2**31):
        with raises(ValueError, f"patience = {patience}", in_range(1, MAX_STEP)):
            HoldUntilFlat(patience, limit=9)
    with raises(TypeError, f"limit = None {AN_INTEGER}"):
        HoldUntilFlat(2, limit=None)
    requirement = 'must not be negative, nor above 1 for threshold_mode="rel"'
    for threshold in (-1e-9, 1.5):
        with raises(ValueError, f"threshold = {threshold} {requirement}"):
            HoldUntilFlat(2, limit=9, threshold=threshold)
    with raises(ValueError, "threshold_mode = 'low' must be one of 'rel', 'abs'"):
        HoldUntilFlat(2, limit=9, threshold_mode="low")
    with raises(ValueError, "every = 10", "limit = 9", "no reading"):
        HoldUntilFlat(2, every=10, limit=9)


def test_wrong_hold_below():
    with raises(ValueError, "value = -1e+39", "float32"):
        HoldBelow(-1e39, 3)
    with raises(ValueError, "steps = 0"):
        HoldBelow(0.5, 0)


# Clocks and curves. All functions with an argument `clock` share these checks.

BELOW = HoldBelow(0.7, 3)
WITHOUT_PLATEAU = PlateauCurve(30, plateaus=[(50, 0)])


def test_wrong_clock():
    for clock in ("wait", DataClock, [PATIENT, "2"]):
        with raises(TypeError, "clock = ", "must be a DataClock, ", "or a list of such rules"):
            resume_record(THREE_PLATEAUS, clock=clock)
    with raises(ValueError, "needs a plateau to hold at", "(50, 0)"):
        resume_record(WITHOUT_PLATEAU, clock=[BELOW, PATIENT])
    for clock in (DataClock(16, count=8), BELOW):
        with raises(ValueError, "clock = ", "must be DataClock(8)", "batch plan"):
            resume_record(scaled(), clock=clock)
    optimizer = optimizer_with([0.1, 0.1])
    with raises(ValueError, "the same curve", unchanged=[optimizer]):
        lambda_lr(optimizer, [THREE_PLATEAUS, WITHOUT_PLATEAU], clock=PATIENT)


# Schedulers and followers in mid-run.


def trained(run_class=SchedulerRun, **options):
    """Return a run after five updates."""
    run = run_class(THREE_PLATEAUS, **options)
    run.train(5)
    return run


def test_wrong_count():
    run = trained(clock=DataClock(8))
    with raises(ValueError, "count = -1", at_least(0), unchanged=[run]):
        run.scheduler.step(count=-1)
    for count in (2.0, torch.tensor(True)):
        with raises(TypeError, f"count = {count!r}", AN_INTEGER, unchanged=[run]):
            run.scheduler.step(count=count)
    instead = ["step(count=n)", "scheduler.count = n", "DataClock(8, count=n)"]
    with raises(TypeError, "DataClock(8)", *instead, unchanged=[run]):
        run.scheduler.step()


@pytest.mark.parametrize(
    "metric", ["0.5", True, [0.5], np.ma.masked, torch.ones(1), torch.tensor(1j)]
)
def test_metric_that_is_not_a_real_scalar(metric):
    run = trained(clock=[PATIENT, BELOW])  # one of which holds the curve
    with raises(TypeError, "metric", A_REAL_SCALAR, unchanged=[run]):
        run.scheduler.step(metric=metric)


def test_wrong_step_under_a_hold_rule():
    run = trained(clock=[PATIENT, BELOW])
    with raises(TypeError, "step() needs the metric of the update", unchanged=[run]):
        run.scheduler.step()
    with raises(
        TypeError, "step(8): call step() after each update", "step(metric=loss)", unchanged=[run]
    ):
        run.scheduler.step(8)


def test_count_or_metric_for_a_clock_of_updates():
    run = trained()
    with raises(TypeError, "count = 8", "clock=DataClock(unit)", unchanged=[run]):
        run.scheduler.step(count=8)
    with raises(TypeError, "step(metric=0.5)", "clock=rule", unchanged=[run]):
        run.scheduler.step(metric=0.5)


def test_wrong_step_of_a_follower():
    run = trained(FollowerRun)
    with raises(ValueError, "curve_step = -1", at_least(0), unchanged=[run]):
        run.scheduler.step(-1)
    run = FollowerRun(scaled())
    with raises(TypeError, "units of 8", "step(scheduler.curve_step)", unchanged=[run]):
        run.scheduler.step()
