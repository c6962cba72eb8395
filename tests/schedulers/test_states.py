"""`last_epoch`, states and the printed form of schedulers and followers.

`clocks/test_definition` resumes them under generated curves, clocks and values.
"""

import copy
import io
import pickle
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from schedulers.builders import CURVE
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, descriptions
from support.curves.strategies import magnitudes
from support.raises import raises
from support.runs.definition import RunOracle
from support.runs.scheduler_run import FollowerRun, SchedulerRun
from support.schedulers.runs import (
    advance,
    learning_rates,
    lrs_of,
    new_parameter,
    optimizer_with,
)
from support.training.steps import through_file
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    SequentialLR,
)

from plateau_jax import CurveWarning, DataClock, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.usefixtures("short_windows")

LINEAR = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")

last_epochs = st.one_of(magnitudes(-1, 2**31 - 3), st.sampled_from((np.int32(-1), 2**63 - 5)))


@given(curve=descriptions(range(4)).map(build), last_epoch=last_epochs)
def test_run_begins_after_last_epoch(curve, last_epoch):
    first = int(last_epoch) + 1
    with ignore_curve_warnings():  # it may lie past the end
        run = SchedulerRun(curve, last_epoch=last_epoch)
    oracle = RunOracle(run)
    assert run.values() == oracle.values_at(first)
    run.train(2)
    assert (run.scheduler.curve_step, run.scheduler.last_epoch) == (first + 2, first + 2)
    assert run.values() == oracle.values_at(first + 2)
    optimizer_state = run.save()["optimizer"]
    with ignore_curve_warnings():
        run.start(optimizer_state, last_epoch=first + 1)
    assert run.values() == oracle.values_at(first + 2)


# States.


def test_trainer_loads_by_builders_strict():
    saved = SchedulerRun(CURVE)
    saved.train(40)
    state = saved.save()
    run = SchedulerRun(LINEAR, strict=False)
    run.optimizer, run.scheduler = copy.deepcopy((run.optimizer, run.scheduler))
    with raises(ValueError, "differ from", unchanged=[run]):
        run.load_scheduler(state, strict=True)
    with pytest.warns(CurveWarning, match=r"differ from step 0 on\. .* continues at step 40"):
        run.load_scheduler(state)  # as a trainer does
    assert run.values() == learning_rates(run.peaks, LINEAR, 40)


def test_state_and_pickle_are_small_and_share_nothing():
    run = SchedulerRun(CURVE)
    run.train(200)
    file = io.BytesIO()
    state = run.scheduler.state_dict()
    torch.save(state, file)
    assert file.tell() < 10_000
    assert len(pickle.dumps(run.scheduler)) < 10_000
    before = copy.deepcopy(state)
    run.scheduler.load_state_dict(state)
    run.train(1)
    assert state == before


@pytest.mark.parametrize("run_class", [SchedulerRun, FollowerRun])
def test_loaded_value_may_be_smaller_than_any_base(run_class):
    run = run_class(StagedCurve([(1, 1.0), (10, 1e-36, "exponential")]), [1e-3])
    run.train(11)
    values = run.scheduler.get_last_lr()
    run.restart_on_a_loaded_optimizer()
    assert run.scheduler.get_last_lr() == values


def inverse_decay(optimizer):
    return LambdaLR(optimizer, lambda step: 1 / (1 + step))


def warmup_then_cosine(optimizer):
    warmup = LinearLR(optimizer, 0.1, total_iters=5)
    decay = CosineAnnealingLR(optimizer, 50)
    return SequentialLR(optimizer, [warmup, decay], [5])


def chain(optimizer):
    return ChainedScheduler([warmup_then_cosine(optimizer)])


@pytest.mark.parametrize("optimizer_first", [False, True])
@pytest.mark.parametrize("build_without_a_curve", [inverse_decay, warmup_then_cosine, chain])
def test_state_without_a_curve_continues_at_its_step(build_without_a_curve, optimizer_first):
    old_optimizer = optimizer_with([0.5, 0.25])
    old_scheduler = build_without_a_curve(old_optimizer)
    advance(old_optimizer, old_scheduler, 12)
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE)
    if optimizer_first:
        optimizer.load_state_dict(through_file(old_optimizer.state_dict()))
    with pytest.warns(CurveWarning, match="without a curve: this curve continues at step 12"):
        scheduler.load_state_dict(copy.deepcopy(old_scheduler.state_dict()))
    for step in (12, 13):
        assert lrs_of(optimizer) == learning_rates([0.5, 0.25], CURVE, step)
        advance(optimizer, scheduler)


def test_step_in_a_state_may_be_edited():
    run = SchedulerRun(CURVE)
    run.train(12)
    state = run.scheduler.state_dict()
    state["last_epoch"] += 7
    run.scheduler.load_state_dict(state)
    assert run.values() == learning_rates(run.peaks, CURVE, 19)


def test_state_has_the_entries_of_torch():
    """Programs log them."""
    optimizers = [optimizer_with([0.5, 0.25]) for _ in range(2)]
    schedulers = [lambda_lr(optimizers[0], CURVE), LambdaLR(optimizers[1], CURVE)]
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        advance(optimizer, scheduler, 12)
    state, expected = (scheduler.state_dict() for scheduler in schedulers)
    for entry in ("last_epoch", "_step_count", "base_lrs", "_last_lr"):
        assert state[entry] == pytest.approx(expected[entry], rel=1e-6)
    assert all(record["peak_value"] is None for record in state["records"])


@given(
    edits=st.sets(st.sampled_from(["base_lrs", "initial_lr", "lr"])),
    optimizer_first=st.booleans(),
    make_base=st.sampled_from([float, torch.tensor, np.float32]),
    updates=st.integers(1, 40),
)
def test_peak_in_a_state_may_be_edited(edits, optimizer_first, make_base, updates):
    """That in the scheduler's state counts, whatever the groups contain, as in torch."""

    def start():
        optimizer = optimizer_with([0.5, 0.25])
        return optimizer, lambda_lr(optimizer, CURVE)

    def load():
        optimizer, scheduler = start()
        parts = [optimizer, scheduler] if optimizer_first else [scheduler, optimizer]
        for part in parts:
            part.load_state_dict(states[0] if part is optimizer else states[1])
        return optimizer, scheduler

    optimizer, scheduler = start()
    advance(optimizer, scheduler, updates)
    states = copy.deepcopy([optimizer.state_dict(), scheduler.state_dict()])
    for group in states[0]["param_groups"]:
        for name in edits - {"base_lrs"}:
            group[name] *= 0.125
    peaks = [0.5, 0.25]
    if "base_lrs" in edits:
        peaks = [0.0625, 0.03125]
        states[1]["base_lrs"] = list(map(make_base, peaks))
        with pytest.warns(CurveWarning, match=r"different peak: group 0 .* now 0\.5"):
            optimizer, scheduler = load()
    else:
        optimizer, scheduler = load()
    assert scheduler.base_lrs == peaks
    optimizer.step()
    scheduler.step()
    assert lrs_of(optimizer) == learning_rates(peaks, CURVE, updates + 1)


@given(
    changes=st.lists(st.sampled_from(["add", "freeze", "step", "update"]), max_size=6),
    bases_change=st.booleans(),
    optimizer_first=st.booleans(),
    peak=st.sampled_from([0.5, 0.25, 0.75]),
)
def test_resume_between_any_two_lines_keeps_values(changes, bases_change, optimizer_first, peak):
    """What the next update uses, before `step()` has given the groups the values of the curve."""
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, LINEAR)
    for change in ["update", *changes]:
        if change == "add":
            optimizer.add_param_group({"params": [new_parameter()], "lr": peak})
        elif change == "freeze":
            optimizer.param_groups[0]["lr"] = 0.0
        else:
            if change == "update":
                optimizer.step()
            scheduler.step()
    if bases_change and len(scheduler.base_lrs) == len(optimizer.param_groups):
        scheduler.base_lrs[0] *= 0.5
    resumed = optimizer_with([0.5, 0.25, *[peak] * (len(optimizer.param_groups) - 2)])
    again = lambda_lr(resumed, LINEAR)
    parts = [(resumed, optimizer.state_dict()), (again, through_file(scheduler.state_dict()))]
    if not optimizer_first:
        parts.reverse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)  # written bases
        for part, state in parts:
            part.load_state_dict(state)
    assert lrs_of(resumed) == lrs_of(optimizer)
    for run in ((optimizer, scheduler), (resumed, again)):
        advance(*run, 2)
    assert lrs_of(resumed) == lrs_of(optimizer)


def test_new_scheduler_takes_over_from_an_old_one():
    """On the same optimizer, whose groups the new one has overwritten when it was built."""
    run = SchedulerRun(LINEAR)
    run.train(70)
    new = run.new_scheduler()
    new.load_state_dict(run.scheduler.state_dict())
    assert run.values() == learning_rates(run.peaks, LINEAR, 70)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_in_the_state_of_torchs_scheduler(dtype):
    old = inverse_decay(optimizer_with([torch.tensor(0.5, dtype=dtype)]))
    scheduler = lambda_lr(optimizer_with([0.5]), CURVE)
    with pytest.warns(CurveWarning, match="without a curve"):
        scheduler.load_state_dict(old.state_dict())
    assert scheduler.base_lrs == [0.5]


def test_state_of_a_follower_with_a_group_that_has_no_curve():
    """The error comes at the next step; a state may be saved before it."""

    def build():
        optimizer = optimizer_with([0.5, 0.25])
        optimizer.param_groups[0]["momentum"] = 0.9
        return optimizer, follow(optimizer, "momentum", [CURVE, CURVE])

    optimizer, scheduler = build()
    optimizer.add_param_group({"params": [new_parameter()]})
    _, resumed = build()
    resumed.load_state_dict(scheduler.state_dict())
    assert resumed.state_dict() == scheduler.state_dict()


# The printed form.


@pytest.mark.parametrize("make_value", [float, torch.tensor])
def test_print_shows_curve_clock_and_values(make_value):
    sgd = partial(SGD, momentum=0.5)
    run = SchedulerRun(CURVE, [0.5], DataClock(4), make_value=make_value, optimizer_class=sgd)
    follower = follow(run.optimizer, "momentum", CURVE)
    run.update(count=20)
    follower.step(run.scheduler.curve_step)
    assert str(run.scheduler) == f"lambda_lr({CURVE}, curve_step=5, unit=4, lr=0.25)"
    assert str(follower) == f"follow({CURVE}, curve_step=5, momentum=0.25)"
