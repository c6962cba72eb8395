"""Programs that save, copy and move schedulers in other ways."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from support.wrong import wrong
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, SequentialLR

from plateau_jax import DataClock, HoldUntilFlat, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter")  # which SequentialLR passes

FALLING = StagedCurve([(40, 0.2, "linear")], start=1.0)
CONSTANT = StagedCurve([(40, 1.0)], start=1.0)


def falling_run() -> tuple[Optimizer, lambda_lr]:
    optimizer = optimizer_with([0.5])
    return optimizer, lambda_lr(optimizer, FALLING)


def falling_lr(step: int) -> float:
    return learning_rate(0.5, FALLING, step)


# States and copies.


def test_attributes_as_a_state_carry_no_optimizer() -> None:
    """As torch's `LRScheduler.state_dict` takes them from `__dict__`."""
    saved_optimizer, saved = falling_run()
    advance(saved_optimizer, saved, 10)
    attributes = dict(vars(saved))
    attributes.pop("optimizer", None)
    optimizer, scheduler = falling_run()
    vars(scheduler).update(copy.deepcopy(attributes))
    for step in (11, 12):
        advance(optimizer, scheduler)
        assert lrs_of(optimizer) == [falling_lr(step)]


def sequence_with_a_constant_group() -> tuple[Optimizer, SequentialLR]:
    """The learning rate of the first group is the same before and after the milestone."""
    optimizer = optimizer_with([0.5, 0.25])
    first = lambda_lr(optimizer, [CONSTANT, FALLING])
    second = LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.125])
    return optimizer, SequentialLR(optimizer, [first, second], [10])


@pytest.mark.parametrize("optimizer_first", [False, True])
def test_finished_scheduler_stays_finished(optimizer_first: bool) -> None:
    saved_optimizer, saved = sequence_with_a_constant_group()
    advance(saved_optimizer, saved, 15)
    optimizer_state = copy.deepcopy(saved_optimizer.state_dict())
    state = copy.deepcopy(saved.state_dict())
    optimizer, sequence = sequence_with_a_constant_group()
    if optimizer_first:
        optimizer.load_state_dict(optimizer_state)
    sequence.load_state_dict(state)
    if not optimizer_first:
        optimizer.load_state_dict(optimizer_state)
    assert lrs_of(saved_optimizer) == [0.5, 0.03125]
    assert lrs_of(optimizer) == [0.5, 0.03125]


def test_rollback_with_a_copy_of_the_scheduler() -> None:
    optimizer, scheduler = falling_run()
    advance(optimizer, scheduler, 12)
    saved_scheduler = copy.deepcopy(scheduler)
    saved_state = copy.deepcopy(optimizer.state_dict())
    advance(optimizer, scheduler, 7)
    optimizer.load_state_dict(saved_state)
    saved_scheduler.optimizer = optimizer
    for step in (12, 13):
        assert lrs_of(optimizer) == [falling_lr(step)]
        advance(optimizer, saved_scheduler)


def test_copy_shares_no_list() -> None:
    _, scheduler = falling_run()
    copied = copy.copy(scheduler)
    copied.base_lrs[0] *= 0.5
    assert scheduler.base_lrs == [0.5]


# A different optimizer.


def test_all_parts_of_a_chain_get_the_new_optimizer() -> None:
    optimizer = optimizer_with([0.5], weight_decay=0.5)
    scheduler = lambda_lr(optimizer, FALLING)
    follower: Any = follow(optimizer, "weight_decay", FALLING)
    chain = ChainedScheduler([scheduler, follower], optimizer)
    advance(optimizer, chain, 10)
    (old_group,) = optimizer.param_groups
    weight_decay = old_group["weight_decay"]
    new = optimizer_with([old_group["lr"]], weight_decay=weight_decay)
    scheduler.optimizer = new
    follower.optimizer = new
    advance(new, chain)
    (group,) = new.param_groups
    assert group["lr"] == falling_lr(11)
    assert group["weight_decay"] == falling_lr(11)


@pytest.fixture
def scheduler() -> Iterator[lambda_lr]:
    """A scheduler, which must still follow the curve when the test ends."""
    optimizer, scheduler = falling_run()
    yield scheduler
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [falling_lr(1)]


@pytest.mark.parametrize("not_an_optimizer", [None, "optimizer", [{"params": []}]])
@wrong(TypeError, "must be a torch.optim.Optimizer")
def test_what_is_not_an_optimizer_is_rejected(scheduler: Any, not_an_optimizer: Any) -> None:
    scheduler.optimizer = not_an_optimizer


# The step.


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
    message = f"held the curve for {held} updates: .*load a state"
    with pytest.raises(ValueError, match=message):
        scheduler.step(0.1)


# Schedulers that count samples.


@pytest.mark.parametrize("last_epoch", [0, 4, 6, 100])
def test_last_epoch_under_a_data_clock_is_an_error(last_epoch: int) -> None:
    """It would move nothing. A state does, and so does a scheduler that is built there."""
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING, clock=DataClock(8, count=4))
    advance(optimizer, scheduler, 5)
    before = lrs_of(optimizer)
    state = scheduler.state_dict()
    scheduler.last_epoch = last_epoch
    message = rf"last_epoch = {last_epoch}, .*load_state_dict"
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            scheduler.step()
    assert lrs_of(optimizer) == before
    scheduler.load_state_dict(state)
    advance(optimizer, scheduler, 3)

    new_optimizer = optimizer_with([0.5])
    built_there = lambda_lr(new_optimizer, FALLING, 4, clock=DataClock(8, count=4))
    advance(new_optimizer, built_there, 3)
    assert lrs_of(new_optimizer) == lrs_of(optimizer)


def test_second_turn_in_a_sequence_counts_samples_from_0() -> None:
    optimizer = optimizer_with([0.5])
    falling = lambda_lr(optimizer, FALLING, clock=DataClock(8, count=8))
    constant = LambdaLR(optimizer, lambda step: 1.0)
    sequence = SequentialLR(optimizer, [falling, constant, falling], [3, 5])
    advance(optimizer, sequence, 5)
    for step in range(10):
        assert falling.consumed == 8 * step
        assert lrs_of(optimizer) == [falling_lr(step)]
        advance(optimizer, sequence)


# Schedulers that are stepped without updates of their optimizer.


def test_two_optimizers_with_schedulers_do_not_warn() -> None:
    """One is trained while the other is frozen; both schedulers are stepped in each iteration."""
    optimizers = [optimizer_with([0.5]), optimizer_with([0.5])]
    schedulers = [lambda_lr(optimizer, PlateauCurve(1000)) for optimizer in optimizers]
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        advance(optimizer, scheduler)
    for trained in [0] * 30 + [1] * 60 + [0] * 30:
        optimizers[trained].step()
        for scheduler in schedulers:
            scheduler.step()


def test_updates_of_another_optimizer_do_not_warn() -> None:
    """The scheduler is then stepped without updates, as for a plot."""
    optimizer, scheduler = falling_run()
    advance(optimizer, scheduler)
    unscheduled = optimizer_with([0.5])
    for _ in range(30):
        unscheduled.step()
    scheduler.load_state_dict(scheduler.state_dict())
    for _ in range(30):
        scheduler.step()
