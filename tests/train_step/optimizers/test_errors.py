"""Optimizers that a training step rejects, when it is built or later; nothing else changes."""

import pytest
from support.raises import raises
from support.training.kind import Kind
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import by_layer, make_optimizer
from support.training.steps import CURVE, make_step, train
from support.trees import assert_equal_trees
from torch.optim import SGD, lr_scheduler

from torch_bridge import TrainStep, lambda_lr

# Optimizers that are rejected when the step is built.


class WithoutGroups(SGD):
    def state_dict(self):
        return {"weights": [], "lr": 0.1}


class WithStatesInAList(SGD):
    def state_dict(self):
        return super().state_dict() | {"state": [1, 2]}


@pytest.mark.parametrize("kind", [WithoutGroups, WithStatesInAList])
def test_state_of_another_form(kind):
    model = Net()
    optimizer = kind(model.parameters(), lr=0.1)
    parts = [f"{kind.__name__}.state_dict", "non-standard form", "torch optimizer"]
    with raises(ValueError, *parts, unchanged=[optimizer]):
        TrainStep(model, optimizer, mean_loss, CURVE)


@raises(ValueError, "needs parameters")
def test_no_optimizer():
    make_step(optimizer=[])


# Schedulers that are attached before the step is built, or later.

ATTACHED = "a scheduler is attached to the optimizer"


def test_scheduler_attached_before():
    model = Net()
    optimizer = make_optimizer("adamw", model)
    lambda_lr(optimizer, CURVE)
    parts = [ATTACHED, "Leave the scheduler out"]
    with raises(ValueError, *parts, unchanged=[optimizer]):
        TrainStep(model, optimizer, mean_loss, CURVE)


TWO = Kind(by_layer("adamw", "momentum"))


def test_scheduler_attached_later_is_rejected():
    """Before the first update, after one, and after a load; the message says how to remove it."""
    step = TWO.build()
    reference = TWO.build()
    optimizer = step.optimizers[-1]
    message = f"{ATTACHED}.*`del optimizer.step`"
    data = batches(3)
    for number, batch in enumerate(data):
        if number == 2:
            step.load_state_dict(step.state_dict())
        before = step.state_dict()
        lr_scheduler.StepLR(optimizer, 10)
        with pytest.raises(ValueError, match=message):
            step(*data)
        with pytest.raises(ValueError, match=message):
            step.set_peak(0.5)
        with pytest.raises(ValueError, match=message):
            step.load_state_dict(before)
        del optimizer.step
        assert_equal_trees(step.state_dict(), before)
        assert_equal_trees(step(batch), reference(batch))


# States of several optimizers.


@pytest.fixture
def step():
    """A step with AdamW and SGD that has made an update."""
    step = TWO.build()
    train(step, batches(1))
    return step


@raises(ValueError, "state_dict", "has length 1; the number of optimizers is 2")
def test_state_without_the_second_optimizer(step):
    state = step.state_dict()
    state["optimizer"] = state["optimizer"][:1]
    step.load_state_dict(state)


@raises(AttributeError, "2 optimizers", "step.optimizers")
def test_one_optimizer_of_two(step):
    _ = step.optimizer
