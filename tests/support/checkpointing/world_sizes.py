"""Steps and models saved on some number of ranks, and loaded or merged on another."""

import pickle
import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import torch
from support.checkpointing.checkpoints import gathered
from support.distributed.distributed_updates import Case, batch_of, step_of, wrapped
from support.training.models import seeded
from support.training.steps import equal_trees
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils import _pytree as pytree

from torch_bridge import Checkpoints, TrainStep
from torch_bridge.checkpointing.loading import SavedCheckpoint
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import local_shard
from torch_bridge.distributed.plain_names import plain_state

OPTIMIZERS = ("adamw", "sharded state")
COUNTS, WEIGHTS = [1, 2, 3], [0.5, 0.2, 0.3]
# For each number of ranks, the wrappers under which they save, and under which they load.
SAVING = {1: ["plain"], 2: ["ddp", "fsdp"], 4: ["hybrid"]}
LOADING = {**SAVING, 3: ["fsdp"]}


def net(seed: int) -> nn.Module:
    """Return layers with a counting buffer; one of them has fewer rows than there are ranks."""
    with seeded(seed):
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1), nn.Linear(1, 2))
    model[1].get_buffer("num_batches_tracked").add_(seed)
    return model


def _placed(tensor: Tensor, like: Tensor, dim: int | None) -> Tensor:
    """Under `fully_shard`, return a DTensor sharded along this dimension, or replicated if it is None."""
    if not isinstance(like, DTensor):
        return tensor
    where: Placement = Replicate() if dim is None else Shard(dim)
    placements = [where if placement.is_shard() else Replicate() for placement in like.placements]
    return cast("DTensor", tensor).redistribute(placements=placements)


class ShardedState(torch.optim.Optimizer):
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
                    across = _placed(gradient, parameter, 1)
                    self.state[parameter] = {
                        "sums": [gradient / 3, [gradient.sum(1).to(torch.bfloat16)]],
                        "more": {
                            "whole": _placed(gradient, parameter, None),
                            "across": (across,),
                            "columns": _placed(across.sum(0), parameter, 0),
                        },
                        "rows": gradient.sum(1).float(),
                        "turned": across.float(),
                        "plain": [torch.ones(2, dtype=torch.int64)],
                    }


class Content(NamedTuple):
    """What a checkpoint of a step gives back."""

    state: dict[str, Any]
    """Its model, its optimizer and its counts."""
    placements: dict[str, list[int]]
    """The dimension along which each tensor of the optimizer is sharded; none if it is replicated."""
    random: Tensor


def _content(step: TrainStep) -> Content:
    state: Any = step.state_dict()
    placements: dict[str, list[int]] = {}
    for path, leaf in cast("list[tuple[Any, Any]]", pytree.tree_leaves_with_path(state["optimizer"])):
        if isinstance(leaf, DTensor):
            dims: list[int] = [place.dim for place in leaf.placements if isinstance(place, Shard)]
            placements[pytree.keystr(path)] = dims
    kept = {key: state[key] for key in ("model", "optimizer", "applied", "curve_step")}
    return Content(gathered(kept), placements, state["random"]["cpu"])


def _step_of(wrapper: str, optimizer: str) -> TrainStep:
    return step_of(Case(wrapper), ShardedState if optimizer == "sharded state" else None)


def save_all(directory: Path) -> None:
    """Save trained steps, and models for a merge, under each wrapper, and what each rank must get back."""
    rank, ranks = processes.rank(), processes.world_size()
    for wrapper in SAVING[ranks]:
        case, folder = Case(wrapper), directory / f"{ranks} {wrapper}"
        for optimizer in OPTIMIZERS:
            step = _step_of(wrapper, optimizer)
            for update in range(3):
                step(batch_of(case, update, rank, 0))
            Checkpoints(folder / optimizer).save(3, step=step, optimizer=step.optimizer, wait=True)
            (folder / f"{optimizer} {rank}.pkl").write_bytes(pickle.dumps(_content(step)))
        for count in COUNTS:
            Checkpoints(folder / "models").save(count, model=wrapped(wrapper, net(count)), wait=True)


def load_all(directory: Path) -> None:
    """Load every step and merge every model, and check that they have the saved content."""
    wrappers = LOADING[processes.world_size()]
    for folder, wrapper, optimizer in product(sorted(directory.iterdir()), wrappers, OPTIMIZERS):
        _check_step(folder, wrapper, optimizer)
    for folder, wrapper in product(sorted(directory.iterdir()), [*wrappers, "plain"]):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the model is not wrapped", UserWarning)
            model = wrapped(wrapper, net(99))
        Checkpoints(folder / "models").merge(COUNTS, WEIGHTS, into=model, part="model")
        assert equal_trees(gathered(plain_state(model)), _merged_by_hand()), (folder, wrapper)


def _check_step(folder: Path, wrapper: str, optimizer: str) -> None:
    """Check a load: under FSDP2 a rank reads only its shards; new ranks keep their random numbers."""
    elements, fill_tensors = 0, SavedCheckpoint.fill_tensors

    def counting(saved: SavedCheckpoint, targets: Mapping[str, Tensor]) -> None:
        nonlocal elements
        for name, tensor in targets.items():
            if "random" not in name and "/structure" not in name:
                elements += local_shard(tensor).numel()
        fill_tensors(saved, targets)

    (before, saved_under), rank = folder.name.split(), processes.rank()
    expected: list[Content] = [
        pickle.loads((folder / f"{optimizer} {number}.pkl").read_bytes()) for number in range(int(before))
    ]
    step, other = _step_of(wrapper, optimizer), _step_of(wrapper, optimizer).optimizer
    random = torch.get_rng_state().clone()
    with (
        warnings.catch_warnings(record=True) as warned,
        patch.object(SavedCheckpoint, "fill_tensors", counting),
    ):
        warnings.simplefilter("always")
        assert Checkpoints(folder / optimizer).load(step=step) == 3
    unchanged, content = torch.equal(random, torch.get_rng_state()), _content(step)
    assert equal_trees(content.state, expected[0].state)
    assert torch.equal(content.random, expected[rank].random) if rank < len(expected) else unchanged
    is_sharded, was_sharded = (name in ("fsdp", "hybrid") for name in (wrapper, saved_under))
    if is_sharded and was_sharded:
        assert content.placements == expected[0].placements
    if optimizer == "adamw":
        leaves = pytree.tree_leaves(content.state)
        total = sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))
        assert (elements < 0.8 * total) == is_sharded, (elements, total)
    _check_warnings([str(warning.message) for warning in warned], len(expected), processes.world_size())
    with warnings.catch_warnings(action="ignore"):
        Checkpoints(folder / optimizer).load(optimizer=other)
    assert equal_trees(gathered(other.state_dict()["state"]), expected[0].state["optimizer"]["state"])


def _check_warnings(messages: Sequence[str], before: int, now: int) -> None:
    if now < before:
        assert all("step.random are dropped" in message for message in messages)
    elif now > before:
        (message,) = messages
        assert f"saved by {before} processes, and now there are {now}" in message
        assert "the new processes keep the random numbers" in message
    else:
        assert list(messages) == []


def _merged_by_hand() -> dict[str, Tensor]:
    """Sum in float32, the last one first, each product rounded before it is added."""
    states = [net(count).state_dict() for count in COUNTS]
    merged = dict(states[-1])
    for name, value in states[-1].items():
        if value.is_floating_point():
            products = [states[index][name] * WEIGHTS[index] for index in (2, 0, 1)]
            merged[name] = products[0] + products[1] + products[2]
    return merged
