"""Optimizers that a trainer has wrapped are rejected; those inside are accepted."""

import pytest
from accelerate import Accelerator
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning_fabric import Fabric
from support.raises import raises
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, train
from support.trees import assert_equal_trees

from torch_bridge import TrainStep

pytestmark = pytest.mark.slow


def fabric(model, optimizer):
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    _, optimizer = fabric.setup(model, optimizer)
    return optimizer


def accelerate(_, optimizer):
    return Accelerator(cpu=True).prepare(optimizer)


def lightning(_, optimizer):
    return LightningOptimizer(optimizer)


@pytest.mark.parametrize("wrap", [fabric, accelerate, lightning])
def test_wrapped_optimizer_is_rejected(wrap):
    model = Net()
    optimizer = make_optimizer("adamw", model)
    wrapped = wrap(model, optimizer)
    with raises(TypeError, "is a trainer's wrapper", "optimizer.optimizer", "use Fabric"):
        TrainStep(model, wrapped, mean_loss, CURVE)
    assert wrapped.optimizer is optimizer
    data = batches(3)
    results = train(TrainStep(model, optimizer, mean_loss, CURVE), data)
    expected = train(make_step(), data)
    assert_equal_trees(results, expected)
