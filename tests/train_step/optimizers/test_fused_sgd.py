"""Two defects of torch's fused SGD: 16-bit parameters on a CPU, and uninitialized momentum."""

import pytest
import torch
from support.raises import raises
from support.training.models import Net
from support.training.steps import make_step
from torch.nn import Parameter, ParameterList
from torch.optim import SGD

from torch_bridge import StagedCurve, TrainStep


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def model(request):
    return Net().to(request.param)


@pytest.fixture
def optimizer(model):
    return SGD(model.parameters(), lr=0.25, fused=True)


@raises(ValueError, "float16 parameters unchanged", "fused=False")
def test_half_precision_on_a_cpu(model, optimizer):
    """Torch 2.13 leaves blocks of elements unchanged: github.com/pytorch/pytorch/issues/191763."""
    make_step(model=model, optimizer=optimizer)


@raises(ValueError, "fused=False for SGD with dampening")
def test_dampening():
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.25, momentum=0.5, dampening=0.5, fused=True)
    make_step(model=model, optimizer=optimizer)


def test_momentum_of_a_parameter_that_joins_an_unfused_group():
    """It starts from its first gradient, although another group of the optimizer is fused."""
    fused, unfused, late = (Parameter(torch.ones(2)) for _ in range(3))
    model = ParameterList([fused, unfused, late])
    fused_group = {"params": [fused], "fused": True}
    unfused_group = {"params": [unfused, late], "dampening": 0.5}
    optimizer = SGD([fused_group, unfused_group], lr=0.25, momentum=0.5)

    def total(parameters, uses_late):
        loss = parameters[0].sum() + parameters[1].sum()
        if uses_late:
            loss = loss + parameters[2].sum()
        return loss

    constant = StagedCurve([(100,)], start=1.0)
    step = TrainStep(model, optimizer, total, constant)
    step(False)
    step(True)
    assert late.tolist() == [0.75, 0.75]
