"""The counter of device reads: it notices every way of reading, and nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.training.reads import reads_of

value, line = torch.ones((), dtype=torch.int64), torch.ones(1, dtype=torch.int64)

READS: list[Callable[[], Any]] = [
    lambda: value.item(),
    lambda: value.tolist(),
    lambda: np.asarray(value),
    lambda: np.from_dlpack(value),
    lambda: value.to("cpu"),
    lambda: value.to(device="cpu", copy=True),
    lambda: line.nonzero(),
    lambda: line[line > 0],
    lambda: torch.repeat_interleave(line),
    lambda: value.untyped_storage()[0],
]


@pytest.mark.parametrize("way", READS, ids=range(len(READS)))
def test_every_way_of_reading_is_counted(way: Callable[[], Any]) -> None:
    assert reads_of(way) >= 1


def test_use_of_host_memory_is_not_counted() -> None:
    device, host = torch.ones(3), torch.zeros(3)
    ways: dict[Callable[[], Any], int] = {
        lambda: host.tolist(): 0,
        lambda: host[0].item(): 0,
        lambda: host.copy_(device, non_blocking=True): 0,
        lambda: host.copy_(device): 1,
        lambda: host[:1].copy_(device[:1]): 1,
    }
    assert [reads_of(way, [host]) for way in ways] == list(ways.values())
