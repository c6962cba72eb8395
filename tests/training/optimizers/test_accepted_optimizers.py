"""An optimizer in two steps, and optimizers with hooks or replaced methods."""

import pytest
import torch
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import make_step, train
from support.trees import equal_trees
from torch.optim import AdamW

from plateau_jax import PlateauCurve
from torch_bridge import follow, lambda_lr

CURVES = [PlateauCurve(40, warmup_steps=4), PlateauCurve(30, decay_shape="linear")]


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
def test_two_steps_share_one_optimizer(name):
    """Each has a separate clock, and attaches its learning rates when it is called."""
    model = Net()
    optimizer = make_optimizer(name, model)
    (group,) = optimizer.param_groups
    peak = group["lr"]
    steps = [make_step(model=model, optimizer=optimizer, curve=curve) for curve in CURVES]
    for applied, batch in enumerate(batches(6)):
        for step, curve in zip(steps, CURVES, strict=True):
            lr = step(batch).lr.item()
            assert lr == float(group["lr"])
            assert lr == learning_rate(peak, curve, applied)


def test_other_step_wrappers_are_accepted():
    """A user's replacement of `step`, and a curve for another hyperparameter."""
    step = make_step()
    first, *rest = batches(3)
    step(first)
    calls = []
    inner = step.optimizer.step

    def counted_step(*arguments):
        calls.append(arguments)
        inner(*arguments)

    step.optimizer.step = counted_step
    follow(step.optimizer, "weight_decay", CURVES[0])
    train(step, rest)
    assert len(calls) == 2


@pytest.mark.parametrize("fused", [False, True])
def test_hook_of_the_optimizer_clips_by_value(fused):
    """As docs/training_step.md says: the hook sees the sum of the micro-batches, unscaled."""
    limit = 0.01

    def clip_by_value(optimizer, *_):
        for group in optimizer.param_groups:
            torch.nn.utils.clip_grad_value_(group["params"], limit)

    data = batches(6)
    by_step = Net()
    by_hand = Net()
    optimizer = AdamW(by_step.parameters(), lr=0.01, fused=fused)
    optimizer.register_step_pre_hook(clip_by_value)
    step = make_step(model=by_step, optimizer=optimizer, curve=CURVES[0])
    for first, second in zip(data[::2], data[1::2], strict=True):
        step(first, second)

    lr = 0.01
    if fused:  # its kernels round a float differently
        lr = torch.tensor(lr)
    optimizer = AdamW(by_hand.parameters(), lr=lr, fused=fused)
    scheduler = lambda_lr(optimizer, CURVES[0])
    for first, second in zip(data[::2], data[1::2], strict=True):
        for batch in (first, second):
            loss = mean_loss(by_hand, batch) / 2
            loss.backward()
        torch.nn.utils.clip_grad_value_(by_hand.parameters(), limit)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    assert equal_trees(by_step.state_dict(), by_hand.state_dict())
