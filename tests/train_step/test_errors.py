"""A training step rejects invalid input with one clear error, and changes nothing."""

import copy
import math
import re

import pytest
import torch
from support.curves.descriptions import scaled
from support.curves.requirements import AN_INTEGER, in_range
from support.raises import raises
from support.training.models import Net, batches, mean_loss
from support.training.steps import CURVE, make_step
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW

from plateau_jax import DataClock
from torch_bridge import TrainStep


@pytest.fixture
def model():
    return Net()


@pytest.fixture
def optimizer(model):
    return AdamW(model.parameters())


@pytest.fixture
def optimizers(model):
    """An optimizer for each layer."""
    return [AdamW(model.first.parameters()), AdamW(model.last.parameters())]


@pytest.fixture
def step():
    return make_step()


# Arguments.


@pytest.mark.parametrize(
    ("error", "parts", "arguments"),
    [
        (ValueError, ["precision = 'tf32'", "fp32"], {"precision": "tf32"}),
        (ValueError, ["synchronize = 'never'", "micro"], {"synchronize": "never"}),
        (ValueError, ["max_norm = 0"], {"max_norm": 0}),
        (ValueError, ["initial_updates = -1", in_range(0, 2**62)], {"initial_updates": -1}),
        (TypeError, ["loss_fn = None", "callable"], {"loss_fn": None}),
        (ValueError, ["cuda_graph=True", "CUDA"], {"cuda_graph": True}),
        (TypeError, ["carry"], {"carry": ()}),
        (TypeError, ["carry"], {"carry": (torch.zeros(1), 2)}),
        (
            TypeError,
            ["optimizer = 'adamw'", "must be a torch.optim.Optimizer"],
            {"optimizer": "adamw"},
        ),
    ],
)
def test_wrong_argument(model, optimizer, error, parts, arguments):
    usual = {"model": model, "optimizer": optimizer, "loss_fn": mean_loss, "curve": CURVE}
    with raises(error, *parts, unchanged=[model, optimizer]):
        TrainStep(**usual | arguments)


@raises(TypeError, "model = SGD", "must be a torch.nn.Module")
def test_swapped_model_and_optimizer(model):
    TrainStep(torch.optim.SGD(model.parameters()), model, mean_loss, CURVE)


# Optimizers, and their curves.


class TwoStepSGD(SGD):
    def first_step(self): ...

    def second_step(self): ...


def test_wrong_optimizer(model):
    with_another = SGD([*model.parameters(), nn.Parameter(torch.ones(1))])
    part = "1 of the optimizer's 5 parameters are not the model's"
    with raises(ValueError, part, unchanged=[model, with_another]):
        TrainStep(model, with_another, mean_loss, CURVE)
    two_steps = TwoStepSGD(model.parameters(), lr=0.1)
    parts = ["TwoStepSGD needs a closure or a second backward pass", "lambda_lr in a loop"]
    with raises(TypeError, *parts, unchanged=[model, two_steps]):
        TrainStep(model, two_steps, mean_loss, CURVE)


def test_wrong_optimizers(model, optimizer, optimizers):
    first, last = optimizers
    lbfgs = LBFGS(model.last.parameters())
    with raises(TypeError, "LBFGS needs a closure", unchanged=[model, first, lbfgs]):
        TrainStep(model, [first, lbfgs], mean_loss, CURVE)
    with raises(ValueError, "2 parameters", "several optimizers", unchanged=[optimizer, first]):
        TrainStep(model, [optimizer, first], mean_loss, CURVE)
    with raises(ValueError, "curve has length 3, and optimizers 2", unchanged=[first, last]):
        TrainStep(model, optimizers, mean_loss, [CURVE] * 3)


# Clocks and peaks.

(BATCH,) = batches(1)


@pytest.fixture
def two_groups(model):
    return SGD([{"params": model.first.parameters()}, {"params": model.last.parameters()}])


@pytest.fixture
def step_of_two_groups(model, two_groups):
    return TrainStep(model, two_groups, mean_loss, CURVE)


@raises(ValueError, "clock = DataClock(unit=1, ", "must be DataClock(8)")
def test_batch_plan_of_the_second_group(model, two_groups):
    TrainStep(model, two_groups, mean_loss, [CURVE, scaled()], clock=DataClock(1))


def test_wrong_count(model):
    step = make_step(model=model, clock=DataClock(2))
    with raises(TypeError, "step(batch, count=n)", "DataClock(2, count=n)", unchanged=[step]):
        step(BATCH)
    with raises(ValueError, "count = -1", in_range(0, 2**53), unchanged=[step]):
        step(BATCH, count=-1)
    with raises(TypeError, "count", "torch.float32", AN_INTEGER, unchanged=[step]):
        step(BATCH, count=torch.tensor(2.0))
    with raises(ValueError, "count", "(1,)", "scalar", unchanged=[step]):
        step(BATCH, count=torch.tensor([2]))


@raises(ValueError, "peak[1] = nan")
def test_peak_that_is_not_a_number(step_of_two_groups):
    step_of_two_groups.set_peak([0.5, math.nan])


@pytest.fixture
def used_optimizer(model):
    """An optimizer that has made an update without a schedule."""
    optimizer = Adam(model.parameters())
    mean_loss(model, BATCH).backward()
    optimizer.step()
    return optimizer


@raises(ValueError, "initial_updates = 3, but param_groups[0]", '"initial_lr"')
def test_initial_updates_without_an_initial_lr(model, used_optimizer):
    TrainStep(model, used_optimizer, mean_loss, CURVE, initial_updates=3)


# Models that cannot be trained.


def test_wrong_model():
    half = Net().half()
    with raises(ValueError, "fp16", unchanged=[half]):
        make_step(model=half, precision="fp16")


# A step that has been built, and the functions around it.


@raises(TypeError, "can't be copied or pickled: build another one")
def test_copy_of_a_step(step):
    copy.deepcopy(step)


# Criteria as loss functions.


@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.functional.mse_loss])
def test_criterion_as_loss_fn(criterion):
    """The replacement that the message suggests works."""
    advice = "lambda model, batch: criterion(model(batch[0]), batch[1])"
    with pytest.raises(TypeError, match=re.escape(advice)):
        make_step(loss_fn=criterion)
    step = make_step(loss_fn=lambda model, batch: criterion(model(batch[0]), batch[1]))
    ((inputs, targets),) = batches(1)
    expected = criterion(step.model(inputs), targets)
    assert step((inputs, targets)).loss == expected
