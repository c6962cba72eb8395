"""Errors of clocks and hold rules, and of the counts and metrics that a scheduler gets."""

import copy

import numpy as np
import pytest
import torch
from support.clocks.holds import PATIENT, THREE_PLATEAUS
from support.curves.descriptions import scaled
from support.curves.requirements import A_REAL_SCALAR, AN_INTEGER, at_least, in_range
from support.curves.strategies import MAX_STEP
from support.raises import raises
from support.schedulers.runs import optimizer_with
from torch import nn
from torch.optim import SGD

from plateau_jax import DataClock, HoldBelow, HoldUntilFlat, PlateauCurve, resume_record
from torch_bridge import follow, lambda_lr

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


@pytest.mark.parametrize("clock", ["wait", DataClock, [PATIENT, "2"]], ids=str)
@raises(TypeError, "clock = ", "must be a DataClock, ", "or a list of such rules")
def test_neither_a_clock_nor_rules(clock):
    resume_record(THREE_PLATEAUS, clock=clock)


@raises(ValueError, "clock is an empty list: leave it out")
def test_no_rules():
    resume_record(THREE_PLATEAUS, clock=[])


@raises(ValueError, "needs a plateau to hold at", "(50, 0)")
def test_curve_without_a_plateau_to_hold_at():
    resume_record(WITHOUT_PLATEAU, clock=[BELOW, PATIENT])


@pytest.mark.parametrize("clock", [DataClock(16, count=8), BELOW], ids=str)
@raises(ValueError, "clock = ", "must be DataClock(8)", "batch plan")
def test_clock_that_a_batch_plan_excludes(clock):
    resume_record(scaled(), clock=clock)


@raises(ValueError, "the same curve")
def test_hold_of_two_curves():
    lambda_lr(optimizer_with([0.1, 0.1]), [THREE_PLATEAUS, WITHOUT_PLATEAU], clock=PATIENT)


# Schedulers and followers in mid-run.


@pytest.fixture
def optimizer():
    return SGD([nn.Parameter(torch.ones(2))], lr=0.5, weight_decay=0.5)


def in_mid_run(driver, *metric, **count):
    """Yield a scheduler or follower after five updates; its optimizer must stay as it is."""
    for _ in range(5):
        driver.optimizer.step()
        driver.step(*metric, **count)
    state = copy.deepcopy(driver.optimizer.state_dict())
    yield driver
    assert driver.optimizer.state_dict() == state


@pytest.fixture
def plain(optimizer):
    """A scheduler that counts updates."""
    yield from in_mid_run(lambda_lr(optimizer, THREE_PLATEAUS))


@pytest.fixture
def counted(optimizer):
    """A scheduler that counts samples."""
    yield from in_mid_run(lambda_lr(optimizer, THREE_PLATEAUS, clock=DataClock(8)), count=20)


@pytest.fixture
def held(optimizer):
    """A scheduler that two rules may hold, of which one does."""
    rules = [PATIENT, BELOW]
    yield from in_mid_run(lambda_lr(optimizer, THREE_PLATEAUS, clock=rules), 0.5)


@pytest.fixture
def follower(optimizer):
    yield from in_mid_run(follow(optimizer, "weight_decay", THREE_PLATEAUS))


@pytest.fixture
def follower_of_a_batch_plan(optimizer):
    return follow(optimizer, "weight_decay", scaled())


# Counts.


@raises(ValueError, "count = -1", at_least(0))
def test_negative_count(counted):
    counted.step(count=-1)


@raises(ValueError, "would have consumed ", str(2**62))
def test_sum_of_counts_beyond_its_limit(counted):
    counted.step(count=2**62 - counted.consumed + 1)


@pytest.mark.parametrize("count", [2.0, torch.tensor(True)])
@raises(TypeError, "count = {count}", AN_INTEGER)
def test_count_that_is_not_an_integer(counted, count):
    counted.step(count=count)


@raises(TypeError, "DataClock(8)", "step(count=n)", "scheduler.count = n", "DataClock(8, count=n)")
def test_step_without_a_count(counted):
    counted.step()


@raises(TypeError, "count = 8", "clock=DataClock(unit)")
def test_count_for_a_clock_of_updates(plain):
    plain.step(count=8)


# Metrics.


@raises(TypeError, "step() needs the metric of the update")
def test_step_without_a_metric(held):
    held.step()


@raises(TypeError, f"metric = 8 {A_REAL_SCALAR}", "step(metric=loss)")
def test_integer_metric(held):
    held.step(8)


@pytest.mark.parametrize(
    "metric", ["0.5", True, [0.5], 10**400, np.zeros((), "i4,i4"), torch.ones(1), torch.tensor(1j)]
)
@raises(TypeError, "metric", A_REAL_SCALAR)
def test_metric_that_is_not_a_real_scalar(held, metric):
    held.step(metric)


@raises(TypeError, "step(metric=0.5)", "clock=rule")
def test_metric_for_a_clock_of_updates(plain):
    plain.step(metric=0.5)


# Steps of a follower.


@raises(ValueError, "curve_step = -1", at_least(0))
def test_negative_curve_step(follower):
    follower.step(-1)


@raises(TypeError, "units of 8", "step(scheduler.curve_step)")
def test_step_under_a_batch_plan(follower_of_a_batch_plan):
    follower_of_a_batch_plan.step()
