"""Schedules that differ between ranks are not saved. The ranks are threads, and write nothing."""

import copy
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from support.distributed.processes import error_of
from support.distributed.threads import on_ranks
from support.training.models import Net, batches, counting_loss
from support.training.steps import make_step
from torch import nn
from torch.optim import SGD

from plateau_jax import CurveScheduler, HoldUntilFlat, StagedCurve
from torch_bridge import Checkpoints, follow, lambda_lr
from torch_bridge.training.checkpointing import checkpoints, saving
from torch_bridge.training.distributed import processes

# A model that is built on a thread would draw from random numbers that all threads share.
NET = Net()


def step_of(**options):
    return make_step(model=copy.deepcopy(NET), **options)


RULE = HoldUntilFlat(patience=2, every=2, limit=60)
FLAT = StagedCurve([(1, 1.0), (20,), (20, 0.0, "linear")])


def build_scheduler():
    return lambda_lr(SGD([nn.Parameter(torch.ones(2))], lr=0.5), FLAT, clock=RULE)


def step_scheduler(scheduler, metrics):
    for metric in metrics:
        scheduler.optimizer.step()
        scheduler.step(metric)


def saved_on_ranks(make_part, directory, monkeypatch):
    """Return the error of each rank that saves such a part, and the saves that were started."""
    started = []
    done = SimpleNamespace(join=lambda: None, error=None)

    def begin_save(save):
        started.append(save)
        return done

    monkeypatch.setattr(saving, "BackgroundSave", begin_save)
    # Threads of one process wait for each other's saves, but ranks must not.
    monkeypatch.setattr(checkpoints, "_lock", nullcontext())

    def save():
        return error_of(lambda: Checkpoints(directory).save(1, part=make_part()))

    return on_ranks(save, 3), started


def on_last_rank():
    """Return 1 on the last rank, and 0 on the others."""
    return processes.rank() // 2


def by_own_losses():
    """The losses of the last rank fall, so that it still holds the curve."""
    scheduler = build_scheduler()
    losses = [1.0] * 8
    if on_last_rank():
        losses = [1 / (1 + update) for update in range(8)]
    step_scheduler(scheduler, losses)
    return scheduler


def by_own_losses_so_far():
    """No rank has made a decision yet."""
    scheduler = build_scheduler()
    step_scheduler(scheduler, [1.0, 1.0 + on_last_rank()])
    return scheduler


def with_a_peak_of_its_rank():
    scheduler = build_scheduler()
    scheduler.set_peak(0.5 + 0.25 * (on_last_rank()))
    return scheduler


def with_more_steps():
    optimizer = SGD([nn.Parameter(torch.ones(2))], lr=0.5, weight_decay=0.1)
    decay = follow(optimizer, "weight_decay", FLAT)
    for _ in range(3 + on_last_rank()):
        decay.step()
    return decay


def with_more_updates():
    scheduler = CurveScheduler(FLAT, 0.5)
    for _ in range(3 + on_last_rank()):
        scheduler.step()
    return {"schedule": scheduler.state_dict()}


def with_skipped_updates():
    step = step_of(clock=RULE)
    state = step.state_dict()
    state["skipped"] = 4 + on_last_rank()
    step.load_state_dict(state)
    return {"state": step.state_dict()}


@pytest.mark.parametrize(
    ("make_part", "difference"),
    [
        (by_own_losses, "part.offset = -5 on rank 0, and -7 on rank 2"),
        (by_own_losses_so_far, "part.hold.0.total = 1.0 on rank 0, and 2.0 on rank 2"),
        (with_a_peak_of_its_rank, "part.base_lrs.0 = 0.5 on rank 0, and 0.75 on rank 2"),
        (with_more_steps, "part.last_epoch = 3 on rank 0, and 4 on rank 2"),
        (with_more_updates, "part.schedule.updates = 3 on rank 0, and 4 on rank 2"),
        (with_skipped_updates, "part.state.skipped = 4 on rank 0, and 5 on rank 2"),
    ],
)
def test_schedules_that_differ_between_ranks_are_not_saved(
    tmp_path, monkeypatch, make_part, difference
):
    errors, started = saved_on_ranks(make_part, tmp_path, monkeypatch)
    assert errors[0].startswith(f"ValueError: {difference}: every rank must")
    assert errors == errors[:1] * 3
    assert not started


def scheduler_with_nan():
    scheduler = build_scheduler()
    step_scheduler(scheduler, [1.0, 0.5, math.nan])
    return scheduler


def step_with_a_carry_of_its_rank():
    carry = torch.full((2,), float(processes.rank()))
    step = step_of(loss_fn=counting_loss, carry=carry, clock=RULE)
    for batch in batches(3, seed=processes.rank()):
        step(batch)
    return step


@pytest.mark.parametrize("make_part", [scheduler_with_nan, step_with_a_carry_of_its_rank])
def test_equal_schedules_are_saved(tmp_path, monkeypatch, make_part):
    errors, started = saved_on_ranks(make_part, tmp_path, monkeypatch)
    assert errors == [""] * 3
    assert len(started) == 3
