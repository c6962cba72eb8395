"""Losses of every form that a training step accepts, and counts of the data in a batch."""

from collections.abc import Callable
from typing import Any

import torch
from support.training.models import Batch, carried_loss, mean_loss
from torch import Tensor, nn


def embedded_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of an embedding, whose gradients are sparse."""
    inputs, _ = batch
    indices = (inputs[:, 0].nan_to_num(0, 0, 0) * 2).long() % 9
    return model(indices).square().sum() + 0 * inputs.sum()


def loss_in(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return the mean loss, computed in this dtype."""

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs.to(dtype)), targets.to(dtype))

    return loss_fn


# A sum with a weight.


def weighted_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Weights that differ by micro-batch, known to the device alone."""
    _, targets = batch
    weight = (targets.square().sum() * 10).round()
    return mean_loss(model, batch) * weight, weight


def weighted_on_host(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    total, weight = weighted_loss(model, batch)
    return total, weight.item()


def half_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    return weighted_loss(model, (inputs.half(), targets))


# With outputs.


def with_aux(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    def loss_and_aux(model: nn.Module, batch: Batch) -> Any:
        inputs, _ = batch
        outputs = model(inputs)
        parts = [outputs.mean(), (outputs > 0).sum()]
        return loss_fn(model, batch), {"outputs": outputs, "parts": parts}

    return loss_and_aux


# A parameter itself.


def level_loss(model: Any, batch: Batch) -> Tensor:
    return _finite_or_nan(model.level, batch)


def view_loss(model: Any, batch: Batch) -> Tensor:
    return _finite_or_nan(model.bias[0], batch)


def _finite_or_nan(value: Tensor, batch: Batch) -> Tensor:
    """Return the value itself; for a bad batch, NaN."""
    inputs, _ = batch
    if inputs.isfinite().all():
        return value
    return value * torch.nan


# With a carry.


def restarting_loss(model: nn.Module, batch: Batch, carry: Tensor) -> Any:
    carry[:, :2] = 0  # two of the four sequences start again
    return carried_loss(model, batch, carry)


TREE = {
    "steps": torch.zeros((), dtype=torch.int64),
    "phase": [torch.ones(2, dtype=torch.complex64), (torch.ones(3, dtype=torch.float64),)],
    "seen": torch.zeros(1).expand(5),
    "flag": torch.tensor(False),
}
"""The carry before the first update of `loss_with_tree`."""


def loss_with_tree(model: nn.Module, batch: Batch, carry: Any) -> Any:
    assert carry["seen"].dtype == torch.float32, "the last one returned was float64"
    inputs, _ = batch
    angle, (scale,) = carry["phase"]
    next_carry = {
        "steps": carry["steps"] + 1,
        "phase": [angle * 1j, (scale / 2,)],
        "seen": carry["seen"].double() + inputs.mean(),
        "flag": ~carry["flag"],
    }
    return mean_loss(model, batch), next_carry


def carried_bias(model: Any, batch: Batch, carry: Tensor) -> Any:
    inputs, _ = batch
    return (model.bias * 2).sum() + 0 * inputs.sum(), model.bias.detach()


# Counts of the data in a batch, for a clock.


def count_samples(batch: Batch) -> int:
    inputs, _ = batch
    return len(inputs)


def count_positive_targets(batch: Batch) -> Tensor:
    _, targets = batch
    return (targets > 0).sum().to(torch.int16)
