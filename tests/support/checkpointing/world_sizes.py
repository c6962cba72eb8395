"""Steps and models saved on some number of ranks, and loaded or merged on another."""

import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import torch
from support.checkpointing.checkpoints import gathered
from support.distributed.distributed_updates import RankCase, batch_of, step_of, wrapped
from support.training.models import seeded
from support.trees import equal_trees
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge import Checkpoints, TrainStep, distribute
from torch_bridge.checkpointing.loading import SavedCheckpoint
from torch_bridge.distributed.dtensors import local_shard
from torch_bridge.distributed.plain_names import plain_state
from torch_bridge.distributed.processes import rank, world_size

# For each number of ranks, the wrappers under which they save, and under which they load.
SAVING = {1: ["plain"], 2: ["ddp", "fsdp"], 4: ["hybrid"]}
LOADING = {1: ["plain"], 2: ["ddp", "fsdp"], 3: ["fsdp"], 4: ["hybrid"]}
SHARDED = ("fsdp", "hybrid")

MERGED_STEPS = [1, 2, 3]
WEIGHTS = [0.5, 0.2, 0.3]


def net(seed: int) -> nn.Module:
    """Return layers with a counting buffer; one of them has fewer rows than there are ranks."""
    with seeded(seed):
        model = nn.Sequential(
            nn.Linear(3, 5),
            nn.BatchNorm1d(5),
            nn.Linear(5, 1),
            nn.Linear(1, 2),
        )
    model[1].get_buffer("num_batches_tracked").add_(seed)
    return model


def distributed_net(parallelism: str, seed: int = 0) -> Any:
    """Return the net over two ranks, as `distribute` returns it."""
    model = net(seed)
    if parallelism == "ddp":
        return distribute(model, "ddp", device="cpu")
    if parallelism == "fsdp":
        return distribute(model, "fsdp", device="cpu")
    if parallelism == "blocks":
        return distribute(model, "fsdp", device="cpu", blocks=[nn.Linear])
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copy", "shard"))
    return distribute(model, "fsdp", device="cpu", blocks=[nn.Linear], mesh=mesh)


# Optimizers.


def _sharded_along(tensor: Tensor, parameter: Tensor, dim: int) -> Tensor:
    """Return the tensor sharded along a dimension if the parameter is sharded."""
    return _placed(tensor, parameter, Shard(dim))


def _replicated(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return the tensor whole on each rank."""
    return _placed(tensor, parameter, Replicate())


def _placed(tensor: Tensor, parameter: Tensor, placement: Placement) -> Tensor:
    if not isinstance(parameter, DTensor):
        return tensor
    placements: list[Placement] = []
    for placement_of_parameter in parameter.placements:
        if placement_of_parameter.is_shard():
            placements.append(placement)
        else:
            placements.append(Replicate())
    return cast("DTensor", tensor).redistribute(placements=placements)


class ShardedState(Optimizer):
    """Keeps tensors for each matrix: alone, in lists and in dictionaries.

    Some have the matrix's shape, dtype and placements, others do not, and one is plain.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.25})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad.double()
                parameter.sub_((group["lr"] * gradient).float())
                if parameter.ndim == 2:
                    self.state[parameter] = self.state_of(parameter, gradient)

    def state_of(self, parameter: Tensor, gradient: Tensor) -> dict[str, Any]:
        across = _sharded_along(gradient, parameter, 1)
        return {
            "sums": [gradient / 3, [gradient.sum(1).to(torch.bfloat16)]],
            "more": {
                "whole": _replicated(gradient, parameter),
                "across": (across,),
                "columns": _sharded_along(across.sum(0), parameter, 0),
            },
            "rows": gradient.sum(1).float(),
            "turned": across.float(),
            "plain": [torch.ones(2, dtype=torch.int64)],
        }


# None is the optimizer of a `RankCase`, AdamW.
OPTIMIZERS: dict[str, Callable[[Any], Optimizer] | None] = {
    "adamw": None,
    "sharded state": ShardedState,
}


def _step(wrapper: str, optimizer: str) -> TrainStep:
    return step_of(RankCase(wrapper), OPTIMIZERS[optimizer])


# Saving.


class Content(NamedTuple):
    """What a checkpoint of a step gives back."""

    state: dict[str, Any]
    """Its model, its optimizer and its counts."""
    placements: dict[str, list[int]]
    """The dimension along which each tensor of the optimizer is sharded; none if replicated."""
    random: Tensor


def _content(step: TrainStep) -> Content:
    state: Any = step.state_dict()
    placements: dict[str, list[int]] = {}
    leaves = cast("list[tuple[Any, Any]]", pytree.tree_leaves_with_path(state["optimizer"]))
    for path, leaf in leaves:
        if isinstance(leaf, DTensor):
            shards = [place for place in leaf.placements if isinstance(place, Shard)]
            placements[pytree.keystr(path)] = [shard.dim for shard in shards]
    kept = {key: state[key] for key in ("model", "optimizer", "applied", "curve_step")}
    return Content(gathered(kept), placements, state["random"]["cpu"])


def save_all(directory: Path) -> None:
    """Save trained steps and models under each wrapper, and what each rank must get back."""
    for wrapper in SAVING[world_size()]:
        run = directory / f"{world_size()} {wrapper}"
        for optimizer in OPTIMIZERS:
            step = _step(wrapper, optimizer)
            for update in range(3):
                step(batch_of(RankCase(wrapper), update, rank(), 0))
            checkpoints = Checkpoints(run / optimizer)
            checkpoints.save(3, step=step, optimizer=step.optimizer, wait=True)
            content = run / f"{optimizer} {rank()}.pkl"
            content.write_bytes(pickle.dumps(_content(step)))
        checkpoints = Checkpoints(run / "models")
        for number in MERGED_STEPS:
            checkpoints.save(number, model=wrapped(wrapper, net(number)), wait=True)


# Loading.


@dataclass
class SavedStep:
    """A step that was saved with one optimizer."""

    checkpoints: Checkpoints
    wrapper: str
    content: list[Content]
    """Of each rank that saved it."""


def _saved(run: Path, optimizer: str) -> SavedStep:
    world_size_of_save, wrapper = run.name.split()
    content: list[Content] = []
    for number in range(int(world_size_of_save)):
        file = run / f"{optimizer} {number}.pkl"
        content.append(pickle.loads(file.read_bytes()))
    return SavedStep(Checkpoints(run / optimizer), wrapper, content)


def load_all(directory: Path) -> None:
    """Load every step and merge every model, and check that they have the saved content."""
    runs = sorted(directory.iterdir())
    wrappers = LOADING[world_size()]
    for run, wrapper, optimizer in product(runs, wrappers, OPTIMIZERS):
        saved = _saved(run, optimizer)
        _check_step(saved, wrapper, optimizer)
        _check_optimizer(saved, wrapper, optimizer)
    for run, wrapper in product(runs, [*wrappers, "plain"]):
        _check_merge(Checkpoints(run / "models"), wrapper)


def _check_step(saved: SavedStep, wrapper: str, optimizer: str) -> None:
    """Check a load; under FSDP2 a rank reads only its shards."""
    step = _step(wrapper, optimizer)
    random = torch.get_rng_state().clone()
    reads = _Elements()
    with warnings.catch_warnings(record=True) as warned, reads:
        warnings.simplefilter("always")
        assert saved.checkpoints.load(step=step, partial=True) == 3
    new_random = torch.get_rng_state()
    content = _content(step)
    assert equal_trees(content.state, saved.content[0].state)
    if rank() < len(saved.content):
        assert torch.equal(content.random, saved.content[rank()].random)
    else:
        assert torch.equal(new_random, random)
    if wrapper in SHARDED and saved.wrapper in SHARDED:
        assert content.placements == saved.content[0].placements
    if optimizer == "adamw":
        total = 0
        for leaf in pytree.tree_leaves(content.state):
            if isinstance(leaf, Tensor):
                total += leaf.numel()
        assert (reads.count < 0.8 * total) == (wrapper in SHARDED), (reads.count, total)
    messages = [str(warning.message) for warning in warned]
    _check_warnings(messages, len(saved.content), world_size())


class _Elements:
    """A context that counts the elements which loads read on this rank."""

    def __init__(self) -> None:
        self.count = 0
        self._fill_tensors = SavedCheckpoint.fill_tensors

    def __enter__(self) -> None:
        def fill_tensors(saved: SavedCheckpoint, targets: Mapping[str, Tensor]) -> None:
            for name, tensor in targets.items():
                if "random" not in name and "/structure" not in name:
                    self.count += local_shard(tensor).numel()
            self._fill_tensors(saved, targets)

        self.patch = patch.object(SavedCheckpoint, "fill_tensors", fill_tensors)
        self.patch.start()

    def __exit__(self, *_: object) -> None:
        self.patch.stop()


def _check_warnings(messages: list[str], ranks_before: int, ranks: int) -> None:
    if ranks < ranks_before:
        for message in messages:
            assert "step.random are dropped" in message
    elif ranks > ranks_before:
        (message,) = messages
        assert f"saved by {ranks_before} processes, and now there are {ranks}" in message
        assert "the new processes keep their random numbers" in message
    else:
        assert messages == []


def _check_optimizer(saved: SavedStep, wrapper: str, optimizer: str) -> None:
    """Check a load of the optimizer alone, before its first step."""
    loaded = _step(wrapper, optimizer).optimizer
    with warnings.catch_warnings(action="ignore"):
        saved.checkpoints.load(optimizer=loaded, partial=True)
    expected = saved.content[0].state["optimizer"]["state"]
    assert equal_trees(gathered(loaded.state_dict()["state"]), expected)


def _check_merge(checkpoints: Checkpoints, wrapper: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the model is not wrapped", UserWarning)
        model = wrapped(wrapper, net(99))
    checkpoints.merge(MERGED_STEPS, WEIGHTS, into=model, part="model")
    assert equal_trees(gathered(plain_state(model)), _merged_by_hand()), wrapper


def _merged_by_hand() -> dict[str, Tensor]:
    """Sum in float32, the last one first, each product rounded before it is added."""
    first, second, last = (net(number).state_dict() for number in MERGED_STEPS)
    merged = dict(last)
    for name, tensor in last.items():
        if tensor.is_floating_point():
            merged[name] = tensor * 0.3 + first[name] * 0.5 + second[name] * 0.2
    return merged
