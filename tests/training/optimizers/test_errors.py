"""Optimizers that a training step rejects, when it is built or later; nothing else changes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, train
from support.trees import equal_trees
from support.wrong import wrong
from torch.optim import SGD, AdamW, NAdam, Optimizer, RMSprop, lr_scheduler

from torch_bridge import TrainStep, lambda_lr

# Optimizers that are rejected when the step is built.


class WithoutGroups(SGD):
    def state_dict(self) -> dict[str, Any]:
        return {"weights": [], "lr": 0.1}


class WithParametersOnly(SGD):
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"param_groups": [{"params": [0]}]}


class WithStatesInAList(SGD):
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"state": [1, 2]}


class WithAnError(SGD):
    def state_dict(self) -> dict[str, Any]:
        raise ZeroDivisionError("division by zero")


def check_rejected(model: Net, optimizer: Optimizer, *parts: str) -> None:
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
        (WithParametersOnly, "torch optimizer"),
        (WithStatesInAList, "torch optimizer"),
        (WithAnError, "ZeroDivisionError: "),
    ],
)
def test_state_of_another_form(kind: type[SGD], reason: str) -> None:
    model = Net()
    optimizer = kind(model.parameters(), lr=0.1)
    method = f"{kind.__name__}.state_dict"
    check_rejected(model, optimizer, method, "non-standard form", reason)


@wrong(ValueError, "needs parameters")
def test_no_optimizer() -> None:
    make_step(optimizer=[])


def step_lr(optimizer: Optimizer) -> None:
    lr_scheduler.StepLR(optimizer, 10)


def constant_lr(optimizer: Optimizer) -> None:
    lr_scheduler.ConstantLR(optimizer)


def cosine_annealing_lr(optimizer: Optimizer) -> None:
    lr_scheduler.CosineAnnealingLR(optimizer, 10)


def one_cycle_lr(optimizer: Optimizer) -> None:
    lr_scheduler.OneCycleLR(optimizer, 0.1, 10, cycle_momentum=False)


def curve_of_this_library(optimizer: Optimizer) -> None:
    lambda_lr(optimizer, CURVE)


ATTACHED = "a scheduler is attached to the optimizer"


@pytest.mark.parametrize(
    "attach", [step_lr, constant_lr, cosine_annealing_lr, one_cycle_lr, curve_of_this_library]
)
def test_scheduler_attached_before(attach: Callable[[Optimizer], None]) -> None:
    model = Net()
    optimizer = make_optimizer("adamw", model)
    attach(optimizer)
    check_rejected(model, optimizer, ATTACHED, "Leave the scheduler out")


# Schedulers that are attached later.


def adamw() -> TrainStep:
    return make_step("adamw")


def rmsprop() -> TrainStep:
    return make_step("rmsprop")


def step_of_two(first: type[Optimizer] = AdamW, last: type[Optimizer] = SGD) -> TrainStep:
    """Return a step with an optimizer for each layer."""
    model = Net()
    optimizer_of_first = first(model.first.parameters())
    optimizer_of_last = last(model.last.parameters())
    return make_step(model=model, optimizer=[optimizer_of_first, optimizer_of_last])


@pytest.mark.parametrize("build", [adamw, rmsprop, step_of_two])
def test_scheduler_attached_later_is_rejected(build: Callable[[], TrainStep]) -> None:
    """Before the first update, after one, and after a load; the message says how to remove it."""
    step = build()
    reference = build()
    optimizer: Any = step.optimizers[-1]
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
def step() -> Iterator[TrainStep]:
    """A step with AdamW and SGD that has made an update."""
    step = step_of_two()
    train(step, batches(1))
    yield step
    kinds = [type(optimizer) for optimizer in step.optimizers]
    assert kinds == [AdamW, SGD]


@wrong(ValueError, "['RMSprop', 'NAdam']")
def test_state_of_different_optimizers(step: TrainStep) -> None:
    saved = step_of_two(RMSprop, NAdam)
    step.load_state_dict(saved.state_dict())


@wrong(ValueError, "saved with", "['SGD', 'AdamW']")
def test_state_of_optimizers_in_a_different_order(step: TrainStep) -> None:
    model = Net()
    optimizers = [SGD(model.last.parameters()), AdamW(model.first.parameters())]
    saved = make_step(model=model, optimizer=optimizers)
    step.load_state_dict(saved.state_dict())


@wrong(ValueError, "saved with optimizer_type = AdamW")
def test_state_of_one_optimizer(step: TrainStep) -> None:
    saved = make_step()
    step.load_state_dict(saved.state_dict())


@wrong(ValueError, "['AdamW', 'SGD']", "has AdamW")
def test_state_of_two_optimizers_for_one(step: TrainStep) -> None:
    step_of_one = make_step()
    step_of_one.load_state_dict(step.state_dict())


@wrong(ValueError, "state_dict", "has length 1; the number of optimizers is 2")
def test_state_without_the_second_optimizer(step: TrainStep) -> None:
    state: Any = step.state_dict()
    state["optimizer"] = state["optimizer"][:1]
    step.load_state_dict(state)


@wrong(ValueError, "state_dict", "has length 4; the number of optimizers is 2")
def test_state_with_four_optimizers(step: TrainStep) -> None:
    state: Any = step.state_dict()
    state["optimizer"] = state["optimizer"] * 2
    step.load_state_dict(state)


@wrong(ValueError, "state_dict['optimizer']", "not the state of ")
def test_state_of_the_first_optimizer_only(step: TrainStep) -> None:
    state: Any = step.state_dict()
    state["optimizer"] = state["optimizer"][0]
    step.load_state_dict(state)


@wrong(ValueError, "state_dict['optimizer']", "not the state of ")
def test_states_of_optimizers_in_a_dictionary(step: TrainStep) -> None:
    state: Any = step.state_dict()
    state["optimizer"] = dict(enumerate(state["optimizer"]))
    step.load_state_dict(state)


@wrong(ValueError, "state_dict", "not the state of a")
def test_none_as_state_of_the_optimizers(step: TrainStep) -> None:
    state: Any = step.state_dict()
    state["optimizer"] = None
    step.load_state_dict(state)


@wrong(AttributeError, "2 optimizers", "step.optimizers")
def test_one_optimizer_of_two(step: TrainStep) -> None:
    _ = step.optimizer
