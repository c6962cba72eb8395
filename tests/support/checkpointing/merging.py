"""Models of all dtypes, their checkpoints, and merges on several ranks."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.checkpointing.checkpoints import gather_tensors
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import Checkpoints
from torch_bridge.distributed.plain_names import plain_state


class Mixed(nn.Module):
    """Parameters and buffers of many dtypes and shapes, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64):
            name = f"in_{dtype}".replace("torch.", "")
            wide = torch.complex128 if dtype.is_complex else torch.float64
            values = torch.randn(5, 3, generator=random, dtype=wide)
            self.register_parameter(name, nn.Parameter(values.to(dtype)))
        self.scalar = nn.Parameter(torch.randn((), generator=random))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.frozen = nn.Parameter(torch.randn(3, generator=random), requires_grad=False)
        self.register_buffer("mean", torch.randn(3, generator=random))
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("mask", torch.tensor([seed % 2 == 0, True]))
        self.register_buffer("hidden", torch.full((2,), float(seed)), persistent=False)


def weighted(states: Sequence[dict[str, Any]], weights: Sequence[float]) -> dict[str, tuple[Any, Any]]:
    """Return the float64 mean of each floating-point tensor, and Σ |weight · tensor|, its rounding scale."""
    means: dict[str, tuple[Any, Any]] = {}
    for name, tensor in states[-1].items():
        if tensor.is_floating_point() or tensor.is_complex():
            wide = torch.complex128 if tensor.is_complex() else torch.float64
            terms = [
                weight * state[name].detach().to(wide).numpy()
                for weight, state in zip(weights, states, strict=True)
            ]
            means[name] = np.sum(terms, axis=0), np.sum(np.abs(terms), axis=0)
    return means


def state_of(module: nn.Module) -> dict[str, Any]:
    """Return a copy of the module's state."""
    return copy.deepcopy(dict(module.state_dict()))


def net(seed: int) -> nn.Sequential:
    """Return layers with a counting buffer; one of them has fewer rows than there are ranks."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def wrapped(seed: int, wrapper: str) -> nn.Module:
    model = net(seed)
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    if wrapper == "fsdp":
        for module in (*model, model):
            fully_shard(module)
    return model


def save_each(directory: Path, wrapper: str, counts: Sequence[int]) -> None:
    checkpoints = Checkpoints(directory, keep=len(counts))
    for count in counts:
        model = wrapped(count, wrapper)
        with torch.no_grad():
            for buffer in model.buffers():
                buffer += count
        checkpoints.save(count, model=model, wait=True)


def merged(
    directories: Sequence[Path], counts: Sequence[int], weights: Sequence[float], wrappers: Sequence[str]
) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Return the gathered states of modules under these wrappers after a merge from each directory."""
    states: list[dict[str, np.ndarray[Any, Any]]] = []
    for directory in directories:
        for wrapper in wrappers:
            model = wrapped(99, wrapper)
            Checkpoints(directory).merge(counts, weights, into=model, part="model")
            states.append(gather_tensors(dict(plain_state(model))))
    return states


def refused(directory: Path, how: str) -> tuple[str, bool]:
    """Return the error of a merge that fails on rank 1, and whether the model is unchanged."""
    rank = distributed.get_rank()
    model: Any = wrapped(99, "fsdp")
    before = gather_tensors(dict(model.state_dict()))
    counts, weights = [1, 2, 3], [0.5, 0.25, 0.25]
    into: Any = model
    if rank == 1 and how == "weights":
        weights = [0.25, 0.5, 0.25]
    elif rank == 1 and how == "sum":
        weights = [0.5, 0.5, 0.5]
    elif rank == 1 and how == "counts":
        counts = [1, 2, 4]
    elif rank == 1 and how == "into":
        into = None
    elif rank == 1 and how == "loading":

        def refuse(*_: object) -> None:
            raise KeyError("not this one")

        model[2].register_load_state_dict_post_hook(refuse)
    raised = ""
    try:
        Checkpoints(directory).merge(counts, weights, into=into, part="model")
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    after = gather_tensors(dict(model.state_dict()))
    return raised, all(np.array_equal(before[key], after[key]) for key in before)


def peak_of_merge(directory: Path, kind: str, counts: Sequence[int]) -> None:
    """Print the peak memory of a merge in addition to the module, in units of a model.

    Run as a program: the peak that the system knows is that of the whole process.
    """
    weights = [1 / len(counts)] * len(counts)
    Checkpoints(directory / "small").merge(counts, weights, into=nn.Linear(2, 2), part="model")  # imports
    model = large(kind)
    size = sum(parameter.nbytes for parameter in model.parameters())
    before = _memory("VmRSS")
    Checkpoints(directory / kind).merge(counts, weights, into=model, part="model")
    print((_memory("VmHWM") - before) / size)


def _memory(what: str) -> int:
    """Return the memory of the process, or its peak, in bytes; `resource` would include the parent's."""
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what))


def large(kind: str) -> nn.Module:
    """Return a model of 32 MB."""
    if kind == "one tensor":
        return nn.Linear(2896, 2896, bias=False)
    if kind == "tied":
        model = nn.Sequential(
            nn.Embedding(2048, 1024), *(nn.Linear(1024, 1024, bias=False) for _ in range(6))
        )
        head = nn.Linear(1024, 2048, bias=False)
        head.weight = model[0].get_parameter("weight")
        return model.append(head)
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8)))
    return model.to(torch.bfloat16) if kind == "bfloat16" else model
