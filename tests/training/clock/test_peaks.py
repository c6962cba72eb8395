"""A new peak in the middle of a run, and a clock that starts there."""

from typing import Any

import pytest
import torch
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees, through_file

from plateau_jax import HoldBelow
from torch_bridge import TrainStep

NAMES = ["adamw", "momentum", "rmsprop"]


def test_set_peak_takes_one_peak_per_group() -> None:
    model = Net()
    groups = [{"params": module.parameters()} for module in (model.first, model.last)]
    step = TrainStep(model, torch.optim.AdamW(groups, lr=0.01, fused=True), mean_loss, CURVE)
    (batch,) = batches(1)
    step.set_peak([0.5, 0.125])
    assert step(batch).lr.tolist() == [CURVE(0) * 0.5, CURVE(0) * 0.125]
    assert [group["initial_lr"] for group in step.optimizer.param_groups] == [0.5, 0.125]
    for wrong in ([0.5], [0.5, 0.1, 0.1], -1.0, [0.5, float("nan")], 1e-39):
        with pytest.raises(ValueError, match="peak"):
            step.set_peak(wrong)
    for wrong in ("1", None, [0.5, "1"]):
        with pytest.raises(TypeError, match="peak"):
            step.set_peak(wrong)  # type: ignore[arg-type]  (that is what is tested)
    assert step(batch).lr.tolist() == [CURVE(1) * 0.5, CURVE(1) * 0.125]


@pytest.mark.parametrize("name", NAMES)
def test_initial_updates_continue_another_loop(name: str) -> None:
    """A hand-written loop, continued by the step, equals the step from the start."""
    reference, data = make_step(name), batches(8)
    expected = train(reference, data)
    model = Net()
    optimizer = make_optimizer(name, model)
    first = TrainStep(model, optimizer, mean_loss, CURVE)
    train(first, data[:5])
    step = TrainStep(model, optimizer, mean_loss, CURVE, initial_updates=5)
    assert equal_trees(train(step, data[5:]), expected[5:])
    assert equal_trees(step.state_dict()["applied"], 8)


def test_initial_updates_set_held_clock() -> None:
    step, (batch,) = make_step(initial_updates=7, hold=HoldBelow(1e9, steps=3)), batches(1)
    assert step(batch).lr.item() == pytest.approx(CURVE(7) * 0.01)


KINDS = [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD]


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
    assert result.lr.item() == pytest.approx(CURVE(3) * 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_optimizer_has_its_peaks_in_lr(kind: Any) -> None:
    model, (batch,) = Net(), batches(1)
    groups = [{"params": model.first.parameters(), "lr": 0.02}, {"params": model.last.parameters()}]
    step = TrainStep(model, kind(groups, lr=0.01), mean_loss, CURVE, initial_updates=3)
    assert step(batch).lr.tolist() == pytest.approx([CURVE(3) * 0.02, CURVE(3) * 0.01])
