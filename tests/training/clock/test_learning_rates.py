"""Learning rates follow the curve at the number of applied updates, through skips and in every mode."""

import copy

import numpy as np
import pytest
import torch
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, lrs_of, make_step, train
from support.training.trees import equal_trees

from torch_bridge import TrainStep

# Runs may continue past the end of a curve; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")


def test_second_step_keeps_the_peak() -> None:
    model = Net()
    optimizer = make_optimizer("adamw", model)
    for build in range(3):
        step = TrainStep(model, optimizer, mean_loss, CURVE, initial_updates=0)
        peaks = [group["initial_lr"] for group in optimizer.param_groups]
        assert peaks == [float(np.float32(0.01))], build
        rates = [result.lr.item() for result in train(step, batches(6))]
        assert rates == [float(CURVE(applied) * np.float32(0.01)) for applied in range(6)]


def test_optimizer_load_keeps_the_curves_lr() -> None:
    data = batches(12)
    for name in ("adamw", "momentum", "rmsprop"):
        step, reference = make_step(name), make_step(name)
        train(reference, data[:4])
        train(step, data[:4])
        step.optimizer.load_state_dict(copy.deepcopy(step.optimizer.state_dict()))
        expected, results = train(reference, data[4:]), train(step, data[4:])
        assert equal_trees(expected, results)


def test_unfused_optimizer_continues_at_curves_lr() -> None:
    step, data = make_step(), batches(12)
    train(step, data[:6])
    state = copy.deepcopy(step.optimizer.state_dict())
    for group in state["param_groups"]:
        group["fused"] = False
    step.optimizer.load_state_dict(state)
    for applied, batch in enumerate(data[6:], 6):
        step(nonfinite(batch))
        result, expected = step(batch), lrs_of(step, applied).tolist()
        assert result.applied == applied + 1
        assert result.lr.tolist() == expected
        assert [float(group["lr"]) for group in step.optimizer.param_groups] == expected


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
def test_tensor_lr_in_defaults_stays_the_peak(name: str) -> None:
    """A group that is added after the run takes it, so it must not hold a decayed learning rate."""
    model, lr = Net(), torch.tensor(0.01)
    options = {"foreach": False} if name == "plain adam" else {}  # torch has no foreach for a tensor lr
    step = make_step(name, model, optimizer=make_optimizer(name, model, lr=lr, **options))
    train(step, batches(3))
    step.load_state_dict(step.state_dict())
    step.set_peak(0.5)
    train(step, batches(1))
    assert step.optimizer.defaults["lr"] is lr
    assert equal_trees(lr, torch.tensor(0.01))
