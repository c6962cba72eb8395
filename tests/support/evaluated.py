"""Evaluation on several ranks: batches split among them, and a model with a collective in each pass."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from support.training.models import Batch, Net, batches, pair_loss
from support.training.reads import reads_of
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import evaluate
from torch_bridge.distributed import processes

# Rows of each batch, by rank.
SPLITS = [
    [[3, 2], [4, 1], [5, 2]],
    [[3, 2, 6], [4], [1, 1]],
    [[], [2, 4], [3]],
    [[3], [], []],
]


class Sized:
    """Batches with a length, which may be wrong."""

    def __init__(self, batches: list[Batch], length: int) -> None:
        self.batches, self.length = batches, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


def batches_of(split: list[list[int]]) -> list[list[Batch]]:
    """Return batches of these sizes, all with different numbers."""
    return [
        [batches(1, rows, seed=10 * rank + index)[0] for index, rows in enumerate(sizes)]
        for rank, sizes in enumerate(split)
    ]


def named_loss(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """Return a pair, a mean, and the fraction of rows in which the first output is too large."""
    inputs, targets = batch
    outputs = model(inputs)
    errors = (outputs - targets).square()
    return {
        "pair": (errors.sum(), errors.numel()),
        "mean": errors.mean(),
        "large": ((outputs[:, 0] > targets[:, 0]).sum(), len(inputs)),
    }


class Model(nn.Module):
    """A model that takes part in a collective in every forward pass, and counts the passes."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm, self.passes = Net(dropout=0.5), nn.BatchNorm1d(3), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        distributed.all_reduce(torch.ones(1))
        return self.net(self.norm(inputs))


def _sharded(model: Any) -> nn.Module:
    fully_shard(model.net.first)
    fully_shard(model)
    return model


def _some_iterators(local: list[Batch]) -> Iterable[Batch]:
    return iter(local) if processes.rank() == 1 else local


def _too_long(local: list[Batch]) -> Iterable[Batch]:
    return Sized(local, len(local) + 2)


# How a rank receives its batches, and the number of passes beyond the largest number of batches.
_FORMS: list[tuple[Callable[[list[Batch]], Iterable[Batch]], int]] = [(_some_iterators, 0), (_too_long, 2)]
_WRAPPERS: list[Callable[[Any], nn.Module]] = [lambda model: model, DistributedDataParallel, _sharded]


def _state(model: nn.Module) -> list[Any]:
    modes = [module.training for module in model.modules()]
    return [modes, list(map(id, model.parameters())), [buffer.tolist() for buffer in model.buffers()]]


def check_ranks_make_the_same_passes(_: Path) -> None:
    """With a filler, which does not count; and the model is as before."""
    reference = nn.Sequential(nn.BatchNorm1d(3), Net()).eval()
    for wrap, split, (form, more_passes) in product(_WRAPPERS, SPLITS, _FORMS):
        by_rank, inner = batches_of(split), Model()
        model = wrap(inner)
        inner.norm.eval()
        before = _state(model)
        loss = evaluate(model, form(by_rank[processes.rank()]), pair_loss)
        assert inner.passes == max(map(len, split)) + more_passes
        assert _state(model) == before
        with torch.no_grad():
            pairs = [pair_loss(reference, batch) for local in by_rank for batch in local]
        total, weight = (sum(map(float, numbers)) for numbers in zip(*pairs, strict=True))
        assert math.isclose(loss, total / weight, rel_tol=1e-6)


def check_reads_do_not_depend_on_the_number_of_batches(_: Path) -> None:
    """If the batches have a length, the ranks agree once on the number of passes."""
    reads: list[int] = []
    for most in (2, 20):
        local = batches(most if processes.rank() else most // 2)
        reads.append(reads_of(lambda local=local: evaluate(Net(), local, pair_loss)))
    assert reads[0] == reads[1]
