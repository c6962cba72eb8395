"""Schedulers attached to a training step's optimizer, before or after, are rejected; no weight changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning_fabric import Fabric
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, state_kept_by_skips, train
from support.training.trees import equal_trees
from torch.optim import Optimizer, lr_scheduler

from torch_bridge import TrainStep, follow, lambda_lr

pytestmark = pytest.mark.slow

_ATTACH: dict[str, Callable[[Any], Any]] = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 10),
    "constant": lr_scheduler.ConstantLR,
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, 10, cycle_momentum=False),
    "of this project": lambda optimizer: lambda_lr(optimizer, CURVE),
}
_WRAP: dict[str, Callable[[Optimizer], Any]] = {
    "plain": lambda optimizer: optimizer,
    "Lightning's": LightningOptimizer,
    "Fabric's": lambda optimizer: Fabric(accelerator="cpu", devices=1).setup_optimizers(optimizer),
    "accelerate's": lambda optimizer: Accelerator(cpu=True).prepare(optimizer),
    "two": lambda optimizer: LightningOptimizer(Accelerator(cpu=True).prepare(optimizer)),
}


# Each scheduler on a plain optimizer, and one of them on each wrapper.
_CASES = [(attach, "plain") for attach in _ATTACH] + [("step", wrap) for wrap in _WRAP if wrap != "plain"]


@pytest.mark.parametrize(("attach", "wrap"), _CASES)
@pytest.mark.parametrize("outside", [True, False])
def test_scheduler_attached_before_is_rejected(attach: str, wrap: str, outside: bool) -> None:
    model = Net()
    optimizer = make_optimizer("adamw", model)
    wrapped = _WRAP[wrap](optimizer)
    _ATTACH[attach](wrapped if outside else optimizer)
    group = dict(optimizer.param_groups[0])
    with pytest.raises(
        ValueError, match=r"a scheduler is attached to the optimizer.* Leave the scheduler out"
    ):
        TrainStep(model, wrapped, mean_loss, CURVE)
    assert optimizer.param_groups[0] == group


@pytest.mark.parametrize(("attach", "wrap"), _CASES)
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_scheduler_attached_after_is_rejected(attach: str, wrap: str, name: str, outside: bool) -> None:
    model = Net()
    optimizer = make_optimizer(name, model)
    wrapped = _WRAP[wrap](optimizer)
    step, data = TrainStep(model, wrapped, mean_loss, CURVE), batches(4)
    expected = train(make_step(name), data)
    for number in (0, 2):  # before the first update, and later
        given = wrapped if outside else optimizer
        _ATTACH[attach](given)
        before = state_kept_by_skips(step)
        for call in (lambda: step(data[0]), lambda: step(*data), lambda: step.set_peak(0.5)):
            with pytest.raises(ValueError, match=r"a scheduler is attached .* `del optimizer\.step`"):
                call()
        assert equal_trees(state_kept_by_skips(step), before)
        del given.step  # as the message says
        assert equal_trees(train(step, data[number : number + 2]), expected[number : number + 2])


def test_scheduler_on_last_optimizer_is_rejected() -> None:
    model = Net()
    optimizers = [torch.optim.AdamW(part.parameters(), fused=True) for part in (model.first, model.last)]
    step, (batch,) = make_step(model=model, optimizer=optimizers), batches(1)
    step(batch)
    before = state_kept_by_skips(step)
    lr_scheduler.ConstantLR(optimizers[1])
    with pytest.raises(ValueError, match="a scheduler is attached"):
        step(batch)
    assert equal_trees(state_kept_by_skips(step), before)


@pytest.mark.parametrize("attached_first", [True, False])
def test_scheduler_attached_around_load_is_rejected(attached_first: bool) -> None:
    step, data = make_step(), batches(2)
    step(data[0])
    state = step.state_dict()
    other = make_step()
    before = state_kept_by_skips(other)
    if attached_first:
        lr_scheduler.ConstantLR(other.optimizer)
        with pytest.raises(ValueError, match="a scheduler is attached"):
            other.load_state_dict(state)
        assert equal_trees(state_kept_by_skips(other), before)
        return
    other.load_state_dict(state)
    lr_scheduler.ConstantLR(other.optimizer)
    with pytest.raises(ValueError, match="a scheduler is attached"):
        other(data[1])


def test_other_step_wrappers_are_accepted() -> None:
    """A user's replacement of `step`, and a curve for another hyperparameter."""
    step, data = make_step(), batches(3)
    calls: list[int] = []
    inner: Any = step.optimizer.step

    def counted(*arguments: Any) -> None:
        calls.append(1)
        inner(*arguments)

    step(data[0])
    step.optimizer.step = counted  # type: ignore[method-assign]  (as profilers do it)
    follow(step.optimizer, "weight_decay", CURVE)
    train(step, data[1:])
    assert len(calls) == 2
