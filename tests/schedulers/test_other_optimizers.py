"""Optimizers of other libraries, which wrap a torch optimizer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import pytorch_optimizer
import torch
from support.schedulers.runs import advance, learning_rate, lrs_of
from support.training.trees import through_file
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from plateau_jax import PlateauCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.slow

CURVE = PlateauCurve(30, warmup_steps=6, plateaus=[(20, 30)], min_lr_ratio=0.1)
# In float32 without rounding, so that torch's products with the curve are exact too.
PEAKS = [0.5, 0.25, 0.125]
SAVED_AFTER, UPDATES = 9, 20


WRAPPERS: dict[str, Callable[[Optimizer], Any]] = {
    "Lookahead": pytorch_optimizer.Lookahead,
    "OrthoGrad": pytorch_optimizer.OrthoGrad,
    "ScheduleFreeWrapper": pytorch_optimizer.ScheduleFreeWrapper,
    "PCGrad": pytorch_optimizer.PCGrad,
    "TRAC": pytorch_optimizer.TRAC,
}


class Run:
    """A wrapper around SGD, and the learning rates and weights of each update.

    Args:
        wrap: Builds the wrapper.
        build: Builds the scheduler from the wrapper.
    """

    def __init__(self, wrap: Callable[[Optimizer], Any], build: Callable[[Any], LRScheduler]) -> None:
        self.inner = SGD(list(map(self.group, PEAKS)), momentum=0.5, weight_decay=0.5)
        self.optimizer = wrap(self.inner)
        if hasattr(self.optimizer, "train"):  # a schedule-free optimizer
            self.optimizer.train()
        self.scheduler = build(self.optimizer)
        self.used: list[list[float]] = []
        self.weights: list[list[list[float]]] = []
        # The scheduler's own hook, if it has one, comes first.
        self.inner.register_step_pre_hook(lambda *_: self.used.append(lrs_of(self.inner)))

    @staticmethod
    def group(peak: float) -> dict[str, Any]:
        parameter = torch.nn.Parameter(torch.full((2,), 1.0 + peak))
        return {"params": [parameter], "lr": peak}

    def advance(self, updates: int) -> None:
        for _ in range(updates):
            for group in self.inner.param_groups:
                (parameter,) = group["params"]
                parameter.grad = parameter.detach() * torch.tensor([0.5, -0.25])
            advance(self.optimizer, self.scheduler)
            self.weights.append([group["params"][0].tolist() for group in self.inner.param_groups])

    def load(self, other: "Run") -> None:
        parameters = [group["params"][0] for group in self.inner.param_groups]
        for parameter, weights in zip(parameters, other.weights[-1], strict=True):
            parameter.data.copy_(torch.tensor(weights))
        for part, saved in ((self.optimizer, other.optimizer), (self.scheduler, other.scheduler)):
            part.load_state_dict(through_file(saved.state_dict()))


def by_curve(optimizer: Any) -> LRScheduler:
    return lambda_lr(optimizer, CURVE)


def by_torch(optimizer: Any) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: float(CURVE(step)))


def in_float32(rows: list[list[float]]) -> list[list[float]]:
    return np.array(rows, np.float32).tolist()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_optimizer_trains_as_with_lambda_lr(wrapper: str) -> None:
    run, with_torch, resumed, resumed_with_torch = (
        Run(WRAPPERS[wrapper], build) for build in (by_curve, by_torch, by_curve, by_torch)
    )
    run.advance(SAVED_AFTER)
    with_torch.advance(SAVED_AFTER)
    resumed.load(run)
    resumed_with_torch.load(with_torch)
    for each in (run, with_torch, resumed, resumed_with_torch):
        each.advance(UPDATES - SAVED_AFTER)
    expected = [[learning_rate(peak, CURVE, step) for peak in PEAKS] for step in range(UPDATES)]
    assert run.used == in_float32(with_torch.used) == expected
    assert resumed.used == in_float32(resumed_with_torch.used) == expected[SAVED_AFTER:]
    assert run.weights == with_torch.weights
    assert resumed.weights == resumed_with_torch.weights
    assert run.scheduler.get_last_lr() == lrs_of(run.inner)
    follower = follow(run.optimizer, "weight_decay", CURVE)
    follower.step()
    assert run.inner.param_groups[0]["weight_decay"] == learning_rate(0.5, CURVE, 1)
    if wrapper == "TRAC":
        return  # it raises an error at the step after a group was added
    run.optimizer.add_param_group(Run.group(1.0))
    run.advance(1)
    assert lrs_of(run.inner) == [learning_rate(peak, CURVE, UPDATES + 1) for peak in (*PEAKS, 1.0)]


def test_dummy_of_layerwise_optimizers_is_rejected() -> None:
    """Transformers steps the real optimizers in hooks, where no scheduler reaches them."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = LayerWiseDummyOptimizer({parameter: SGD([parameter], lr=0.5)}, lr=0.5)
    with pytest.raises(ValueError, match="LayerWiseDummyOptimizer"):
        lambda_lr(optimizer, CURVE)
