"""Checkpoints of models, and merges of them on several ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.checkpointing.checkpoints import gather_tensors
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from plateau_jax import StagedCurve
from torch_bridge import Checkpoints
from torch_bridge.distributed.plain_names import plain_state


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


def running_averages(directory: Path, wrapper: str) -> list[dict[str, tuple[Any, Any]]]:
    """Return pairs at the end of each window: each parameter's running average, and its merge.

    The lines on the average are those of docs/cooldowns.md.
    """
    stable, windows, factors = StagedCurve([(30,)], start=1.0), ((5, 14), (15, 24)), dict[int, float]()
    for first, last in windows:
        steps = range(first, last + 1, 3)
        weights = stable.cooldown(first, last - first).merge_weights(steps)
        factors |= dict(zip(steps, weights / weights.cumsum().clip(1e-30), strict=True))

    def make_average() -> AveragedModel:
        averaged = AveragedModel(
            net(0), avg_fn=lambda average, value, _: average.lerp(value.to(average.dtype), factors[update])
        )
        if wrapper == "fsdp":
            fully_shard(averaged.module, reshard_after_forward=True)
        return averaged

    update, averaged, model = 0, make_average(), net(0)
    if wrapper == "ddp":
        model = DistributedDataParallel(model)
    elif wrapper == "fsdp":
        fully_shard(model)
    elif wrapper == "bf16":
        model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs = torch.randn(
        8, 3, generator=torch.Generator().manual_seed(0), dtype=next(model.parameters()).dtype
    )
    checkpoints, pairs = Checkpoints(directory, keep=len(factors)), list[dict[str, tuple[Any, Any]]]()
    for update in range(25):
        if update in factors:
            averaged.update_parameters(model)
            checkpoints.save(update, wait=True, model=model, averaged=averaged)
        if update == 9:  # resume inside a window
            averaged = make_average()
            checkpoints.load(averaged=averaged)
        for first, last in windows:
            if update == last:
                steps, merged = range(first, last + 1, 3), net(9)
                weights = stable.cooldown(first, last - first).merge_weights(steps)
                checkpoints.merge(steps, weights.tolist(), into=merged, part="model")
                values = gather_tensors(dict(averaged.module.named_parameters()))
                expected = gather_tensors(dict(merged.named_parameters()))
                pairs.append({name: (values[name], expected[name]) for name in expected})
                averaged(inputs.float())
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return pairs


def rejected(directory: Path, how: str) -> tuple[str, bool]:
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

        def reject(*_: object) -> None:
            raise KeyError("not this one")

        model[2].register_load_state_dict_post_hook(reject)
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
