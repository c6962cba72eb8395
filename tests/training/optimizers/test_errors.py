"""Optimizers that a training step rejects, when it is built or later; nothing else changes."""

import pytest
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, train
from support.trees import equal_trees
from support.wrong import wrong
from torch.optim import SGD, AdamW, lr_scheduler

from torch_bridge import TrainStep, lambda_lr

# Optimizers that are rejected when the step is built.


class WithoutGroups(SGD):
    def state_dict(self):
        return {"weights": [], "lr": 0.1}


class WithStatesInAList(SGD):
    def state_dict(self):
        return super().state_dict() | {"state": [1, 2]}


def check_rejected(model, optimizer, *parts):
    (group,) = optimizer.param_groups
    before = dict(group)
    with pytest.raises(ValueError, match=parts[0]) as caught:
        TrainStep(model, optimizer, mean_loss, CURVE)
    assert group == before
    message = str(caught.value)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (WithoutGroups, "KeyError"),
        (WithStatesInAList, "torch optimizer"),
    ],
)
def test_state_of_another_form(kind, reason):
    model = Net()
    optimizer = kind(model.parameters(), lr=0.1)
    method = f"{kind.__name__}.state_dict"
    check_rejected(model, optimizer, method, "non-standard form", reason)


@wrong(ValueError, "needs parameters")
def test_no_optimizer():
    make_step(optimizer=[])


def step_lr(optimizer):
    lr_scheduler.StepLR(optimizer, 10)


def curve_of_this_library(optimizer):
    lambda_lr(optimizer, CURVE)


ATTACHED = "a scheduler is attached to the optimizer"


@pytest.mark.parametrize("attach", [step_lr, curve_of_this_library])
def test_scheduler_attached_before(attach):
    model = Net()
    optimizer = make_optimizer("adamw", model)
    attach(optimizer)
    check_rejected(model, optimizer, ATTACHED, "Leave the scheduler out")


# Schedulers that are attached later.


def adamw():
    return make_step("adamw")


def rmsprop():
    return make_step("rmsprop")


def step_of_two():
    """Return a step with an optimizer for each layer."""
    model = Net()
    optimizers = [AdamW(model.first.parameters()), SGD(model.last.parameters())]
    return make_step(model=model, optimizer=optimizers)


@pytest.mark.parametrize("build", [adamw, rmsprop, step_of_two])
def test_scheduler_attached_later_is_rejected(build):
    """Before the first update, after one, and after a load; the message says how to remove it."""
    step = build()
    reference = build()
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
        assert equal_trees(step.state_dict(), before)
        assert equal_trees(step(batch), reference(batch))


# States of several optimizers.


@pytest.fixture
def step():
    """A step with AdamW and SGD that has made an update."""
    step = step_of_two()
    train(step, batches(1))
    yield step
    kinds = [type(optimizer) for optimizer in step.optimizers]
    assert kinds == [AdamW, SGD]


@wrong(ValueError, "saved with", "['SGD', 'AdamW']")
def test_state_of_optimizers_in_a_different_order(step):
    model = Net()
    optimizers = [SGD(model.last.parameters()), AdamW(model.first.parameters())]
    saved = make_step(model=model, optimizer=optimizers)
    step.load_state_dict(saved.state_dict())


@wrong(ValueError, "state_dict", "has length 1; the number of optimizers is 2")
def test_state_without_the_second_optimizer(step):
    state = step.state_dict()
    state["optimizer"] = state["optimizer"][:1]
    step.load_state_dict(state)


@wrong(AttributeError, "2 optimizers", "step.optimizers")
def test_one_optimizer_of_two(step):
    _ = step.optimizer
