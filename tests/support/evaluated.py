"""Evaluation on several ranks: batches split among them, a model with collectives."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.distributed.distributed_updates import wrapped
from support.training.models import Batch, Net, batches, pair_loss
from support.training.reads import reads_of
from torch import nn

from torch_bridge import evaluate
from torch_bridge.distributed.processes import rank

SPLITS = [
    [[3, 2], [4, 1], [5, 2]],
    [[3, 2, 6], [4], [1, 1]],
    [[], [2, 4], [3]],
    [[3], [], []],
]
"""The rows of each batch, by rank."""


class Sized:
    """Batches with a length, which may be wrong."""

    def __init__(self, batches: list[Batch], length: int) -> None:
        self.batches = batches
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


def batches_of(split: list[list[int]]) -> list[list[Batch]]:
    """Return batches of these sizes, all with different numbers."""
    by_rank: list[list[Batch]] = []
    for number, sizes in enumerate(split):
        local: list[Batch] = []
        for index, rows in enumerate(sizes):
            (batch,) = batches(1, rows, seed=10 * number + index)
            local.append(batch)
        by_rank.append(local)
    return by_rank


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


def check_ranks_make_the_same_passes(_: Path) -> None:
    """With an uncounted filler; without it, a rank would wait for the shards of the others."""
    for split in SPLITS:
        by_rank = batches_of(split)
        all_batches: list[Batch] = []
        for of_rank in by_rank:
            all_batches.extend(of_rank)
        expected = evaluate(Net(), all_batches, pair_loss)

        local = by_rank[rank()]
        assert sharded_loss(local) == pytest.approx(expected)
        assert sharded_loss(Sized(local, len(local) + 2)) == pytest.approx(expected)
        one_without_length: Iterable[Batch] = local
        if rank() == 1:
            one_without_length = iter(local)
        assert sharded_loss(one_without_length) == pytest.approx(expected)


def sharded_loss(local: Iterable[Batch]) -> Any:
    """Evaluate a model with FSDP on the batches of this rank."""
    return evaluate(wrapped("fsdp", Net()), local, pair_loss)


def check_reads_do_not_depend_on_the_number_of_batches(_: Path) -> None:
    """If the batches have a length, the ranks agree once on the number of passes."""
    assert reads_with(2) == reads_with(20)


def reads_with(most: int) -> int:
    """Return the reads of an evaluation of `most` batches, and half as many on rank 0."""
    local = batches(most)
    if rank() == 0:
        local = local[: most // 2]
    return reads_of(lambda: evaluate(Net(), local, pair_loss))
