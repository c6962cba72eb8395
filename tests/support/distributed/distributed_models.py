"""Models for several ranks, wrapped by `distribute`, and the states of steps over them."""

import io
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
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


def error_of(call: Callable[[], Any]) -> str:
    """Return the message of the error that a call raises; empty if it raises none."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
    return ""


class _Derived(DTensor): ...


def wrong_local_shards() -> list[str]:
    """Return the kinds of DTensors whose local shard or mesh is wrong."""
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
    wrong: list[str] = []
    for name, tensor in kinds.items():
        local = local_shard(tensor)
        is_right = type(local) is Tensor and torch.equal(local, expected) and mesh_of(tensor) == mesh
        if not (
            isinstance(tensor, DTensor) and is_right and local.data_ptr() == tensor.to_local().data_ptr()
        ):
            wrong.append(name)
    return wrong


def weights_of_main(wrapper: str) -> tuple[bool, dict[str, np.ndarray]]:
    """Return `is_main()`, and the state of a model that each rank built from another seed."""
    model = build(wrapper, seed=10 * distributed.get_rank())
    return is_main(), gather_weights(dict(getattr(model, "module", model).state_dict()))


def step_over(wrapper: str, kind: Any = torch.optim.AdamW, **options: Any) -> TrainStep:
    model = build(wrapper)
    optimizer = kind(model.parameters(), lr=0.1, **{"fused": True} | options)
    return TrainStep(model, optimizer, mean_loss, CURVE)


def _update(step: TrainStep, number: int) -> float:
    generator = torch.Generator().manual_seed(2 * number + distributed.get_rank())
    rows = torch.randn(4, 5, generator=generator)
    return step((rows[:, :3], rows[:, 3:])).loss.item()


def saved_and_loaded(wrapper: str) -> Any:
    """Return the losses after a save, and the last states, of that step and of one that loaded the state."""
    step = step_over(wrapper)
    for number in range(3):
        _update(step, number)
    state = step.state_dict()
    losses = [_update(step, number) for number in (3, 4)]
    other = step_over(wrapper)
    other.load_state_dict(state)
    return losses, [_update(other, number) for number in (3, 4)], *_last_states(step, other)


def from_whole_tensors(wrapper: str) -> tuple[Any, Any]:
    """Return the last states of a step, and of one that loaded its state with all DTensors gathered."""
    step = step_over(wrapper)
    for number in range(3):
        _update(step, number)
    state: Any = pytree.tree_map_only(Tensor, _full, step.state_dict())
    other = step_over(wrapper)
    other.load_state_dict(state)
    return _last_states(step, other)


def loaded_at_the_second_try(wrapper: str) -> tuple[Any, Any]:
    """Return the last states of a step whose optimizer first rejected a state, and of the saved step."""
    step, saved = step_over(wrapper), step_over(wrapper)
    for number in range(2):
        _update(saved, number)
    state = saved.state_dict()
    with patch.object(step.optimizer, "load_state_dict", side_effect=RuntimeError("damaged")):
        assert "damaged" in error_of(lambda: step.load_state_dict(state))
    assert "load a checkpoint" in error_of(lambda: _update(step, 2))
    step.load_state_dict(state)
    for trained in (step, saved):
        _update(trained, 2)
    return _last_states(step, saved)


def _full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _last_states(*steps: TrainStep) -> Any:
    return tuple(
        gather_weights({name: step.state_dict()[name] for name in ("model", "optimizer")}) for step in steps
    )


def from_fused_optimizers() -> list[tuple[list[float], list[float]]]:
    """Return the losses of two updates under DDP, and under `fully_shard` after loading the DDP state."""
    pairs: list[tuple[list[float], list[float]]] = []
    for kind, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adagrad, {})):
        one, other = step_over("ddp", kind, **options), step_over("fsdp", kind, fused=None, **options)
        for number in range(3):
            _update(one, number)
        other.load_state_dict(one.state_dict())
        one_losses, other_losses = ([_update(step, number) for number in (3, 4)] for step in (one, other))
        pairs.append((one_losses, other_losses))
    return pairs


def shards_in_a_plain_step() -> str:
    state = step_over("fsdp").state_dict()
    return error_of(lambda: step_over("ddp").load_state_dict(state))


def shards_of_another_rank() -> str:
    """Return the error on each rank except 0 when it loads the state of rank 0 from a file."""
    step = step_over("fsdp")
    _update(step, 0)
    file = io.BytesIO()
    torch.save(step.state_dict(), file)
    sent = [file.getvalue()]
    distributed.broadcast_object_list(sent)
    before = gather_weights(dict(step.model.state_dict()))
    state = torch.load(io.BytesIO(sent[0]), weights_only=True)
    message = error_of(lambda: step.load_state_dict(state))
    after = gather_weights(dict(step.model.state_dict()))
    return message if all(np.array_equal(before[name], after[name]) for name in before) else "it was changed"
