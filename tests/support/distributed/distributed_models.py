"""Models for several ranks, wrapped by `distribute`, and the states of steps over them."""

import io
import re
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from support.distributed.processes import error_of
from support.training.models import mean_loss, seeded
from support.training.steps import CURVE
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils import _pytree as pytree

from torch_bridge import TrainStep, distribute, is_main
from torch_bridge.distributed.dtensors import local_shard, mesh_of, shard_like

WRAPPERS = ("ddp", "fsdp", "blocks", "hybrid")


class Block(nn.Module):
    """A block with a buffer, and a parameter with too few rows for all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.rand(1, 3))
        self.register_buffer("shift", torch.rand(3))

    shift: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.linear(inputs)) * self.scale + self.shift


class Blocks(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.blocks = nn.Sequential(Block(), Block())
            self.last = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.blocks(inputs))


class Skipping(nn.Module):
    """A model with a layer that a batch may skip."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(3):
            self.first, self.around, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, inputs: Tensor, uses_all: bool) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.last(self.around(hidden) if uses_all else hidden)


def build(wrapper: str, seed: int = 0) -> Any:
    options: dict[str, Any] = {"device": "cpu"}
    if wrapper == "hybrid":
        names = ("copy", "shard")
        options["mesh"] = init_device_mesh(
            "cpu", (2, distributed.get_world_size() // 2), mesh_dim_names=names
        )
    if wrapper in ("blocks", "hybrid"):
        options["blocks"] = [Block]
    mode: Any = "ddp" if wrapper == "ddp" else "fsdp"
    return distribute(Blocks(seed), mode, **options)


def gather_weights(tree: Any) -> Any:
    """Return the tree with every tensor as an array; DTensors are gathered."""

    def array(tensor: Any) -> np.ndarray:
        tensor = tensor.detach()
        return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).numpy().copy()

    return pytree.tree_map_only(Tensor, array, tree)


class _Derived(DTensor): ...


def local_shards_of_dtensors(_: Path) -> None:
    """Including parameters, gradients and subclasses: the memory itself, not a copy."""
    rank, mesh = distributed.get_rank(), init_device_mesh("cpu", (distributed.get_world_size(),))
    rows = torch.arange(8.0).reshape(4, 2)
    expected, make = rows[2 * rank :][:2], cast("Any", _Derived)
    tensor = distribute_tensor(rows, mesh, [Shard(0)])
    parameter = nn.Parameter(tensor)
    (parameter * tensor).sum().backward()
    kinds: dict[str, Any] = {
        "a tensor": tensor,
        "a parameter": parameter,
        "its gradient": parameter.grad,
        "of a subclass": make(expected, cast("Any", tensor)._spec, requires_grad=False),
        "placed as another": shard_like(tensor, rows),
        "placed before": shard_like(parameter, tensor),
    }
    for name, tensor in kinds.items():
        local = local_shard(tensor)
        assert type(local) is Tensor, name
        assert torch.equal(local, expected), name
        assert local.data_ptr() == tensor.to_local().data_ptr(), name
        assert mesh_of(tensor) == mesh, name


def every_rank_gets_the_weights_of_rank_0(_: Path) -> None:
    """Each rank builds its model from another seed."""
    rank = distributed.get_rank()
    assert is_main() == (rank == 0)
    expected = gather_weights(dict(Blocks(0).state_dict()))
    for wrapper in WRAPPERS:
        model = build(wrapper, seed=10 * rank)
        assert _equal(gather_weights(dict(getattr(model, "module", model).state_dict())), expected)


def _equal(one: Any, other: Any) -> bool:
    leaves, structure = pytree.tree_flatten(one)
    others, other_structure = pytree.tree_flatten(other)
    return structure == other_structure and all(map(np.array_equal, leaves, others))


def step_over(wrapper: str, kind: Any = torch.optim.AdamW, **options: Any) -> TrainStep:
    model = build(wrapper)
    optimizer = kind(model.parameters(), lr=0.1, **{"fused": True} | options)
    return TrainStep(model, optimizer, mean_loss, CURVE)


def _update(step: TrainStep, number: int) -> float:
    generator = torch.Generator().manual_seed(2 * number + distributed.get_rank())
    rows = torch.randn(4, 5, generator=generator)
    return step((rows[:, :3], rows[:, 3:])).loss.item()


def resume_matches_uninterrupted_run(_: Path) -> None:
    """Also from a state with all DTensors gathered, and after an optimizer has first rejected the state."""
    for wrapper in WRAPPERS:
        step, other, gathered, second = (step_over(wrapper) for _ in range(4))
        for number in range(3):
            _update(step, number)
        state = step.state_dict()
        other.load_state_dict(state)
        gathered.load_state_dict(pytree.tree_map_only(Tensor, _full, state))
        with patch.object(second.optimizer, "load_state_dict", side_effect=RuntimeError("damaged")):
            assert "damaged" in error_of(second.load_state_dict, state)
        assert "load a checkpoint" in error_of(_update, second, 2)
        second.load_state_dict(state)
        expected = [_update(step, number) for number in (3, 4)]
        for resumed in (other, gathered, second):
            assert [_update(resumed, number) for number in (3, 4)] == expected
            assert _equal(_last_state(resumed), _last_state(step))


def _full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _last_state(step: TrainStep) -> Any:
    return gather_weights({name: step.state_dict()[name] for name in ("model", "optimizer")})


def fused_optimizer_state_loads_without_fused(_: Path) -> None:
    """From DDP under `fully_shard`, where torch can't run these optimizers fused."""
    for kind, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adagrad, {})):
        one, other = step_over("ddp", kind, **options), step_over("fsdp", kind, fused=None, **options)
        for number in range(3):
            _update(one, number)
        other.load_state_dict(one.state_dict())
        losses, sharded = ([_update(step, number) for number in (3, 4)] for step in (one, other))
        np.testing.assert_allclose(sharded, losses, rtol=1e-5)


def shards_are_loaded_only_where_they_belong(_: Path) -> None:
    """Not by a model that is not sharded, nor by another rank, whose state came through a file."""
    step = step_over("fsdp")
    _update(step, 0)
    message = error_of(step_over("ddp").load_state_dict, step.state_dict())
    assert re.search(r"shards of tensors, placed as .*Shard.*; save and load through Checkpoints", message)
    file = io.BytesIO()
    torch.save(step.state_dict(), file)
    sent = [file.getvalue()]
    distributed.broadcast_object_list(sent)
    before = gather_weights(dict(step.model.state_dict()))
    state = torch.load(io.BytesIO(sent[0]), weights_only=True)
    message = error_of(step.load_state_dict, state)
    assert ("each rank must load its own state" in message) == (distributed.get_rank() == 1)
    assert _equal(gather_weights(dict(step.model.state_dict())), before)


CHECKS = [
    local_shards_of_dtensors,
    every_rank_gets_the_weights_of_rank_0,
    resume_matches_uninterrupted_run,
    fused_optimizer_state_loads_without_fused,
    shards_are_loaded_only_where_they_belong,
]
