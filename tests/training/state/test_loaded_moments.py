"""Moments are loaded as they were saved: in their dtypes, or not at all."""

import pytest
import torch
from support.trees import equal_trees
from torch import nn

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep

CURVE = PlateauCurve(64, warmup_steps=4, plateaus=[(0, 50)], init_lr_ratio=0.25)
BATCH = torch.ones(3, 2)


def mean_square(model, batch):
    return model(batch).square().mean()


def momentum_step():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    step = TrainStep(model, optimizer, mean_square, CURVE)
    for _ in range(6):
        step(BATCH)
    return step


def check_resumed_step(resumed, step):
    """Load the state of a step into another one: the next update of both is the same."""
    state = step.state_dict()
    resumed.load_state_dict(state)
    assert equal_trees(resumed.state_dict(), state)
    assert equal_trees(resumed(BATCH), step(BATCH))


def test_parameter_without_moments_is_accepted():
    """It had no gradient so far."""
    step = momentum_step()
    del step.optimizer.state[step.model.bias]
    check_resumed_step(momentum_step(), step)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_moments_keep_their_dtype(dtype):
    """SGD adds a gradient to a momentum of any dtype: a program may keep it in another one."""
    step = momentum_step()
    for values in step.optimizer.state.values():
        values["momentum_buffer"] = values["momentum_buffer"].to(dtype)
    step(BATCH)
    check_resumed_step(momentum_step(), step)
