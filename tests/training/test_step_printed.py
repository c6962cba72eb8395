"""What a training step shows of itself: its curve, its step and its learning rate, in one line."""

import pytest
import torch
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.reads import reads_of
from support.training.steps import CURVE, make_step, train

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_print_shows_curve_step_and_lr(name: str) -> None:
    step, (batch,) = make_step(name), batches(1)
    assert reads_of(lambda: repr(step)) == 0
    assert repr(step) == f"TrainStep({CURVE})"
    train(step, [batch, batch, nonfinite(batch)])
    lr = float(f"{CURVE(2) * 0.01:.6g}")
    assert str(step) == f"TrainStep({CURVE}, clock=2, lr={lr}, applied=2, skipped=1)"


def test_print_shows_what_was_consumed() -> None:
    step = make_step(unit=2, count=lambda batch: 5)
    train(step, batches(3))
    lr = float(f"{CURVE(7) * 0.01:.6g}")
    assert str(step).endswith(f"clock=7, lr={lr}, applied=3, skipped=0, consumed=15, unit=2)")


def test_print_of_several_curves_is_one_line() -> None:
    model, other = Net(), PlateauCurve(500)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.5) for module in (model.first, model.last)]
    same = TrainStep(model, optimizers, mean_loss, other)
    assert str(same).startswith(f"TrainStep({other}, clock=0, lr=0.5, ")
    assert "lr=[0.25, 0.5], " in str(TrainStep(model, optimizers, mean_loss, [CURVE, other]))
    step = make_step(curve=PlateauCurve(10**6, plateaus=[(number, 0.1) for number in range(90)]))
    for shown in (repr(step), str(step)):
        assert len(shown) < 400
        assert "\n" not in shown
