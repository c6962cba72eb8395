"""Schedulers next to other code: groups that change, factors, wrappers, derived classes."""

import copy
from functools import partial

import pytest
import torch
from schedulers.builders import CURVE
from support.raises import raises
from support.schedulers.runs import (
    advance,
    learning_rate,
    learning_rates,
    lrs_of,
    new_parameter,
    optimizer_with,
)
from support.training.steps import through_file
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import ConstantLR, SequentialLR

from plateau_jax import CurveWarning, PlateauCurve
from torch_bridge import follow, lambda_lr

LINEAR = PlateauCurve(200, decay_shape="linear")


# Hooks of the program, which torch calls in turn with that of the advice.


def move(scheduler):
    scheduler.last_epoch = 5


def load(scheduler):
    scheduler.load_state_dict(scheduler.state_dict())


def raise_peak(scheduler):
    scheduler.set_peak(0.75)


@pytest.mark.parametrize("act", [lambda_lr.step, load, move, raise_peak])
@pytest.mark.parametrize("update", [0, 3, 168, 169, 170, 250])
def test_hooks_of_the_program_may_move_the_scheduler(act, update):
    """Before the last check of the advice, at it, and after it."""
    optimizer = optimizer_with([0.5])
    schedulers = []
    updates = []

    def hook(*_):
        updates.append(None)
        if len(updates) == update + 1:
            act(schedulers[0])

    curve = PlateauCurve(1_000)
    optimizer.register_step_pre_hook(hook)
    schedulers.append(lambda_lr(optimizer, curve))
    advance(optimizer, schedulers[0], 300)
    peak = 0.75 if act is raise_peak else 0.5
    assert lrs_of(optimizer) == learning_rates([peak], curve, schedulers[0].curve_step)


def test_log_that_the_program_corrects_is_no_value():
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 3)
    scheduler._last_lr[0] = 0.9
    lambda_lr(optimizer, CURVE)  # warns if a value was not written by a scheduler


# Groups that change under a different scheduler, or one by one.


@pytest.mark.parametrize("has_base", [False, True])
def test_group_added_under_another_scheduler_needs_its_base(has_base):
    """This library's scheduler waits for its turn in a `SequentialLR`."""
    optimizer = optimizer_with([0.5])
    first = ConstantLR(optimizer, 0.5)
    second = lambda_lr(optimizer, CURVE)
    sequence = SequentialLR(optimizer, [first, second], [4])
    advance(optimizer, sequence, 2)
    group = {"params": [new_parameter()], "lr": 0.125}
    if has_base:
        group["initial_lr"] = 0.25
    optimizer.add_param_group(group)
    lrs_before = lrs_of(optimizer)
    optimizer.step()
    assert lrs_of(optimizer) == lrs_before
    # As the sequence does, but for the first scheduler, of torch, which accepts no new groups.
    if has_base:
        second._update_lr(0)
        assert lrs_of(optimizer) == learning_rates([0.5, 0.25], CURVE, 0)
    else:
        with raises(ValueError, 'add it with "initial_lr"', unchanged=[optimizer]):
            second._update_lr(0)


def test_group_added_again_before_a_load_needs_no_base():
    """The state has the base, also if the scheduler waits for its turn when it is loaded."""

    def build():
        optimizer = optimizer_with([0.5])
        schedulers = [lambda_lr(optimizer, LINEAR), lambda_lr(optimizer, CURVE)]
        return optimizer, SequentialLR(optimizer, schedulers, [2])

    def add(optimizer):
        optimizer.add_param_group({"params": [new_parameter()], "lr": 0.25})

    earlier, sequence = build()
    advance(earlier, sequence, 4)
    add(earlier)
    advance(earlier, sequence, 3)
    optimizer, resumed = build()
    add(optimizer)
    resumed.load_state_dict(sequence.state_dict())
    optimizer.load_state_dict(earlier.state_dict())
    advance(optimizer, resumed)
    assert lrs_of(optimizer) == learning_rates([0.5, 0.25], CURVE, 6)


# Factors of an option in the groups.


def optimizer_with_factors(key, factors, **options):
    groups = [{"params": [new_parameter()], key: factor} for factor in factors]
    return AdamW(groups, **options)


def build(optimizer, option):
    if option == "lr":
        return lambda_lr(optimizer, LINEAR)
    return follow(optimizer, option, LINEAR)


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("lr_scale", "lr"),
        ("lr_mult", "lr"),
        ("lr_multiplier", "lr"),
        ("wd_multiplier", "weight_decay"),
    ],
)
@pytest.mark.parametrize("make_value", [float, torch.tensor])
def test_factor_warns_with_its_remedy(key, option, make_value):
    """It is a factor of an option, which only other schedulers read."""
    options = {option: make_value(0.5)}
    build(optimizer_with_factors(key, [1.0, 1], **options), option)
    optimizer = optimizer_with_factors(key, [1.0, 0.5, 0.25], **options)
    with pytest.warns(CurveWarning, match=f"2 of 3 .* have a factor {key}") as caught:
        build(optimizer, option)
    remedy = (
        f': group["{option}"] = group["initial_{option}"] = '
        f'group.get("initial_{option}", group["{option}"]) * group.pop("{key}")'
    )
    assert str(caught[0].message).endswith(remedy)

    optimizer = optimizer_with_factors(key, [1.0, 0.5, 0.25], **options)
    for group in optimizer.param_groups:
        base = group.get(f"initial_{option}", group[option]) * group.pop(key)
        group[option] = group[f"initial_{option}"] = base
    part = build(optimizer, option)
    optimizer.step()
    part.step()
    values = [float(group[option]) for group in optimizer.param_groups]
    assert values == learning_rates([0.5, 0.25, 0.125], LINEAR, 1)

    optimizer.add_param_group({"params": [new_parameter()], key: 0.5})
    optimizer.step()
    with pytest.warns(CurveWarning, match=f"1 of 1 .* have a factor {key}"):
        part.step()


# Optimizers that are not plain.


class WithoutHooks(Optimizer):
    """A wrapper that is an optimizer only by its class."""

    def __init__(self, inner):
        self.inner = inner
        self.param_groups = inner.param_groups
        self.defaults = inner.defaults

    def step(self, closure=None):
        return self.inner.step(closure)


def with_partial_step(optimizer):
    optimizer.step = partial(optimizer.step)
    return optimizer


def with_step_of_another_object(optimizer):
    optimizer.step = WithoutHooks(copy.copy(optimizer)).step
    return optimizer


@pytest.mark.parametrize("wrap", [with_partial_step, with_step_of_another_object, WithoutHooks])
def test_optimizer_that_is_not_plain_trains_with_the_curve(wrap):
    inner = optimizer_with([torch.tensor(0.5)])
    inner.param_groups[0]["weight_decay"] = 0.1
    optimizer = wrap(inner)
    scheduler = lambda_lr(optimizer, CURVE)
    decay = follow(optimizer, "weight_decay", CURVE)
    for step in range(5):
        assert lrs_of(inner) == [learning_rate(0.5, CURVE, step)]
        advance(optimizer, scheduler)
        decay.step()

    inner.add_param_group({"params": [new_parameter()], "lr": torch.tensor(0.25)})
    advance(optimizer, scheduler)
    assert lrs_of(inner) == learning_rates([0.5, 0.25], CURVE, 6)
    scheduler.load_state_dict(through_file(scheduler.state_dict()))


# Derived classes.


class WithFloor(lambda_lr):
    def get_lr(self):
        return [max(lr, 0.0625) for lr in super().get_lr()]


def test_derived_class_has_its_own_learning_rates():
    optimizer = optimizer_with([0.5])
    scheduler = WithFloor(optimizer, CURVE)
    for step in range(100):
        (lr,) = learning_rates([0.5], CURVE, step)
        assert lrs_of(optimizer) == [max(lr, 0.0625)]
        advance(optimizer, scheduler)
