"""The clock in a training step: rules see the loss in float32, and the peaks are the user's."""

import pytest
import torch
from support.holds.held import CURVE as STAGES, PATIENT, told
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees

from plateau_jax import HoldBelow
from torch_bridge import TrainStep


def test_float64_loss_is_rounded_to_float32() -> None:
    """In float64 it would be above the threshold."""
    step = make_step("sgd", loss_fn=told, curve=STAGES, hold=HoldBelow(0.1, 3))
    losses = [torch.tensor(0.1 + 2e-9, dtype=torch.float64)] * 5
    assert [int(result.clock) for result in train(step, losses)] == [0, 0, 0, 0, 1]


def test_hold_ignores_default_device() -> None:
    model, losses = Net(), [torch.tensor(0.75)] * 8
    optimizer = make_optimizer("adamw", model)
    with torch.device("meta"):
        step = TrainStep(model, optimizer, told, STAGES, hold=PATIENT)
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


def test_initial_updates_set_held_clock() -> None:
    step, (batch,) = make_step(initial_updates=7, hold=HoldBelow(1e9, steps=3)), batches(1)
    assert step(batch).lr.item() == learning_rate(0.01, CURVE, 7)


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
