"""Optimizers of other libraries, which wrap a torch optimizer."""

from typing import Any

import pytest
import pytorch_optimizer
import torch
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim import SGD
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from plateau_jax import PlateauCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.slow

CURVE = PlateauCurve(30, warmup_steps=6, plateaus=[(20, 30)], min_lr_ratio=0.1)
PEAKS = [0.5, 0.25, 0.125]
SAVED_AFTER, UPDATES = 9, 20

WRAPPERS = "Lookahead", "OrthoGrad", "ScheduleFreeWrapper", "PCGrad", "TRAC"


def start(wrapper: str) -> tuple[Any, Any, Any, list[list[float]]]:
    """Return SGD, a wrapper around it, a scheduler, and the list of the learning rates of each update."""
    inner, used = optimizer_with(PEAKS, momentum=0.5, weight_decay=0.5), list[list[float]]()
    optimizer = getattr(pytorch_optimizer, wrapper)(inner)
    if hasattr(optimizer, "train"):  # a schedule-free optimizer
        optimizer.train()
    scheduler = lambda_lr(optimizer, CURVE)
    # The scheduler's own hook, if it has one, comes first.
    inner.register_step_pre_hook(lambda *_: used.append(lrs_of(inner)))
    return inner, optimizer, scheduler, used


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_optimizer_trains_with_the_curve(wrapper: str) -> None:
    inner, optimizer, scheduler, used = start(wrapper)
    _, *resumed, used_later = start(wrapper)
    advance(optimizer, scheduler, SAVED_AFTER)
    for part, saved in zip(resumed, (optimizer, scheduler), strict=True):
        part.load_state_dict(through_file(saved.state_dict()))
    for parts in ((optimizer, scheduler), resumed):
        advance(*parts, UPDATES - SAVED_AFTER)
    expected = [[learning_rate(peak, CURVE, step) for peak in PEAKS] for step in range(UPDATES)]
    assert used == expected
    assert used_later == expected[SAVED_AFTER:]
    assert scheduler.get_last_lr() == lrs_of(inner)
    follow(optimizer, "weight_decay", CURVE).step()
    assert inner.param_groups[0]["weight_decay"] == learning_rate(0.5, CURVE, 1)
    if wrapper == "TRAC":
        return  # it raises an error at the step after a group was added
    optimizer.add_param_group(optimizer_with([1.0]).param_groups[0])
    advance(optimizer, scheduler)
    assert lrs_of(inner) == [learning_rate(peak, CURVE, UPDATES + 1) for peak in (*PEAKS, 1.0)]


def test_dummy_of_layerwise_optimizers_is_rejected() -> None:
    """Transformers steps the real optimizers in hooks, where no scheduler reaches them."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = LayerWiseDummyOptimizer({parameter: SGD([parameter], lr=0.5)}, lr=0.5)
    with pytest.raises(ValueError, match="LayerWiseDummyOptimizer"):
        lambda_lr(optimizer, CURVE)
