"""One rank that tries an update while the others wait, and the updates that all make afterwards."""

import operator
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from support.training import Net, seeded
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_bridge.distributed.dtensors import local_part
from torch_bridge.distributed.local_trial import without_collectives


def _exhaust(_: Tensor) -> None:
    torch.empty(2**60)


class _Broken(nn.Module):
    """Fails in the forward or the backward pass, when `fails` says so."""

    fails = ""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.fails == "forward":
            _exhaust(inputs)
        if self.fails == "backward":
            outputs = inputs.clone()
            outputs.register_hook(_exhaust)
            return outputs
        return inputs


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with seeded(2):
            self.first, self.broken, self.last = Net(1), _Broken(), nn.Linear(2, 1)
        self.register_buffer("shift", torch.zeros(1))  # DistributedDataParallel sends buffers

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.broken(torch.tanh(self.first(inputs))))


def _update(model: nn.Module, parameters: Sequence[Any], number: int, rank: int) -> list[Tensor]:
    """Make one update by plain gradient descent; return the loss and the gradients."""
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(8 * number + rank))
    loss = model(inputs).square().mean()
    loss.backward()
    gradients: list[Tensor] = []
    for parameter in parameters:
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape
        gradients.append(local_part(parameter.grad).clone())
        with torch.no_grad():
            local_part(parameter).sub_(gradients[-1], alpha=0.1)
        parameter.grad = None
    return [loss.detach(), *gradients]


def updates_after_trials() -> list[Any]:
    """The cases in which updates after a trial on rank 1 differ from updates without one."""
    rank = distributed.get_rank()
    wrong: list[Any] = []
    for (name, wrap), fails, first in product(_WRAPPERS.items(), ("", "forward", "backward"), (0, 1)):
        expected, found = wrap(_Model()), wrap(_Model())
        names = list(found.state_dict())
        others, parameters = list(expected.parameters()), list(found.parameters())
        for number in range(first):
            _update(expected, others, number, rank)
            _update(found, parameters, number, rank)
        if rank == 1:
            _try(found, parameters, fails)
        distributed.barrier()
        same = list(found.state_dict()) == names and all(map(operator.is_, found.parameters(), parameters))
        for number in range(first, first + 3):
            updates = _update(expected, others, number, rank), _update(found, parameters, number, rank)
            same = same and all(map(torch.equal, *updates))
        if not same:
            wrong.append((name, fails, first))
    return wrong


def _try(model: nn.Module, parameters: Sequence[Any], fails: str) -> None:
    before = [local_part(parameter).clone() for parameter in parameters]
    _Broken.fails = fails
    broken = False
    try:
        with without_collectives(model):
            for _ in range(2):
                _update(model, parameters, 99, 1)
    except RuntimeError as error:
        broken = "DefaultCPUAllocator" in str(error)
    _Broken.fails = ""
    assert broken == bool(fails)
    with torch.no_grad():
        for parameter, values in zip(parameters, before, strict=True):
            parameter.grad = None
            local_part(parameter).copy_(values)


def _sharded(shape: tuple[int, ...] = (2,), **options: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: Any) -> nn.Module:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "parts")[-len(shape) :])
        for module in (model.first.first, model.first, model):
            fully_shard(module, mesh=mesh, **options)
        return model

    return wrap


_WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "ddp unused": lambda model: DistributedDataParallel(model, find_unused_parameters=True),
    "ddp static": lambda model: DistributedDataParallel(model, static_graph=True),
    "ddp views": lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True),
    "fsdp": _sharded(),
    "fsdp kept": _sharded(reshard_after_forward=False),
    "hybrid": _sharded((1, 2)),
    "replicated": _sharded((2, 1)),
}
