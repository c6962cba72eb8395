"""The counter of device reads: it notices every way of reading, and nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.training.reads import reads_of
from torch import Tensor

_WAYS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda value: value.item(),
    "int": int,
    "float": float,
    "bool": bool,
    "index": lambda value: [0, 1, 2][value],
    "complex": complex,
    "if": lambda value: 1 if value > 0 else 2,
    "in": lambda value: 1 in value.view(1),
    "tolist": lambda value: value.tolist(),
    "numpy": lambda value: value.numpy(),
    "array": lambda value: np.asarray(value),
    "into an array": lambda value: np.zeros(1).__setitem__(0, value),
    "dlpack": lambda value: np.from_dlpack(value),
    "cpu": lambda value: value.cpu(),
    "to cpu": lambda value: value.to("cpu"),
    "to a device": lambda value: value.to(torch.device("cpu")),
    "to by name": lambda value: value.to(device="cpu", copy=True),
    "repr": repr,
    "str": str,
    "format": lambda value: f"{value:.2f}",
    "nonzero": lambda value: value.view(1).nonzero(),
    "where": lambda value: torch.where(value.view(1) > 0),
    "argwhere": lambda value: torch.argwhere(value),
    "mask": lambda value: value.view(1)[value.view(1) > 0],
    "masked_select": lambda value: value.masked_select(value > 0),
    "equal": lambda value: value.equal(torch.ones(())),
    "allclose": lambda value: torch.allclose(value, value),
    "unique": lambda value: value.view(1).unique(),
    "unique_consecutive": lambda value: value.view(1).unique_consecutive(),
    "bincount": lambda value: value.long().view(1).bincount(),
    "repeat_interleave": lambda value: torch.repeat_interleave(value.long().view(1)),
    "slice": lambda value: torch.ones(3)[: value.long()],
    "iteration": lambda value: range(value.long()),
    "is_nonzero": torch.is_nonzero,
    "storage": lambda value: value.untyped_storage()[0],
}


@pytest.mark.parametrize("way", _WAYS.values(), ids=_WAYS)
def test_every_way_of_reading_is_counted(way: Callable[[Tensor], Any]) -> None:
    value = torch.ones((), dtype=torch.int64)
    assert reads_of(lambda: way(value)) >= 1


def test_use_of_host_memory_is_not_counted() -> None:
    device, host = torch.ones(3), torch.zeros(3)
    ways: list[Callable[[], Any]] = [
        lambda: host.tolist(),
        lambda: host[0].item(),
        lambda: host.numpy(),
        lambda: host.copy_(device, non_blocking=True),
        lambda: device.copy_(host),
    ]
    for way in ways:
        assert reads_of(way, [host]) == 0
    assert reads_of(lambda: host.copy_(device), [host]) == 1
    assert reads_of(lambda: host[:1].copy_(device[:1]), [host]) == 1


def test_computing_is_not_counted() -> None:
    def compute() -> None:
        value = torch.ones(3, requires_grad=True)
        loss = torch.where(value > 0, value, 0).sum() / value.numel()
        loss.backward()
        value.grad.index_select(0, torch.zeros(1, dtype=torch.int64))
        value.detach()[0].add_(1).clamp(min=2)
        torch._foreach_mul_([value.grad], torch.ones(()))

    assert reads_of(compute) == 0
