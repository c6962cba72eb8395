"""Learning rates follow the curve at the number of applied updates, through skips and in every mode."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from support.examples import examples
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.optimizers import OPTIMIZERS, make_optimizer
from support.training.steps import CURVE, lrs_of, make_step, skip_patterns, train
from support.training.trees import equal_trees

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, lambda_lr

# Runs may continue past the end of a curve; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@examples(6)
@given(skips=skip_patterns(60))
def test_lr_matches_lambda_lr(name: str, precision: str, skips: list[bool]) -> None:
    model = Net()
    kind, options = OPTIMIZERS[name]
    curves = [CURVE, PlateauCurve(25, decay_shape="linear"), PlateauCurve(10**4, warmup_steps=1000)]
    groups = [
        {"params": model.first.parameters(), "lr": 0.01},
        {"params": [model.last.weight], "lr": 1 / 3},
        {"params": [model.last.bias], "lr": 0.0},
    ]
    model.last.weight.requires_grad_(False)
    reference = torch.optim.SGD([{"params": [torch.zeros(())], "lr": lr} for lr in (0.01, 1 / 3, 0.0)])
    scheduler = lambda_lr(reference, curves)
    reference.step()
    (batch,) = batches(1)
    applied = 0
    step = TrainStep(model, kind(groups, **options), mean_loss, curves, precision=precision)
    for number, skip in enumerate(skips, 1):
        result = step(nonfinite(batch) if skip else batch)
        assert result.lr.dtype == torch.float32
        assert result.lr.tolist() == scheduler.get_last_lr()
        used = [float(group["lr"]) for group in step.optimizer.param_groups]
        if name != "rmsprop" or not skip:
            assert used == result.lr.tolist()
        applied += not skip
        assert (int(result.applied), int(result.skipped)) == (applied, number - applied)
        if not skip:
            scheduler.step()


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
