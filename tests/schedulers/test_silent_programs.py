"""Right programs, which `torch_bridge.advice` must not warn about: a warning is an error.

`test_advice` has the wrong ones.
"""

from functools import partial

import pytest
import torch
from schedulers.builders import (
    BUILDERS,
    CURVE,
    FLOOR,
    LONG,
    MOMENTUM,
    every_builder,
    states_after_20_updates,
)
from support.schedulers.runs import advance, lrs_of, new_parameter, optimizer_with, repeat
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR

from plateau_jax import DataClock, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr

bfloat16_tensor = partial(torch.tensor, dtype=torch.bfloat16)

pytestmark = [
    # For scheduler steps without updates, as in torch.
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
]


@pytest.fixture(params=["SGD", "AdamW"])
def optimizer(request):
    """Plain SGD, and AdamW with learning rates in tensors."""
    if request.param == "SGD":
        return optimizer_with([0.1, 0.1])
    return optimizer_with([torch.tensor(0.1), torch.tensor(0.1)], AdamW)


# Scheduler steps that fit the updates.


@every_builder
def test_step_after_every_update(build, optimizer):
    scheduler = build(optimizer, CURVE)
    advance(optimizer, scheduler, 105)


def test_groups_that_are_reordered_before_every_second_update(optimizer):
    scheduler = lambda_lr(optimizer, LONG)
    for _ in range(100):
        advance(optimizer, scheduler)
        optimizer.param_groups.reverse()
        advance(optimizer, scheduler)


def test_averaging_of_weights(optimizer):
    averaging = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    scheduler = lambda_lr(optimizer, CURVE)
    for _ in range(4):
        advance(optimizer, scheduler, 20)
        repeat(optimizer, averaging, times=1, updates=20, steps=1)


def test_skipped_updates_of_fp16(optimizer):
    scheduler = lambda_lr(optimizer, CURVE)
    for update in range(100):
        if update not in (10, 12, 30, 31, 32, 50):
            optimizer.step()
        scheduler.step()


def test_iterations_of_ppo(optimizer):
    """Each makes many updates, and one step of the curve: the updates outnumber its steps."""
    scheduler = lambda_lr(optimizer, PlateauCurve(100))
    repeat(optimizer, scheduler, times=20, updates=320, steps=1)


def test_plateau_without_steps(optimizer):
    lambda_lr(optimizer, PlateauCurve(10_000, plateaus=[(0, 50)]))
    for _ in range(1350):
        optimizer.step()


def test_held_updates(optimizer):
    """They step the scheduler, and the curve stays where it is."""
    curve = StagedCurve([(10,), (1000, 0.0, "linear")], start=1.0)
    scheduler = lambda_lr(optimizer, curve, clock=HoldBelow(1.0, 1000))
    for _ in range(200):
        optimizer.step()
        scheduler.step(0.5)
    assert scheduler.curve_step == 0


def test_unit_that_lasts(optimizer):
    scheduler = lambda_lr(optimizer, LONG, clock=DataClock(10**6, count=1))
    repeat(optimizer, scheduler, times=9, updates=60, steps=1)


def test_curve_that_ends_at_its_highest_level(optimizer):
    scheduler = lambda_lr(optimizer, [FLOOR, StagedCurve([(5, 1.0)])])
    advance(optimizer, scheduler, 1350)


class SharpnessAware(Optimizer):
    """Like SAM: programs call two steps around a second backward pass, and torch sees no `step`."""

    def __init__(self, base):
        super().__init__(base.param_groups, base.defaults)
        self.base_optimizer = base
        self.param_groups = base.param_groups

    def first_step(self): ...

    def second_step(self):
        self.base_optimizer.step()


def test_optimizer_of_two_steps(optimizer):
    wrapper = SharpnessAware(optimizer)
    scheduler = lambda_lr(wrapper, CURVE)
    for step in range(25):
        wrapper.first_step()
        wrapper.second_step()
        assert lrs_of(optimizer)[0] == CURVE.learning_rate(step, 0.1)
        scheduler.step()


# Several schedulers, and groups that change.


def test_phases(optimizer):
    warmup = PlateauCurve(10_000, warmup_steps=100)
    to_a_plateau = StagedCurve([(5, 1.0), (9000,)])
    for curve in (LONG, warmup, to_a_plateau):
        scheduler = lambda_lr(optimizer, curve)
        advance(optimizer, scheduler, 700)


def test_reduce_on_plateau_takes_over(optimizer):
    warmup = lambda_lr(optimizer, StagedCurve([(20, 1.0)]))
    reduce_on_plateau = ReduceLROnPlateau(optimizer)
    advance(optimizer, warmup, 20)
    for _ in range(1100):
        optimizer.step()
        reduce_on_plateau.step(0.5)


def test_group_that_is_added(optimizer):
    scheduler = lambda_lr(optimizer, LONG)
    advance(optimizer, scheduler, 50)
    optimizer.add_param_group({"params": [new_parameter()], "lr": 1e-3})
    advance(optimizer, scheduler, 600)
    cosine = CosineAnnealingLR(optimizer, T_max=2000)
    advance(optimizer, cosine, 600)


def test_updates_before_the_scheduler(optimizer):
    for _ in range(30):
        optimizer.step()
    scheduler = lambda_lr(optimizer, LONG)
    advance(optimizer, scheduler, 60)


@every_builder
def test_scheduler_that_is_not_used(build, optimizer):
    """It was built first, and another one is stepped."""
    unused = build(optimizer, CURVE)
    scheduler = build(optimizer, LONG)
    advance(optimizer, scheduler, 400)
    assert unused.get_last_lr()[0] == pytest.approx(0.1 * CURVE(0))


def test_hook_is_gone_after_its_last_check():
    optimizer = optimizer_with([0.1, 0.1])
    scheduler = lambda_lr(optimizer, LONG)
    advance(optimizer, scheduler, 168)
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    advance(optimizer, scheduler)
    assert not optimizer._optimizer_step_pre_hooks


# States.


@pytest.mark.parametrize("make_value", [float, torch.tensor, bfloat16_tensor])
def test_last_epoch_of_a_loaded_optimizer(make_value):
    falling = StagedCurve([(100, 0.0, "linear")], start=1.0)
    earlier = optimizer_with([make_value(0.1)], AdamW)
    advance(earlier, lambda_lr(earlier, falling), 20)
    optimizer = optimizer_with([make_value(0.1)], AdamW)
    optimizer.load_state_dict(earlier.state_dict())
    scheduler = lambda_lr(optimizer, falling, last_epoch=19)
    advance(optimizer, scheduler, 60)


@pytest.mark.parametrize("optimizer_class", [SGD, AdamW])
def test_scheduler_that_is_loaded_after_an_update(optimizer_class):
    optimizer_state, scheduler_state = states_after_20_updates(optimizer_class)
    optimizer = optimizer_with([0.01, 0.01], optimizer_class)
    scheduler = lambda_lr(optimizer, LONG)
    optimizer.load_state_dict(optimizer_state)
    optimizer.step()
    scheduler.load_state_dict(scheduler_state)
    advance(optimizer, scheduler, 60)


RESUMES = [
    *((build, AdamW) for build in BUILDERS),
    (lambda_lr, Adagrad),
    (lambda_lr, MOMENTUM),
]


@pytest.mark.parametrize(("build", "optimizer_class"), RESUMES)
@pytest.mark.parametrize("updates", [0, 1, 60])
@pytest.mark.parametrize("optimizer_loads", ["first", "second", "last"])
def test_run_that_loads_its_states_is_silent(build, optimizer_class, updates, optimizer_loads):
    earlier = optimizer_with([0.1, 0.1], optimizer_class)
    earlier_scheduler = build(earlier, CURVE)
    advance(earlier, earlier_scheduler, updates)
    optimizer = optimizer_with([0.1, 0.1], optimizer_class)
    if optimizer_loads == "first":
        optimizer.load_state_dict(earlier.state_dict())
    scheduler = build(optimizer, CURVE)
    if optimizer_loads == "second":
        optimizer.load_state_dict(earlier.state_dict())
    scheduler.load_state_dict(earlier_scheduler.state_dict())
    if optimizer_loads == "last":
        optimizer.load_state_dict(earlier.state_dict())
    advance(optimizer, scheduler, 60)
