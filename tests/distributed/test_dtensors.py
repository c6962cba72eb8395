"""The local shards of DTensors, including parameters and subclasses; a plain tensor is its own shard."""

import pytest
import torch
from support.distributed.distributed_models import wrong_local_shards
from support.distributed.processes import run
from torch import Tensor, nn

from torch_bridge.distributed.dtensors import local_shard, mesh_of, shard_like


class _Derived(Tensor): ...


@pytest.mark.parametrize("kind", [torch.Tensor, nn.Parameter, nn.Buffer, _Derived])
def test_plain_tensor_is_its_own_shard(kind: type[Tensor]) -> None:
    tensor = kind(torch.ones(3))
    assert local_shard(tensor) is tensor
    assert mesh_of(tensor) is None
    assert shard_like(torch.zeros(3), tensor) is tensor


@pytest.mark.slow
def test_local_shard_of_dtensors() -> None:
    assert run(wrong_local_shards) == [[], []]
