"""The counter of device reads: it notices every way of reading, and nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.training.reads import reads_of
from torch import Tensor

value, line = torch.ones((), dtype=torch.int64), torch.ones(1, dtype=torch.int64)

READS = [
    *("value.item()", "int(value)", "float(value)", "bool(value)", "complex(value)", "[0, 1, 2][value]"),
    *("1 if value > 0 else 2", "1 in line", "value.tolist()", "repr(value)", "str(value)", "f'{value:d}'"),
    *("value.numpy()", "np.asarray(value)", "np.zeros(1).__setitem__(0, value)", "np.from_dlpack(value)"),
    *("value.cpu()", "value.to('cpu')", "value.to(torch.device('cpu'))", "value.to(device='cpu', copy=True)"),
    *("line.nonzero()", "torch.where(line > 0)", "torch.argwhere(value)", "line[line > 0]"),
    *("value.masked_select(value > 0)", "value.equal(torch.ones(()))", "torch.allclose(value, value)"),
    *("line.unique()", "line.unique_consecutive()", "line.bincount()", "torch.repeat_interleave(line)"),
    *("torch.ones(3)[:value]", "range(value)", "torch.is_nonzero(value)", "value.untyped_storage()[0]"),
]


@pytest.mark.parametrize("way", READS)
def test_every_way_of_reading_is_counted(way: str) -> None:
    assert reads_of(lambda: eval(way, globals(), {"np": np})) >= 1


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
        weight: Tensor = torch.ones(3, requires_grad=True)
        loss = torch.where(weight > 0, weight, 0).sum() / weight.numel()
        loss.backward()
        weight.grad.index_select(0, torch.zeros(1, dtype=torch.int64))
        weight.detach()[0].add_(1).clamp(min=2)
        torch._foreach_mul_([weight.grad], torch.ones(()))

    assert reads_of(compute) == 0
