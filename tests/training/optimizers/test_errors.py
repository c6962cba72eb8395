"""Optimizers that a training step rejects, when it is built or later; nothing else changes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.errors import check_error, each, each_row
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, equal_trees, make_step, train
from torch import nn
from torch.optim import SGD, AdamW, NAdam, Optimizer, RMSprop, lr_scheduler

from torch_bridge import TrainStep, lambda_lr

ATTACHED = "a scheduler is attached to the optimizer"
SCHEDULERS: list[Callable[[Any], Any]] = [
    lambda optimizer: lr_scheduler.StepLR(optimizer, 10),
    lr_scheduler.ConstantLR,
    lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, 10, cycle_momentum=False),
    lambda optimizer: lambda_lr(optimizer, CURVE),
]


class Odd(SGD):
    """Its state has another form."""

    def __init__(self, change: Any, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self._change = change

    def state_dict(self) -> dict[str, Any]:
        return self._change(super().state_dict())


def scheduled(scheduler: Callable[[Any], Any], model: nn.Module) -> Optimizer:
    optimizer = make_optimizer("adamw", model)
    scheduler(optimizer)
    return optimizer


@each_row(
    [
        *((lambda build, change=change: build(Odd, change), ValueError,
           "Odd.state_dict() has a non-standard form", word)
          for change, word in (
              (lambda state: {"weights": [], "lr": 0.1}, "KeyError"),
              (lambda state: state | {"param_groups": [{"params": [0]}]}, "torch optimizer"),
              (lambda state: state | {"state": [1, 2]}, "torch optimizer"),
              (lambda state: 1 // 0, "ZeroDivisionError: "),
          )),
        (lambda build: make_step(optimizer=[]), ValueError, "needs parameters"),
        *each(lambda build, value: build(scheduled, value), SCHEDULERS, ValueError, ATTACHED,
              "Leave the scheduler out"),
    ]
)  # fmt: skip
def test_rejected_when_built(row: Any) -> None:
    def build(make: Any, argument: Any) -> None:
        model = Net()
        optimizer = make(argument, model)
        (group,) = optimizer.param_groups
        before = dict(group)
        try:
            TrainStep(model, optimizer, mean_loss, CURVE)
        finally:
            assert group == before

    check_error(row, build=build)


def two(first: Any = AdamW, last: Any = SGD, flip: bool = False) -> TrainStep:
    model = Net()
    optimizers = [first(model.first.parameters()), last(model.last.parameters())]
    return make_step(model=model, optimizer=optimizers[::-1] if flip else optimizers)


@pytest.mark.parametrize(
    "build",
    [partial(make_step, "adamw"), partial(make_step, "rmsprop"), two],
    ids=["adamw", "rmsprop", "two"],
)
def test_scheduler_attached_later_is_rejected(build: Callable[[], TrainStep]) -> None:
    """Before the first update, after one, and after a load; the message says how to remove it."""
    step, reference, data = build(), build(), batches(3)
    optimizer: Any = step.optimizers[-1]
    calls: list[Callable[[Any, Any], Any]] = [
        lambda step, state: step(*data),
        lambda step, state: step.set_peak(0.5),
        lambda step, state: step.load_state_dict(state),
    ]
    for number in range(3):
        if number == 2:
            step.load_state_dict(step.state_dict())
        state = step.state_dict()
        lr_scheduler.StepLR(optimizer, 10)
        for call in calls:
            check_error((call, ValueError, ATTACHED, "`del optimizer.step`"), step=step, state=state)
        del optimizer.step
        assert equal_trees(step(data[number]), reference(data[number]))


@each_row(
    [
        (lambda step: step.load_state_dict(two(RMSprop, NAdam).state_dict()), ValueError,
         "['RMSprop', 'NAdam']"),
        (lambda step: step.load_state_dict(two(flip=True).state_dict()), ValueError, "saved with",
         "['SGD', 'AdamW']"),
        (lambda step: step.load_state_dict(make_step().state_dict()), ValueError,
         "saved with optimizer_type = AdamW"),
        (lambda step: make_step().load_state_dict(step.state_dict()), ValueError, "['AdamW', 'SGD']",
         "has AdamW"),
        *((lambda step, state, of=of: step.load_state_dict(state | {"optimizer": of(state["optimizer"])}),
           ValueError, "state_dict", word)
          for of, word in (
              (lambda states: states[:1], "has 1 items; the number of parameter groups is 2"),
              (lambda states: states * 2, "has 4 items; the number of parameter groups is 2"),
              (lambda states: states[0], "not the state of a"),
              (lambda states: dict(enumerate(states)), "not the state of a"),
              (lambda states: None, "not the state of a"),
          )),
        (lambda step: step.optimizer, AttributeError, "2 optimizers", "step.optimizers"),
    ]
)  # fmt: skip
def test_several_optimizers_are_not_mistaken_for_others(row: Any) -> None:
    step = two()
    train(step, batches(1))
    state: Any = step.state_dict()
    check_error(row, step=step, state=state)
    assert [type(optimizer) for optimizer in step.optimizers] == [AdamW, SGD]
