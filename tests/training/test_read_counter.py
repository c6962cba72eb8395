"""The counter of device reads: it notices every way of reading, and nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.training.reads import reads_of

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
    ways: dict[Callable[[], Any], int] = {
        lambda: host.tolist(): 0,
        lambda: host[0].item(): 0,
        lambda: host.copy_(device, non_blocking=True): 0,
        lambda: host.copy_(device): 1,
        lambda: host[:1].copy_(device[:1]): 1,
    }
    assert [reads_of(way, [host]) for way in ways] == list(ways.values())
