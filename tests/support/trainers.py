"""Shared by the tests of the trainers: the README's lines, a small model and its data, and rates."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from support.readme import README, rows
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import TensorDataset

from plateau_jax import Curve, PlateauCurve

CURVE = PlateauCurve(12, warmup_steps=3, plateaus=[(20, 30)], min_lr_ratio=0.1)
PEAK = 3e-4


def readme(place: str) -> list[str]:
    """The lines of code in the README's row that begins with this place."""
    (row,) = [row for row in rows("In the trainers") if row[0].startswith(place)]
    lines = re.findall(r"`(.*?)`", row[1])
    assert 1 <= len(lines) <= 4, place
    return lines


def execute(lines: Sequence[str], namespace: dict[str, Any], header: str = "") -> None:
    """Run lines of the README; with a header, as the body of the function that it begins."""
    indent = "    " if header else ""
    source = "\n".join([*filter(None, [header]), *(indent + line for line in lines)])
    exec(compile(source, str(README), "exec"), namespace)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def dataset(rows: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(rows, 4, generator=generator), torch.randn(rows, 1, generator=generator))


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    inputs, targets = batch
    return ((model(inputs) - targets) ** 2).mean()


@contextmanager
def rates_used() -> Generator[list[list[float]], None, None]:
    """A list that gets the rates in the groups at each step of any torch optimizer."""
    used: list[list[float]] = []

    def note(optimizer: Optimizer, *_: Any) -> None:
        used.append([float(group["lr"]) for group in optimizer.param_groups])

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield used
    finally:
        handle.remove()


def rates(curve: Curve, steps: range, peak: float = PEAK, groups: int = 1) -> list[list[float]]:
    """The rates that an update at each of these steps must use, as exact products."""
    return [[float(np.float32(peak)) * curve(step)] * groups for step in steps]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )
