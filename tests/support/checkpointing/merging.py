"""Merges that fail on one rank, running averages, and the memory of a merge."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.checkpointing.checkpoints import equal_arrays, gather_tensors
from support.checkpointing.rank_checks import rank, sharded
from support.checkpointing.world_sizes import net
from support.distributed.processes import error_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from plateau_jax import StagedCurve
from torch_bridge import Checkpoints

_GOOD: dict[str, Any] = {"counts": [1, 2, 3], "weights": [0.5, 0.25, 0.25]}
# Other arguments of rank 1, True if only rank 1 fails, and what is said.
_REJECTIONS: list[tuple[dict[str, Any], bool, str]] = [
    ({"weights": [0.25, 0.5, 0.25]}, False, "and rank 1 with ([1, 2, 3], [0.25, 0.5, 0.25], 'model')"),
    (
        {"counts": [1, 2, 4]},
        False,
        "ValueError: rank 0 calls merge with (counts, weights, part) = (",
    ),
    ({"weights": [0.5, 0.5, 0.5]}, True, "ValueError: weights add up to 1.5"),
    ({"into": None}, True, "TypeError: into = None must be a module"),
    ({}, True, "KeyError: 'not this one'"),  # the model rejects the state
]


def rejected_merge_leaves_model_unchanged(directory: Path) -> None:
    checkpoints = Checkpoints(directory)
    for count in _GOOD["counts"]:
        checkpoints.save(count, model=sharded(count), wait=True)
    for other, is_of_rank_1, message in _REJECTIONS:
        model: Any = sharded(99)
        before = gather_tensors(dict(model.state_dict()))
        arguments = {"into": model, **_GOOD, **(other if rank() == 1 else {})}
        if not other and rank() == 1:
            model[1].register_load_state_dict_post_hook(_reject)
        error = error_of(checkpoints.merge, **arguments, part="model")
        assert message in error
        assert error.startswith("RuntimeError: rank 1 failed: ") == (is_of_rank_1 and rank() == 0)
        assert equal_arrays(gather_tensors(dict(model.state_dict())), before)


def _reject(*_: object) -> None:
    raise KeyError("not this one")


def running_averages_equal_merges(directory: Path) -> None:
    for wrapper in ("ddp", "fsdp"):
        running_average_equals_merge(directory / wrapper, wrapper)


def running_average_equals_merge(directory: Path, wrapper: str) -> None:
    """Compare at the end of each window. The lines on the average are those of docs/cooldowns.md."""
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
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    checkpoints = Checkpoints(directory, keep=len(factors))
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
                for name, value in expected.items():
                    np.testing.assert_allclose(values[name], value, rtol=1e-6, atol=1e-6)
                averaged(inputs)
        optimizer.zero_grad()
        model(inputs.to(next(model.parameters()).dtype)).square().mean().backward()
        optimizer.step()


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
    layers = [nn.Linear(1024, 1024, bias=False) for _ in range(6 if kind == "tied" else 8)]
    if kind == "tied":
        embedding, head = nn.Embedding(2048, 1024), nn.Linear(1024, 2048, bias=False)
        head.weight = embedding.weight
        return nn.Sequential(embedding, *layers, head)
    return nn.Sequential(*layers).to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
