"""The clock in a training step: rules see the loss in float32, and the peaks are the user's."""

import copy
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.holds.held import CURVE as STAGES, PATIENT, clocks_of, told
from support.schedulers.runs import learning_rate, optimizer_with
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, lrs_of, make_step, train
from support.training.trees import equal_trees, through_file
from torch import nn
from torch._dynamo.utils import counters

from plateau_jax import HoldBelow
from torch_bridge import TrainStep, lambda_lr

# Runs may continue past the end of a curve; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

names = pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])


# Holds.


@pytest.mark.parametrize("form", [float, partial(torch.tensor, dtype=torch.float64)])
def test_float64_metric_is_rounded_to_float32(form: Any) -> None:
    """In float64 this loss would be above the threshold."""
    metrics, hold = [form(0.1 + 2e-9)] * 5, HoldBelow(0.1, 3)
    scheduler = lambda_lr(optimizer_with([0.1]), STAGES, hold=hold)
    clocks: list[int] = []
    for metric in metrics:
        clocks.append(scheduler.clock)
        scheduler.optimizer.step()
        scheduler.step(metric)
    assert clocks == [0, 0, 0, 0, 1]
    if form is not float:
        step = make_step("sgd", loss_fn=told, curve=STAGES, hold=hold)
        assert [int(result.clock) for result in train(step, metrics)] == clocks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_held_clock_compiles_once() -> None:
    losses = np.random.default_rng(0).choice([0.5, 0.75, 1.0], 30).tolist()
    with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager")):
        step = make_step("adamw", loss_fn=told, curve=STAGES, hold=PATIENT, compile=True)
        before = counters["stats"]["unique_graphs"]
        clocks = [int(step(torch.tensor(losses[0])).clock)]
        graphs = counters["stats"]["unique_graphs"]
        assert graphs > before
        clocks += [int(step(torch.tensor(loss)).clock) for loss in losses[1:]]
    assert clocks == clocks_of(PATIENT, STAGES, losses)[:-1]
    assert counters["stats"]["unique_graphs"] == graphs


def test_hold_ignores_default_device() -> None:
    with torch.device("meta"):
        model = Net().to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        step = TrainStep(model, make_optimizer("adamw", model), told, STAGES, hold=PATIENT)
        losses = [torch.tensor(0.75, device="cpu")] * 8
        assert [int(result.clock) for result in train(step, losses)] == [0, 1, 2, 3, 3, 3, 3, 4]
        step.load_state_dict(step.state_dict())


@pytest.mark.parametrize("name", ["adamw", "plain adam"])
def test_interrupted_decision_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, uninterrupted = (make_step(name, curve=STAGES, hold=PATIENT) for _ in range(2))
    data = batches(8)
    train(step, data[:5])
    train(uninterrupted, data[:5])
    state = step.state_dict()
    with monkeypatch.context() as patched:
        patched.setattr(step._clock._hold, "decide_hold", lambda *_: {}[0])
        with pytest.raises(KeyError):
            step(data[5])
    with pytest.raises(RuntimeError, match="an update was interrupted"):
        step(data[5])
    step.load_state_dict(state)
    assert equal_trees(train(step, data[5:]), train(uninterrupted, data[5:]))


# Peaks.


def test_each_group_has_its_peak() -> None:
    model, (batch,) = Net(), batches(1)
    groups = [{"params": model.first.parameters(), "lr": 0.02}, {"params": model.last.parameters()}]
    step = TrainStep(model, torch.optim.SGD(groups, lr=0.01), mean_loss, CURVE, initial_updates=3)
    assert step(batch).lr.tolist() == [learning_rate(peak, CURVE, 3) for peak in (0.02, 0.01)]
    step.set_peak([0.5, 0.125])
    assert step(batch).lr.tolist() == [learning_rate(peak, CURVE, 4) for peak in (0.5, 0.125)]
    assert [group["initial_lr"] for group in step.optimizer.param_groups] == [0.5, 0.125]


@names
def test_initial_updates_continue_another_loop(name: str) -> None:
    """A hand-written loop, continued by the step, equals the step from the start."""
    data = batches(8)
    expected = train(make_step(name), data)
    model = Net()
    optimizer = make_optimizer(name, model)
    train(TrainStep(model, optimizer, mean_loss, CURVE), data[:5])
    step = TrainStep(model, optimizer, mean_loss, CURVE, initial_updates=5)
    assert equal_trees(train(step, data[5:]), expected[5:])
    state = step.state_dict()
    assert (state["applied"], state["consumed"], state["clock"]) == (8, 8, 8)


def test_initial_updates_set_held_clock() -> None:
    step, (batch,) = make_step(initial_updates=7, hold=HoldBelow(1e9, steps=3)), batches(1)
    assert step(batch).lr.item() == learning_rate(0.01, CURVE, 7)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad])
@pytest.mark.parametrize("loaded", [False, True])
def test_decayed_lr_is_rejected_as_peak(kind: Any, loaded: bool) -> None:
    model, (batch,) = Net(), batches(1)
    optimizer = kind(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 0.01 * CURVE(step)
        mean_loss(model, batch).backward()
        optimizer.step()
    if loaded:
        state = through_file(optimizer.state_dict())
        optimizer = kind(model.parameters(), lr=0.01)
        optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match=r'initial_updates = 3, but param_groups\[0\].*"initial_lr"'):
        TrainStep(model, optimizer, mean_loss, CURVE, initial_updates=3)
    optimizer.param_groups[0]["initial_lr"] = 0.01
    result = TrainStep(model, optimizer, mean_loss, CURVE, initial_updates=3)(batch)
    assert result.lr.item() == learning_rate(0.01, CURVE, 3)


def test_second_step_keeps_the_peak() -> None:
    model = Net()
    optimizer = make_optimizer("adamw", model)
    for build in range(3):
        step = TrainStep(model, optimizer, mean_loss, CURVE, initial_updates=0)
        peaks = [group["initial_lr"] for group in optimizer.param_groups]
        assert peaks == [float(np.float32(0.01))], build
        lrs = [result.lr.item() for result in train(step, batches(6))]
        assert lrs == [learning_rate(0.01, CURVE, applied) for applied in range(6)]


@names
def test_optimizer_load_keeps_the_curves_lr(name: str) -> None:
    data = batches(12)
    step, reference = make_step(name), make_step(name)
    train(reference, data[:4])
    train(step, data[:4])
    step.optimizer.load_state_dict(copy.deepcopy(step.optimizer.state_dict()))
    assert equal_trees(train(reference, data[4:]), train(step, data[4:]))


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
