"""Models for several ranks, wrapped by `distribute`, and the states of steps over them."""

import io
import re
from pathlib import Path
from typing import Any

import torch
from support.checkpointing.checkpoints import whole
from support.distributed.processes import error_of
from support.training.models import batches, seeded
from support.training.steps import make_step
from support.training.trees import equal_trees
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from torch_bridge import TrainStep, distribute, is_main
from torch_bridge.distributed.plain_names import plain_state

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


def check_every_rank_gets_the_weights_of_rank_0(_: Path) -> None:
    """Each rank builds its model from another seed."""
    rank = distributed.get_rank()
    assert is_main() == (rank == 0)
    expected = Blocks(0).state_dict()
    for wrapper in WRAPPERS:
        assert equal_trees(whole(plain_state(build(wrapper, seed=10 * rank))), expected)


def _update(step: TrainStep, number: int) -> float:
    return step(*batches(1, seed=2 * number + distributed.get_rank())).loss.item()


def check_resume_matches_uninterrupted_run(_: Path) -> None:
    """Also from a state with all DTensors gathered."""
    for wrapper in WRAPPERS:
        step, other, gathered = (make_step(model=build(wrapper)) for _ in range(3))
        for number in range(3):
            _update(step, number)
        state = step.state_dict()
        other.load_state_dict(state)
        gathered.load_state_dict(whole(state))
        expected = [_update(step, number) for number in (3, 4)]
        for resumed in (other, gathered):
            assert [_update(resumed, number) for number in (3, 4)] == expected
            assert equal_trees(whole(resumed.state_dict()), whole(step.state_dict()))


def check_shards_are_loaded_only_where_they_belong(_: Path) -> None:
    """Not by a model that is not sharded, nor by another rank, whose state came through a file."""
    step = make_step(model=build("fsdp"))
    _update(step, 0)
    message = error_of(make_step(model=build("ddp")).load_state_dict, step.state_dict())
    assert re.search(r"shards of tensors, placed as .*Shard.*; save and load through Checkpoints", message)
    file = io.BytesIO()
    torch.save(step.state_dict(), file)
    sent = [file.getvalue()]
    distributed.broadcast_object_list(sent)
    before = step.state_dict()
    state = torch.load(io.BytesIO(sent[0]), weights_only=True)
    message = error_of(step.load_state_dict, state)
    assert ("each rank must load its own state" in message) == (distributed.get_rank() == 1)
    assert equal_trees(whole(step.state_dict()), whole(before))
