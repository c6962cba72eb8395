"""The scheduler for loops without JAX or torch; `tests/clocks` compares it with its definition."""

import copy
import pickle
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from support.curves.requirements import at_least
from support.docs.pages import assert_printed, program_named
from support.raises import raises

from plateau_jax import CurveScheduler, DataClock, PlateauCurve, StagedCurve
from plateau_jax.runs.schedules import Schedules

CURVE = PlateauCurve(200, warmup_steps=10, plateaus=[(0, 60)])


def weights_of(program):
    names = {}
    exec(program, names)
    return names["weights"]


def test_stopped_program_ends_with_the_same_weights(tmp_path, capsys):
    program = program_named("Any framework: count samples, save and resume").code
    stopping = program.replace(
        "    scheduler.step(count=size)\n",
        "    scheduler.step(count=size)\n    if scheduler.updates == 50:\n        raise KeyError\n",
    )
    with chdir(tmp_path):
        uninterrupted = weights_of(program)
        assert_printed(program, capsys.readouterr().out)
        Path("saved_numpy.json").unlink()
        with pytest.raises(KeyError):
            weights_of(stopping)
        assert np.array_equal(weights_of(program), uninterrupted)
        assert_printed(program, capsys.readouterr().out)


@pytest.mark.parametrize("clock", [None, DataClock(64, count=100)], ids=str)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copy_continues_alone(copied, clock):
    scheduler = CurveScheduler(CURVE, 0.3, clock=clock)
    for _ in range(20):
        scheduler.step()
    other = pickle.loads(pickle.dumps(copied(scheduler)))
    before = scheduler.state_dict()
    other.step()
    assert scheduler.state_dict() == before
    scheduler.step()
    assert (other.state_dict(), other.lr) == (scheduler.state_dict(), scheduler.lr)


def test_wrong_peak_or_state():
    with raises(ValueError, "peak_value = -0.1"):
        CurveScheduler(CURVE, -0.1)
    scheduler = CurveScheduler(CURVE, 0.3)
    state = scheduler.state_dict()
    with raises(ValueError, "updates = -1", at_least(0), unchanged=[scheduler]):
        scheduler.load_state_dict(state | {"updates": -1})
    for number in (0, 2):
        message = f"state_dict was saved with {number} parameter groups, and there are 1"
        with raises(ValueError, message, unchanged=[scheduler]):
            scheduler.load_state_dict(state | {"records": state["records"] * number})


@raises(ValueError, "it was saved with a peak of 0.3, now 0.2", "strict=False to load_state_dict")
def test_update_that_consumed_nothing_has_used_the_peak():
    clock = DataClock(64)
    scheduler = CurveScheduler(CURVE, 0.3, clock=clock)
    scheduler.step(count=0)
    CurveScheduler(CURVE, 0.2, clock=clock).load_state_dict(scheduler.state_dict())


@raises(ValueError, "it was saved with start=0.5, now 0.25", "differ from step 0 on")
def test_update_that_consumed_nothing_has_used_step_0():
    clock = DataClock(64)
    scheduler = CurveScheduler(StagedCurve([(10, 1.0)], start=0.5), 0.3, clock=clock)
    scheduler.step(count=0)
    resumed = CurveScheduler(StagedCurve([(10, 1.0)], start=0.25), 0.3, clock=clock)
    resumed.load_state_dict(scheduler.state_dict())


def test_state_of_no_update_has_used_no_peak():
    scheduler = CurveScheduler(CURVE, 0.2)
    scheduler.load_state_dict(CurveScheduler(CURVE, 0.3).state_dict())
    assert scheduler.lr == CurveScheduler(CURVE, 0.2).lr


class CountedCurve:
    """A curve that counts the steps at which it is evaluated."""

    def __init__(self):
        self.evaluated = []

    def __call__(self, steps):
        self.evaluated.append(len(steps))
        return CURVE(steps)


@pytest.mark.parametrize("leap", [1, 2, 50])
def test_near_steps_are_computed_together(leap):
    curve = CountedCurve()
    schedules = Schedules([curve], [1.0])
    for step in range(0, 10_000, leap):
        assert schedules.values_at(step) == [CURVE(step)]
    assert len(curve.evaluated) > 1
    assert min(curve.evaluated) > 1000


def test_far_steps_are_computed_alone():
    curve = CountedCurve()
    schedules = Schedules([curve], [1.0])
    schedules.values_at(0)
    for step in range(10**6, 10**7, 10**6):
        assert schedules.values_at(step) == [CURVE(step)]
    assert curve.evaluated[1:] == [1] * 9
