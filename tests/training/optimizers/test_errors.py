"""Optimizers that a training step rejects, when it is built or later; nothing else changes."""

from typing import Any

import pytest
import torch
from support.errors import check_error, each_row
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees
from torch import nn
from torch.optim import SGD, AdamW, NAdam, Optimizer, RMSprop, lr_scheduler

from torch_bridge import TrainStep, lambda_lr

ATTACHED = "a scheduler is attached to the optimizer"
SCHEDULERS = [
    "lr_scheduler.StepLR(optimizer, 10)",
    "lr_scheduler.ConstantLR(optimizer)",
    "lr_scheduler.CosineAnnealingLR(optimizer, 10)",
    "lr_scheduler.OneCycleLR(optimizer, 0.1, 10, cycle_momentum=False)",
    "lambda_lr(optimizer, CURVE)",
]


class Odd(SGD):
    """Its state has another form."""

    def __init__(self, change: Any, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self._change = change

    def state_dict(self) -> dict[str, Any]:
        return self._change(super().state_dict())


def scheduled(scheduler: str, model: nn.Module) -> Optimizer:
    optimizer = make_optimizer("adamw", model)
    eval(scheduler, globals(), {"optimizer": optimizer})
    return optimizer


def fused_sgd(dtype: torch.dtype, model: nn.Module) -> Optimizer:
    """On a CPU torch 2.13 leaves blocks of elements unchanged: github.com/pytorch/pytorch/issues/191763."""
    return SGD(model.to(dtype).parameters(), lr=0.25, fused=True)


@each_row(
    [
        *((f"build({odd}, Net())", ValueError, "Odd.state_dict() has a non-standard form", word)
          for odd, word in {
              "Odd, lambda state: {'weights': [], 'lr': 0.1}": "KeyError",
              "Odd, lambda state: state | {'param_groups': [{'params': [0]}]}": "torch optimizer",
              "Odd, lambda state: state | {'state': [1, 2]}": "torch optimizer",
              "Odd, lambda state: 1 // 0": "ZeroDivisionError: ",
          }.items()),
        *((f"build(fused_sgd, {dtype}, Net())", ValueError, f"{dtype} parameters unchanged", "fused=False")
          for dtype in ("torch.bfloat16", "torch.float16")),
        *((f"build(scheduled, '{scheduler}', Net())", ValueError, ATTACHED, "Leave the scheduler out")
          for scheduler in SCHEDULERS),
    ]
)  # fmt: skip
def test_rejected_when_built(row: Any) -> None:
    def build(make: Any, argument: Any, model: nn.Module) -> None:
        optimizer = make(argument, model)
        (group,) = optimizer.param_groups
        before = dict(group)
        try:
            TrainStep(model, optimizer, mean_loss, CURVE)
        finally:
            assert group == before

    check_error(row, globals() | {"build": build})


def two(first: Any = AdamW, last: Any = SGD, flip: bool = False) -> TrainStep:
    model = Net()
    optimizers = [first(model.first.parameters()), last(model.last.parameters())]
    return make_step(model=model, optimizer=optimizers[::-1] if flip else optimizers)


@pytest.mark.parametrize("build", ["make_step('adamw')", "make_step('rmsprop')", "two()"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_scheduler_attached_later_is_rejected(build: str, scheduler: str) -> None:
    """Before the first update, after one, and after a load; the message says how to remove it."""
    step, reference, data = eval(build), eval(build), batches(3)
    names = globals() | {"optimizer": step.optimizers[-1], "data": data}
    for number in range(3):
        if number == 2:
            step.load_state_dict(step.state_dict())
        state = step.state_dict()
        eval(scheduler, names)
        calls = ["step(data[0])", "step(*data)", "step.set_peak(0.5)", "step.load_state_dict(state)"]
        for call in calls if scheduler == SCHEDULERS[0] else calls[:1]:
            check_error(
                (call, ValueError, ATTACHED, "`del optimizer.step`"), names | {"state": state}, step=step
            )
        exec("del optimizer.step", names)
        assert equal_trees(step(data[number]), reference(data[number]))


def test_fused_sgd_of_half_precision_is_rejected_later() -> None:
    model = Net()
    step = make_step(model=model, optimizer=SGD(model.bfloat16().parameters(), lr=0.25))
    step.optimizer.param_groups[0]["fused"] = True
    with pytest.raises(ValueError, match=r"torch.bfloat16 parameters unchanged"):
        step(None)
    model.float()
    train(step, batches(1))


@each_row(
    [
        ("step.load_state_dict(two(RMSprop, NAdam).state_dict())", ValueError, "['RMSprop', 'NAdam']"),
        ("step.load_state_dict(two(flip=True).state_dict())", ValueError, "saved with", "['SGD', 'AdamW']"),
        ("step.load_state_dict(make_step().state_dict())", ValueError, "saved with optimizer_type = AdamW"),
        ("make_step().load_state_dict(step.state_dict())", ValueError, "['AdamW', 'SGD']", "has AdamW"),
        *((f"step.load_state_dict(dict(state, optimizer={value}))", ValueError, "state_dict", word)
          for value, word in {
              "states[:1]": "1 parameter groups; this step has 2", "states * 2": "4 parameter groups",
              **dict.fromkeys(("states[0]", "dict(enumerate(states))", "None"), "not the state of a"),
          }.items()),
        ("step.optimizer", AttributeError, "2 optimizers", "step.optimizers"),
    ]
)  # fmt: skip
def test_several_optimizers_are_not_mistaken_for_others(row: Any) -> None:
    step = two()
    train(step, batches(1))
    state: Any = step.state_dict()
    check_error(row, globals() | {"state": state, "states": state["optimizer"]}, step=step)
    assert [type(optimizer) for optimizer in step.optimizers] == [AdamW, SGD]
