"""What a program may write: each row of the table in `docs/pytorch.md`, as a program.

Its result is right; or an error or a warning says what to write instead, and that works.
"""

import copy
import re

import numpy as np
import pytest
from support.raises import raises
from support.runs.scheduler_run import FollowerRun, SchedulerRun
from support.schedulers.runs import learning_rate, new_parameter, optimizer_with

from plateau_jax import CurveWarning, DataClock, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr

LINE = StagedCurve([(100, 0.0, "linear")], start=1.0)
WARMUP = PlateauCurve(100, warmup_steps=10)
UPDATES = 12
PEAKS = (0.5, 0.25)
RUNS = [SchedulerRun, FollowerRun]
NEW_SCHEDULER = "new.load_state_dict(old.state_dict())"
"""The line that a message gives, to continue under a new scheduler."""


def started(run_class, curve=LINE):
    """Return a run of two groups after some updates; `curve` is one, or one for each group."""
    run = run_class(curve, PEAKS)
    run.train(UPDATES)
    return run


@pytest.fixture(params=RUNS)
def run(request):
    return started(request.param)


def new_group(**options):
    return {"params": [new_parameter()], **options}


def on_line(step, *bases):
    """Return the values of groups with these bases at a step of `LINE`."""
    return [learning_rate(base, LINE, step) for base in bases]


# `last_epoch`.


def test_last_epoch_moves_the_scheduler(run):
    run.scheduler.last_epoch = 29
    run.train(1)
    assert run.values() == on_line(30, 0.5, 0.25)


def test_last_epoch_below_minus_one_counts_as_minus_one(run):
    run.scheduler.last_epoch = -5
    run.scheduler.load_state_dict(run.scheduler.state_dict())
    run.train(1)
    assert run.values() == on_line(0, 0.5, 0.25)


@pytest.mark.parametrize("clock", [DataClock(8, count=4), HoldBelow(-1.0, 1)], ids=str)
@pytest.mark.parametrize("last_epoch", [-1, 13])
def test_last_epoch_under_a_clock_is_an_error(clock, last_epoch):
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, LINE, clock=clock)
    arguments = {"metric": 0.5}
    if isinstance(clock, DataClock):
        arguments = {}
    for _ in range(5):
        optimizer.step()
        scheduler.step(**arguments)
    parts = [f"last_epoch = {last_epoch}, ", "load_state_dict(state)"]
    with raises(ValueError, *parts, unchanged=[scheduler]):
        scheduler.last_epoch = last_epoch


# `base_lrs`.


def test_written_bases_count_from_the_next_step(run):
    run.scheduler.base_lrs[0] *= 0.5
    assert run.values() == on_line(UPDATES, 0.5, 0.25)
    run.train(1)
    assert run.values() == on_line(UPDATES + 1, 0.25, 0.25)
    run.scheduler.base_lrs = np.array(run.scheduler.base_lrs) * 4
    run.train(1)
    assert run.values() == on_line(UPDATES + 2, 1.0, 1.0)


def test_wrong_base_is_an_error(run):
    run.scheduler.base_lrs[1] = -1.0
    with raises(ValueError, "base_lrs[1] = -1.0", unchanged=[run.optimizer]):
        run.scheduler.step()


# Groups that are added.


def test_added_group_follows_from_the_next_step_on(run):
    """Whatever the program reads before; and its value may be written until then, as in torch."""
    run.optimizer.add_param_group(new_group(**{run.key: 0.75}))
    for read in (run.scheduler.get_last_lr, run.scheduler.get_lr, run.scheduler.state_dict):
        read()
    run.groups[2][run.key] = 1.0
    run.optimizer.step()
    assert run.values() == [*on_line(UPDATES, 0.5, 0.25), 1.0]
    run.scheduler.step()
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25, 1.0)


def test_group_added_before_a_step_has_its_value_from_its_first_update_on(run):
    run.optimizer.step()
    run.optimizer.add_param_group(new_group(**{run.key: 0.75}))
    run.scheduler.step()
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25, 0.75)


@pytest.mark.parametrize("base", [0.75, 1.0])
def test_group_is_added_and_its_base_is_appended(run, base):
    """As programs do for a `LambdaLR`; the list is right, not the value in the group."""
    run.optimizer.add_param_group(new_group(**{run.key: 0.75}))
    run.scheduler.base_lrs.append(base)
    run.scheduler.lr_lambdas.append(run.scheduler.lr_lambdas[-1])
    run.train(1)
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25, base)
    run.train(1)
    assert run.values() == on_line(UPDATES + 2, 0.5, 0.25, base)


def test_group_is_added_to_every_list(run):
    run.optimizer.add_param_group(new_group(**{run.key: 0.75}))
    run.scheduler.base_lrs.append(0.75)
    run.scheduler._last_lr.append(0.75)
    run.train(1)
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25, 0.75)
    run.scheduler.state_dict()


def test_error_leaves_an_added_group_unchanged(run):
    run.optimizer.add_param_group(new_group(**{run.key: 0.75}))
    with raises(ValueError, "has length 2; ", " groups is 3", unchanged=[run.optimizer]):
        run.set_peaks([0.5, 0.25])
    with raises(ValueError, "state_dict", unchanged=[run.optimizer]):
        run.scheduler.load_state_dict({})
    run.train(1)
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25, 0.75)


def add_copy_of_a_group(run, value):
    """Add a group with the options of another, but its own value."""
    group = {**run.groups[0], **new_group(**{run.key: value})}
    run.optimizer.add_param_group(group)
    return group


def test_copied_base_besides_a_different_value_warns(run):
    add_copy_of_a_group(run, 0.0078125)
    name, base_key = run.key, f"initial_{run.key}"
    setter = "scheduler.set_peak" if name == "lr" else "follower.set_base_value"
    message = (
        rf"\[2\] has {name} = 0\.0078125, .* {base_key} = 0\.5"
        rf".* del group.* call {re.escape(setter)}\(\[0\.5, 0\.25, 0\.5\]\)"
    )
    with pytest.warns(CurveWarning, match=message) as caught:
        run.train(3)
    assert len(caught) == 1
    assert run.values() == on_line(UPDATES + 3, 0.5, 0.25, 0.5)


def test_copied_base_is_deleted(run):
    group = add_copy_of_a_group(run, 0.0078125)
    del group[f"initial_{run.key}"]
    run.train(1)
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25, 0.0078125)


def test_curve_per_group_has_none_for_a_new_group():
    run = started(SchedulerRun, [LINE, LINE])
    run.optimizer.add_param_group(new_group(lr=0.75))
    with raises(ValueError, "param_groups[2] is new", NEW_SCHEDULER, unchanged=[run.optimizer]):
        run.scheduler.step()
    old = run.scheduler
    run.curve = [LINE, LINE, WARMUP]
    run.scheduler = run.new_scheduler()
    run.scheduler.load_state_dict(old.state_dict())
    run.train(1)
    added = learning_rate(0.75, WARMUP, UPDATES + 1)
    assert run.values() == [*on_line(UPDATES + 1, 0.5, 0.25), added]


# Groups that are removed.


def test_group_is_removed_with_its_base_and_curve(run):
    scheduler = run.scheduler
    for values in (run.groups, scheduler.base_lrs, scheduler.lr_lambdas, scheduler._last_lr):
        del values[0]
    run.train(1)
    assert run.values() == on_line(UPDATES + 1, 0.25)


def test_last_values_written_after_a_group_is_removed_are_ignored(run):
    del run.groups[0]
    run.scheduler._last_lr = run.values()
    run.train(2)
    assert run.values() == on_line(UPDATES + 2, 0.25)


# `lr_lambdas` and `optimizer`.


def constant(step):
    return 1.0


def test_changed_curve_is_an_error(run):
    run.scheduler.lr_lambdas[0] = constant
    parts = [NEW_SCHEDULER, "StagedCurve.through", "LambdaLR"]
    with raises(TypeError, *parts, unchanged=[run.optimizer]):
        run.scheduler.step()


def test_lists_may_be_replaced_by_equal_ones(run):
    run.scheduler.lr_lambdas = tuple(run.scheduler.lr_lambdas)
    run.scheduler._last_lr = [*run.scheduler._last_lr]
    run.train(1)
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25)
    written = [0.125, 0.25]
    run.scheduler._last_lr = written
    assert run.scheduler.get_last_lr() == written


def test_replaced_optimizer_is_an_error(run):
    new = started(type(run))
    old, run.scheduler.optimizer = run.scheduler.optimizer, new.optimizer
    with raises(ValueError, NEW_SCHEDULER, unchanged=[old, new.optimizer]):
        run.scheduler.step()
    run.scheduler.optimizer = old
    run.train(1)
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25)
    new.scheduler.load_state_dict(run.scheduler.state_dict())
    assert new.values() == run.values()


# Values in the groups.


def test_list_of_last_values_is_a_copy(run):
    state = run.scheduler.state_dict()
    run.scheduler.get_last_lr()[0] = 0.75
    run.scheduler.get_last_lr().append(0.75)
    assert run.scheduler.state_dict() == state


def test_value_written_into_a_group_lasts_until_the_next_step(run):
    """As in torch."""
    run.groups[0][run.key] = 0.01
    run.optimizer.step()
    assert run.values()[0] == 0.01
    run.scheduler.step()
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25)


def test_value_written_before_a_second_phase_warns(run):
    run.groups[1][run.key] = 0.07
    run.scheduler = run.new_scheduler()
    name, base_key = run.key, f"initial_{run.key}"
    part, setter = ("scheduler", "set_peak") if name == "lr" else ("follower", "set_base_value")
    message = (
        rf"\[1\] has {name} = 0\.07, .* {base_key} = 0\.25"
        rf".*write del group\[.{base_key}.\] before you build {part} or add the group"
        rf".* call {part}\.{setter}\(\[0\.5, 0\.25\]\)"
        rf"\. To resume a run, call {part}\.load_state_dict\(state\)"
    )
    with pytest.warns(CurveWarning, match=message) as caught:
        run.train(3)
    assert len(caught) == 1
    assert run.values() == on_line(3, 0.5, 0.25)


def test_value_becomes_the_base_of_a_second_phase(run):
    run.groups[1][run.key] = 0.07
    del run.groups[1][f"initial_{run.key}"]
    run.scheduler = run.new_scheduler()
    run.train(3)
    assert run.values() == on_line(3, 0.5, 0.07)


def test_base_is_set_in_a_second_phase(run):
    run.groups[1][run.key] = 0.07
    run.scheduler = run.new_scheduler()
    run.write_peaks([0.5, 0.07])
    run.train(3)
    assert run.values() == on_line(3, 0.5, 0.07)


# A state of the optimizer.


@pytest.mark.parametrize("run_class", RUNS)
@pytest.mark.filterwarnings("ignore:the optimizer was loaded")
def test_loaded_values_last_until_the_next_step(run_class):
    """A scheduler that nobody steps any more never writes."""
    source = started(run_class, WARMUP)
    run = started(run_class)
    run.optimizer.load_state_dict(copy.deepcopy(source.optimizer.state_dict()))
    for read in (run.scheduler.state_dict, run.scheduler.get_last_lr, run.optimizer.step):
        read()
        assert run.values() == source.values()
    run.scheduler.step()
    assert run.values() == on_line(UPDATES + 1, 0.5, 0.25)
