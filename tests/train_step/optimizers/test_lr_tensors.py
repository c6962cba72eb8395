"""Groups whose learning rate is a tensor: they get another one, and every update fills it.

`test_every_run.py` has the relations that hold for all kinds of runs.
"""

from functools import partial

import pytest
import torch
from support.training.models import Net, batches
from support.training.optimizers import NeedsTensor, make_optimizer
from support.training.steps import CURVE, make_step, through_file, train
from support.trees import assert_equal_trees
from torch.optim import AdamW

fused_or_not = pytest.mark.parametrize(
    "kind", [partial(AdamW, fused=True), NeedsTensor], ids=["fused", "on the host"]
)


def lr_tensors(step):
    return [group["lr"] for group in step.optimizer.param_groups]


@fused_or_not
def test_number_in_a_state_fills_the_tensor(kind):
    """Also one that an optimizer with a number has saved, or a program has assigned."""
    model = Net()
    optimizer = kind(model.parameters(), lr=torch.tensor(0.1))
    step = make_step(model=model, optimizer=optimizer)
    (lr,) = lr_tensors(step)
    data = batches(4)
    for batch in data[:3]:
        step(batch)
    state = through_file(step.state_dict())
    saved = state["optimizer"]["param_groups"][0]
    assert saved["lr"].item() == CURVE.learning_rate(3, 0.1)
    saved["lr"] = saved["lr"].item()
    for batch in data:
        step(batch)
    assert lr.item() != saved["lr"]
    step.load_state_dict(state)
    assert step.optimizer.param_groups[0]["lr"] is lr
    assert lr.item() == saved["lr"]
    step.optimizer.param_groups[0]["lr"] = 0.5
    result = step(data[3])
    assert step.optimizer.param_groups[0]["lr"] is lr
    assert lr.item() == result.lr.item()


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
def test_tensor_lr_in_defaults_stays_the_peak(name):
    """A group that is added after the run takes it, so it must not hold a decayed learning rate."""
    model = Net()
    options = {}
    if name == "plain adam":
        options["foreach"] = False  # torch has no foreach for a tensor lr
    optimizer = make_optimizer(name, model, lr=torch.tensor(0.01), **options)
    step = make_step(name, model, optimizer=optimizer)
    train(step, batches(3))
    step.load_state_dict(step.state_dict())
    step.set_peak(0.5)
    train(step, batches(1))
    assert_equal_trees(step.optimizer.defaults["lr"], torch.tensor(0.01))
