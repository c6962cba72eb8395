"""A list of one optimizer, one in two steps, and optimizers with hooks or replaced methods."""

import pytest
import torch
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import make_step, train
from support.trees import equal_trees
from torch.optim import SGD, AdamW, RMSprop

from plateau_jax import PlateauCurve
from torch_bridge import follow, lambda_lr

CURVES = [PlateauCurve(40, warmup_steps=4), PlateauCurve(30, decay_shape="linear")]


@pytest.mark.parametrize("kind", [AdamW, RMSprop])
def test_sequence_of_one_equals_single_optimizer(kind):
    def optimizer_of(model):
        groups = [{"params": model.first.parameters()}, {"params": model.last.parameters()}]
        return kind(groups, lr=0.01)

    model = Net()
    optimizer = optimizer_of(model)
    single = make_step(model=model, optimizer=optimizer, curve=CURVES)
    model = Net()
    optimizer = optimizer_of(model)
    listed = make_step(model=model, optimizer=(optimizer,), curve=(CURVES,))
    results = train(listed, batches(3))
    expected = train(single, batches(3))
    assert equal_trees(results, expected)
    assert equal_trees(single.state_dict(), listed.state_dict())
    assert listed.optimizer is listed.optimizers[0]
    listed.load_state_dict(single.state_dict())
    single.load_state_dict(listed.state_dict())


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


class WithNumbers(SGD):
    """Has attributes with the names of SAM's methods."""

    first_step = 0
    second_step = 100


class WithFirstStep(SGD):
    def first_step(self): ...


@pytest.mark.parametrize("kind", [WithNumbers, WithFirstStep])
def test_optimizer_that_only_resembles_sam_is_stepped(kind):
    model = Net()
    optimizer = kind(model.parameters(), lr=0.1)
    step = make_step(model=model, optimizer=optimizer)
    reference = make_step("sgd")
    (group,) = reference.optimizer.param_groups
    group["fused"] = False
    results = train(step, batches(3))
    expected = train(reference, batches(3))
    assert equal_trees(results, expected)


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
