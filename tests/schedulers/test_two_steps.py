"""SAM and its relatives: programs call `first_step` and `second_step`; torch only sees `step`."""

import warnings
from typing import Any

import pytest
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import SharpnessAware
from support.training.steps import CURVE
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torch_bridge import lambda_lr

PEAK = 0.1


def train(optimizer: Any, scheduler: Any, model: Net) -> list[float]:
    """Return the learning rates of some updates, each of two backward passes."""
    lrs: list[float] = []
    for batch in batches(25):
        mean_loss(model, batch).backward()
        optimizer.first_step()
        mean_loss(model, batch).backward()
        optimizer.second_step()
        lrs.append(optimizer.base_optimizer.param_groups[0]["lr"])
        scheduler.step()
    return lrs


@pytest.mark.parametrize("base", [SGD, AdamW])
def test_program_of_two_steps_gets_no_warning(base: type[Optimizer]) -> None:
    """Torch's LambdaLR warns that the optimizer was not stepped."""
    model = Net()
    optimizer = SharpnessAware(model.parameters(), base, lr=PEAK)
    lrs = train(optimizer, lambda_lr(optimizer, CURVE), model)
    assert lrs == [CURVE.learning_rate(step, PEAK) for step in range(25)]

    optimizer = SharpnessAware(model.parameters(), base, lr=PEAK)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        train(optimizer, LambdaLR(optimizer, CURVE), model)


@pytest.mark.parametrize("scheduler_has_the_base", [False, True])
def test_program_with_a_closure_gets_no_warning(scheduler_has_the_base: bool) -> None:
    """The scheduler may have the optimizer inside instead: both have the same groups."""
    model = Net()
    optimizer = SharpnessAware(model.parameters(), SGD, lr=PEAK)
    scheduled: Optimizer = optimizer
    if scheduler_has_the_base:
        scheduled = optimizer.base_optimizer
    scheduler = lambda_lr(scheduled, CURVE)
    (batch,) = batches(1)

    def backward() -> Tensor:
        loss = mean_loss(model, batch)
        loss.backward()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(25):
            assert optimizer.param_groups[0]["lr"] == CURVE.learning_rate(step, PEAK)
            backward()
            optimizer.step(backward)
            scheduler.step()
