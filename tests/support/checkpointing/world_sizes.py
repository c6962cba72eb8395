"""Steps and models saved on some number of ranks, and loaded or merged on another."""

import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from support.checkpointing.checkpoints import equal_arrays, gather_tensors
from support.distributed.distributed_updates import Case, batch_of, step_of, wrapped
from support.training.models import seeded
from torch import Tensor, nn

from torch_bridge import Checkpoints, TrainStep
from torch_bridge.checkpointing.encoding import Reference
from torch_bridge.checkpointing.reading import SavedCheckpoint
from torch_bridge.distributed import processes
from torch_bridge.distributed.plain_names import plain_state

COUNTS, WEIGHTS = [1, 2, 3], [0.5, 0.2, 0.3]
# For each number of ranks, the wrappers under which they save, and under which they load.
SAVING = {1: ["plain"], 2: ["ddp", "fsdp"], 4: ["hybrid"]}
LOADING = {1: ["plain"], 2: ["ddp", "fsdp"], 3: ["fsdp"]}


def net(seed: int) -> nn.Module:
    """Return layers with a counting buffer; one of them has fewer rows than there are ranks."""
    with seeded(seed):
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    model[1].get_buffer("num_batches_tracked").add_(seed)
    return model


class Content(NamedTuple):
    """What a checkpoint of a step gives back."""

    tensors: dict[str, np.ndarray[Any, Any]]
    counts: tuple[int, int]
    random: bytes


def _content(step: TrainStep) -> Content:
    state = step.state_dict()
    tensors = gather_tensors({"model": dict(state["model"]), "optimizer": state["optimizer"]})
    counts, random = (state["applied"], state["clock"]), state["random"]["cpu"].numpy().tobytes()
    return Content(tensors, counts, random)


def save_all(directory: Path) -> None:
    """Save a trained step, and models for a merge, under each wrapper, and what each rank must get back."""
    rank, ranks = processes.rank(), processes.world_size()
    for wrapper in SAVING[ranks]:
        case, folder = Case(wrapper), directory / f"{ranks} {wrapper}"
        step = step_of(case)
        for update in range(3):
            step(batch_of(case, update, rank, 0))
        Checkpoints(folder / "step").save(3, step=step, wait=True)
        (folder / f"{rank}.pkl").write_bytes(pickle.dumps(_content(step)))
        for count in COUNTS:
            Checkpoints(folder / "models").save(count, model=wrapped(case, net(count)), wait=True)


def load_all(directory: Path) -> None:
    """Load every step and merge every model, and check that they have the saved content."""
    rank, ranks = processes.rank(), processes.world_size()
    for folder in sorted(directory.iterdir()):
        before = int(folder.name.split()[0])
        expected = [pickle.loads((folder / f"{number}.pkl").read_bytes()) for number in range(before)]
        for wrapper in LOADING[ranks]:
            _check_step(folder / "step", wrapper, expected, rank)
        for wrapper in [*LOADING[ranks], "plain"]:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "the model is not wrapped", UserWarning)
                model = wrapped(Case(wrapper), net(99))
            Checkpoints(folder / "models").merge(COUNTS, WEIGHTS, into=model, part="model")
            assert equal_arrays(gather_tensors(dict(plain_state(model))), _merged_by_hand()), (
                folder,
                wrapper,
            )


def _check_step(directory: Path, wrapper: str, expected: Sequence[Content], rank: int) -> None:
    """Check a load: under FSDP2 a rank reads only its shards; new ranks keep their random numbers."""
    elements, read_tensor = 0, SavedCheckpoint.read_tensor

    def counting(saved: SavedCheckpoint, reference: Reference, *arguments: Any) -> Tensor:
        nonlocal elements
        tensor = read_tensor(saved, reference, *arguments)
        elements += tensor.numel() if "random" not in reference.key else 0
        return tensor

    step, random = step_of(Case(wrapper)), torch.get_rng_state().clone()
    with (
        warnings.catch_warnings(record=True) as warned,
        patch.object(SavedCheckpoint, "read_tensor", counting),
    ):
        warnings.simplefilter("always")
        assert Checkpoints(directory).load(step=step) == 3
    unchanged, content = torch.equal(random, torch.get_rng_state()), _content(step)
    assert content.counts == expected[0].counts
    assert equal_arrays(content.tensors, expected[0].tensors)
    assert content.random == expected[rank].random if rank < len(expected) else unchanged
    total = sum(value.size for value in content.tensors.values())
    assert (elements < 0.8 * total) == (wrapper == "fsdp"), (elements, total)
    _check_warnings([str(warning.message) for warning in warned], len(expected), processes.world_size())


def _check_warnings(messages: Sequence[str], before: int, now: int) -> None:
    if now < before:
        assert all("step.random are dropped" in message for message in messages)
    elif now > before:
        (message,) = messages
        assert f"saved by {before} processes, and now there are {now}" in message
        assert "the new processes keep the random numbers" in message
    else:
        assert list(messages) == []


def _merged_by_hand() -> dict[str, np.ndarray[Any, Any]]:
    """Sum in float32, the last one first, each product rounded before it is added."""
    states = [gather_tensors(dict(net(count).state_dict())) for count in COUNTS]
    merged: dict[str, np.ndarray[Any, Any]] = dict(states[-1])
    for name, value in states[-1].items():
        if value.dtype == np.float32:
            order = [(states[index][name], np.float32(WEIGHTS[index])) for index in (2, 0, 1)]
            products = [tensor * weight for tensor, weight in order]
            merged[name] = products[0] + products[1] + products[2]
    return merged
