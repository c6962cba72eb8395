"""An optimizer in two steps, and optimizers with wrappers, hooks or replaced methods."""

import pytest
import torch
from support.schedulers.runs import learning_rate
from support.training.by_hand import ByHand
from support.training.kind import Kind
from support.training.models import Net, batches
from support.training.optimizers import make_optimizer
from support.training.steps import make_step, train
from support.trees import assert_equal_trees

from plateau_jax import PlateauCurve
from torch_bridge import follow
from torch_bridge.training.train_step.optimizer_checks import unwrap_trainers

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


class Wrapper(torch.optim.Optimizer):
    """Like Lookahead, it may add to the step of the optimizer inside."""

    __module__ = "lightning_utils"

    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_wrapper_of_a_user_is_not_unwrapped():
    wrapper = Wrapper(make_optimizer("sgd", Net()))
    assert unwrap_trainers(wrapper) is wrapper


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


def clip_by_value(optimizer, *_):
    for group in optimizer.param_groups:
        torch.nn.utils.clip_grad_value_(group["params"], 0.01)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["adamw", "plain adam"])
def test_hook_of_the_optimizer_clips_by_value(name, precision):
    """As docs/training_step.md says: the hook sees the sum of the micro-batches, unscaled."""
    kind = Kind(name, accumulation=2, precision=precision)
    step, by_hand = kind.build(), ByHand(kind)
    for run in (step, by_hand):
        (optimizer,) = run.optimizers
        optimizer.register_step_pre_hook(clip_by_value)
    for micro_batches in kind.updates(3):
        assert_equal_trees(tuple(step(*micro_batches)), by_hand.update(micro_batches))
    assert_equal_trees(step.model.state_dict(), by_hand.model.state_dict())
