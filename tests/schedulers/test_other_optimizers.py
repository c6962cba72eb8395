"""Optimizers of other libraries, which wrap a torch optimizer."""

import pytest
import pytorch_optimizer
import torch
from support.raises import raises
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim import SGD
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from plateau_jax import PlateauCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.slow

CURVE = PlateauCurve(30, warmup_steps=6, plateaus=[(20, 30)], min_lr_ratio=0.1)
PEAKS = [0.5, 0.25, 0.125]


def start(wrapper):
    """Return SGD, its wrapper, and a scheduler of the wrapper."""
    inner = optimizer_with(PEAKS, momentum=0.5, weight_decay=0.5)
    optimizer = getattr(pytorch_optimizer, wrapper)(inner)
    if hasattr(optimizer, "train"):  # a schedule-free optimizer
        optimizer.train()
    return inner, optimizer, lambda_lr(optimizer, CURVE)


@pytest.mark.parametrize(
    "wrapper", ["Lookahead", "OrthoGrad", "ScheduleFreeWrapper", "PCGrad", "TRAC"]
)
def test_wrapped_optimizer_trains_with_the_curve(wrapper):
    """It resumes after nine updates, and gets a group after 20."""
    inner, optimizer, scheduler = start(wrapper)
    for step in range(20):
        if step == 9:
            states = through_file([optimizer.state_dict(), scheduler.state_dict()])
            inner, optimizer, scheduler = start(wrapper)
            optimizer.load_state_dict(states[0])
            scheduler.load_state_dict(states[1])
        assert lrs_of(inner) == [learning_rate(peak, CURVE, step) for peak in PEAKS]
        advance(optimizer, scheduler)
    assert scheduler.get_last_lr() == lrs_of(inner)
    follow(optimizer, "weight_decay", CURVE).step()
    assert inner.param_groups[0]["weight_decay"] == learning_rate(0.5, CURVE, 1)

    if wrapper == "TRAC":
        return  # it raises an error at the step after a group was added
    (new_group,) = optimizer_with([1.0]).param_groups
    optimizer.add_param_group(new_group)
    advance(optimizer, scheduler)
    assert lrs_of(inner) == [learning_rate(peak, CURVE, 21) for peak in (*PEAKS, 1.0)]


@raises(ValueError, "LayerWiseDummyOptimizer")
def test_dummy_of_layerwise_optimizers():
    """Transformers steps the real optimizers in hooks, where no scheduler reaches them."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = SGD([parameter], lr=0.5)
    dummy = LayerWiseDummyOptimizer({parameter: optimizer}, lr=0.5)
    lambda_lr(dummy, CURVE)
