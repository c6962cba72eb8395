"""Programs that save, copy and move schedulers in ways of their own."""

import copy
from typing import Any

import pytest
import torch
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, SequentialLR

from plateau_jax import CurveWarning, HoldUntilFlat, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter")  # which SequentialLR passes

FALLING = StagedCurve([(40, 0.2, "linear")], start=1.0)
CONSTANT = StagedCurve([(40, 1.0)], start=1.0)


def test_attributes_as_a_state_carry_no_optimizer() -> None:
    """As torch's `LRScheduler.state_dict` takes them from `__dict__`."""
    saved_optimizer = optimizer_with([0.5])
    saved = lambda_lr(saved_optimizer, FALLING)
    advance(saved_optimizer, saved, 10)
    state = {name: value for name, value in vars(saved).items() if name != "optimizer"}
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    vars(scheduler).update(copy.deepcopy(state))
    for step in (11, 12):
        advance(optimizer, scheduler)
        assert lrs_of(optimizer) == [learning_rate(0.5, FALLING, step)]


@pytest.mark.parametrize("optimizer_first", [False, True])
def test_constant_group_does_not_put_a_finished_scheduler_in_charge(optimizer_first: bool) -> None:
    """Its learning rate is the same before and after the milestone."""

    def start() -> tuple[Any, Any]:
        optimizer = optimizer_with([0.5, 0.25])
        first = lambda_lr(optimizer, [CONSTANT, FALLING])
        second = LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.125])
        return optimizer, SequentialLR(optimizer, [first, second], [10])

    optimizer, sequence = start()
    advance(optimizer, sequence, 15)
    states = copy.deepcopy([optimizer.state_dict(), sequence.state_dict()])
    resumed, again = start()
    if optimizer_first:
        resumed.load_state_dict(states[0])
        again.load_state_dict(states[1])
    else:
        again.load_state_dict(states[1])
        resumed.load_state_dict(states[0])
    assert lrs_of(resumed) == lrs_of(optimizer) == [0.5, 0.03125]


def test_rollback_with_a_copy_of_the_scheduler() -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 12)
    kept = copy.deepcopy(scheduler)
    state = copy.deepcopy(optimizer.state_dict())
    advance(optimizer, scheduler, 7)
    optimizer.load_state_dict(state)
    kept.optimizer = optimizer
    for step in (12, 13):
        assert lrs_of(optimizer) == [learning_rate(0.5, FALLING, step)]
        advance(optimizer, kept)


def test_copy_shares_no_list() -> None:
    scheduler = lambda_lr(optimizer_with([0.5]), FALLING)
    copied = copy.copy(scheduler)
    copied.base_lrs[0] *= 0.5
    assert scheduler.base_lrs == [0.5]


def test_all_parts_of_a_chain_get_the_new_optimizer() -> None:
    optimizer = optimizer_with([0.5], weight_decay=0.5)
    parts: list[Any] = [lambda_lr(optimizer, FALLING), follow(optimizer, "weight_decay", FALLING)]
    chain = ChainedScheduler(parts, optimizer)
    advance(optimizer, chain, 10)
    (old,) = optimizer.param_groups
    new = optimizer_with([old["lr"]], weight_decay=old["weight_decay"])
    for part in parts:
        part.optimizer = new
    advance(new, chain)
    (group,) = new.param_groups
    assert group["lr"] == group["weight_decay"] == learning_rate(0.5, FALLING, 11)


def test_what_is_not_an_optimizer_is_rejected_before_anything_changes() -> None:
    optimizer = optimizer_with([0.5])
    scheduler: Any = lambda_lr(optimizer, FALLING)
    for wrong in (None, "optimizer", optimizer.param_groups):
        with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer"):
            scheduler.optimizer = wrong
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [learning_rate(0.5, FALLING, 1)]


def test_last_epoch_before_the_held_updates_is_rejected() -> None:
    optimizer = optimizer_with([0.5])
    curve = PlateauCurve(40, plateaus=[(0, 20)])
    scheduler = lambda_lr(optimizer, curve, clock=HoldUntilFlat(5, limit=8))
    for _ in range(30):
        optimizer.step()
        scheduler.step(0.1)
    held = scheduler.last_epoch - scheduler.curve_step
    assert held > 0
    scheduler.last_epoch = held - 1
    with pytest.raises(ValueError, match=f"held the curve for {held} updates: .*load a state"):
        scheduler.step(0.1)


# The warning about an optimizer that was built again.


def parameters() -> list[torch.nn.Parameter]:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return [parameter]


@pytest.mark.parametrize("updates", [0, 3])
def test_rebuilt_optimizer_warns_after_a_resume(updates: int) -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 10)
    scheduler.load_state_dict(scheduler.state_dict())
    advance(optimizer, scheduler, updates)
    rebuilt = SGD(parameters(), lr=0.5)
    with pytest.warns(CurveWarning, match=r"write scheduler\.optimizer = optimizer") as caught:
        advance(rebuilt, scheduler, 100)
    assert len(caught) == 1


def test_two_optimizers_with_schedulers_do_not_warn() -> None:
    """One is trained while the other is frozen, and both schedulers are stepped in each iteration."""
    optimizers = [optimizer_with([0.5]), optimizer_with([0.5])]
    schedulers = [lambda_lr(optimizer, PlateauCurve(1000)) for optimizer in optimizers]
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        advance(optimizer, scheduler)
    for trained in [0] * 30 + [1] * 60 + [0] * 30:
        optimizers[trained].step()
        for scheduler in schedulers:
            scheduler.step()
