"""Minimal PyTorch runs: optimizers with a scheduler, and their steps."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plateau_jax import Curve

FLOAT32_MAX = float(np.finfo(np.float32).max)

# The peaks covered by the contract: 0, and those that a normal float32 holds.
peaks = st.one_of(
    st.sampled_from((0.0, 2.0**-126, 1e-5, 3e-4, 1e-3, 0.1, 0.7, 1.0, FLOAT32_MAX)),
    st.floats(1e-6, 10),
    st.floats(2.0**-126, FLOAT32_MAX),
)


def optimizer_with(
    lrs: Sequence[Any], optimizer_class: Callable[..., Optimizer] = torch.optim.SGD, **options: Any
) -> Optimizer:
    """Build an optimizer with a group for each learning rate; None stands for the default."""
    groups: list[dict[str, Any]] = []
    for lr in lrs:
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.grad = torch.full((2,), 0.5)
        group: dict[str, Any] = {"params": [parameter]}
        if lr is not None:
            group["lr"] = lr
        groups.append(group)
    return optimizer_class(groups, **options)


def new_parameter() -> torch.nn.Parameter:
    """Return a parameter with a gradient."""
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return parameter


def advance(optimizer: Optimizer, scheduler: LRScheduler, steps: int = 1) -> None:
    repeat(optimizer, scheduler, times=steps, updates=1, steps=1)


def repeat(
    optimizer: Optimizer, scheduler: LRScheduler, *, times: int, updates: int, steps: int
) -> None:
    """Make these updates, and then these scheduler steps, as often as `times` says."""
    for _ in range(times):
        for _ in range(updates):
            optimizer.step()
        for _ in range(steps):
            scheduler.step()


def lrs_of(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def learning_rate(peak: float, curve: Curve, step: int) -> float:
    """Return float32(float32(peak) · curve(step)), whose product is exact in double."""
    return float(np.float32(float(np.float32(peak)) * float(curve(step))))


def learning_rates(peaks: Sequence[float], curve: Curve, step: int) -> list[float]:
    """Return the learning rate of each group, given its peak."""
    return [learning_rate(peak, curve, step) for peak in peaks]
