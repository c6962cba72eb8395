"""Minimal PyTorch runs: optimizers with a scheduler, and their steps."""

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support.training.trees import through_file
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plateau_jax import Curve, PlateauCurve
from torch_bridge import lambda_lr

FLOAT32_MAX = float(np.finfo(np.float32).max)

# The peaks covered by the contract: 0, and those that a normal float32 holds.
peaks = st.one_of(
    st.sampled_from((0.0, 2.0**-126, 1e-5, 3e-4, 1e-3, 0.1, 0.7, 1.0, FLOAT32_MAX)),
    st.floats(1e-6, 10),
    st.floats(2.0**-126, FLOAT32_MAX),
)

# Peaks with which an optimizer's weights stay finite.
modest_peaks = st.one_of(st.sampled_from((0.0, 1e-5, 3e-4, 1e-3, 0.1, 0.7, 1.0)), st.floats(1e-6, 10))


def optimizer_with(
    lrs: Sequence[Any], kind: Callable[..., Optimizer] = torch.optim.SGD, **options: Any
) -> Optimizer:
    """Build an optimizer with a group for each learning rate; None stands for the default."""
    groups = []
    for lr in lrs:
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.grad = torch.full((2,), 0.5)
        groups.append({"params": [parameter]} | ({} if lr is None else {"lr": lr}))
    return kind(groups, **options)


def advance(optimizer: Optimizer, scheduler: LRScheduler, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.step()
        scheduler.step()


def lrs_of(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def learning_rate(peak: float, curve: Curve, step: int) -> float:
    """Return float32(float32(peak) · curve(step)): the product is exact in double, and rounded once."""
    return float(np.float32(float(np.float32(peak)) * float(curve(step))))


class Run:
    """An optimizer and its scheduler, with every way to save and load them."""

    def __init__(
        self,
        curves: Sequence[PlateauCurve],
        lrs: Sequence[float],
        form: Callable[[float], float | Tensor] = float,
        kind: type[Optimizer] = torch.optim.SGD,
        last_epoch: int = -1,
    ) -> None:
        self.fresh = lambda: optimizer_with([form(lr) for lr in lrs], kind)
        self.curves = curves
        self.optimizer = self.fresh()
        self.scheduler = lambda_lr(self.optimizer, curves, last_epoch)

    def advance(self, steps: int) -> None:
        advance(self.optimizer, self.scheduler, steps)

    def by_state_dict_into_the_optimizer_first(self) -> None:
        saved = through_file([self.optimizer.state_dict(), self.scheduler.state_dict()])
        self.optimizer = self.fresh()
        self.optimizer.load_state_dict(saved[0])
        self.scheduler = lambda_lr(self.optimizer, self.curves)
        self.scheduler.load_state_dict(saved[1])

    def by_state_dict_into_the_scheduler_last(self) -> None:
        saved = through_file([self.optimizer.state_dict(), self.scheduler.state_dict()])
        self.optimizer = self.fresh()
        self.scheduler = lambda_lr(self.optimizer, self.curves)
        self.optimizer.load_state_dict(saved[0])
        self.scheduler.load_state_dict(saved[1])

    def by_state_dict_into_the_scheduler_first(self) -> None:
        saved = through_file([self.optimizer.state_dict(), self.scheduler.state_dict()])
        self.optimizer = self.fresh()
        self.scheduler = lambda_lr(self.optimizer, self.curves)
        self.scheduler.load_state_dict(saved[1])
        self.optimizer.load_state_dict(saved[0])

    def by_state_dict_of_the_scheduler_alone(self) -> None:
        saved = through_file(self.scheduler.state_dict())
        self.optimizer = self.fresh()
        self.scheduler = lambda_lr(self.optimizer, self.curves)
        self.scheduler.load_state_dict(saved)

    def by_state_dict_into_itself_later(self) -> None:
        saved = through_file([self.optimizer.state_dict(), self.scheduler.state_dict()])
        self.advance(5)
        self.optimizer.load_state_dict(saved[0])
        self.scheduler.load_state_dict(saved[1])

    def by_last_epoch(self) -> None:
        step = self.scheduler.last_epoch
        self.optimizer = self.fresh()
        self.scheduler = lambda_lr(self.optimizer, self.curves, last_epoch=step - 1)

    def by_last_epoch_into_the_optimizer_first(self) -> None:
        saved = through_file(self.optimizer.state_dict())
        step = self.scheduler.last_epoch
        self.optimizer = self.fresh()
        self.optimizer.load_state_dict(saved)
        self.scheduler = lambda_lr(self.optimizer, self.curves, last_epoch=step - 1)

    def by_last_epoch_into_the_optimizer_last(self) -> None:
        saved = through_file(self.optimizer.state_dict())
        self.by_last_epoch()
        self.optimizer.load_state_dict(saved)

    def by_pickle(self) -> None:
        self.advance(1)  # torch warns about copies made before the first step
        self.optimizer, self.scheduler = pickle.loads(pickle.dumps((self.optimizer, self.scheduler)))

    def by_deepcopy(self) -> None:
        self.advance(1)
        self.optimizer, self.scheduler = copy.deepcopy((self.optimizer, self.scheduler))


ROUTES = [name for name in vars(Run) if name.startswith("by_")]


def expected_lrs(run: Run, lrs: Sequence[float], step: int) -> list[float]:
    return [learning_rate(lr, curve, step) for lr, curve in zip(lrs, run.curves, strict=True)]
