"""Optimizers of other libraries, which wrap a torch optimizer."""

from collections.abc import Callable
from typing import Any

import pytest
import pytorch_optimizer
import torch
from support.schedulers.runs import advance, learning_rate, lrs_of
from support.training.trees import through_file
from torch.optim import SGD, Optimizer
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from plateau_jax import PlateauCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.slow

CURVE = PlateauCurve(30, warmup_steps=6, plateaus=[(20, 30)], min_lr_ratio=0.1)
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
    """A wrapper around SGD, and the learning rates of each update."""

    def __init__(self, wrap: Callable[[Optimizer], Any]) -> None:
        self.inner = SGD(list(map(self.group, PEAKS)), momentum=0.5, weight_decay=0.5)
        self.optimizer = wrap(self.inner)
        if hasattr(self.optimizer, "train"):  # a schedule-free optimizer
            self.optimizer.train()
        self.scheduler = lambda_lr(self.optimizer, CURVE)
        self.used: list[list[float]] = []
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

    def load(self, other: "Run") -> None:
        for part, saved in ((self.optimizer, other.optimizer), (self.scheduler, other.scheduler)):
            part.load_state_dict(through_file(saved.state_dict()))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_optimizer_trains_with_the_curve(wrapper: str) -> None:
    run, resumed = Run(WRAPPERS[wrapper]), Run(WRAPPERS[wrapper])
    run.advance(SAVED_AFTER)
    resumed.load(run)
    for each in (run, resumed):
        each.advance(UPDATES - SAVED_AFTER)
    expected = [[learning_rate(peak, CURVE, step) for peak in PEAKS] for step in range(UPDATES)]
    assert run.used == expected
    assert resumed.used == expected[SAVED_AFTER:]
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
