"""Evaluation on several ranks: batches split among them, a model with collectives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.distributed.distributed_updates import wrapped
from support.training.models import Batch, Net, batches, pair_loss
from support.training.reads import reads_of
from torch import nn

from torch_bridge import evaluate
from torch_bridge.distributed.processes import rank

# Rows of each batch, by rank.
SPLITS = [[[3, 2], [4, 1], [5, 2]], [[3, 2, 6], [4], [1, 1]], [[], [2, 4], [3]], [[3], [], []]]


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


def check_ranks_make_the_same_passes(_: Path) -> None:
    """With an uncounted filler; without it, a rank would wait for the shards of the others."""
    for split in SPLITS:
        by_rank = batches_of(split)
        expected = evaluate(Net(), [batch for of_rank in by_rank for batch in of_rank], pair_loss)
        local = by_rank[rank()]
        for form in (local, iter(local) if rank() == 1 else local, Sized(local, len(local) + 2)):
            assert evaluate(wrapped("fsdp", Net()), form, pair_loss) == pytest.approx(expected)


def check_reads_do_not_depend_on_the_number_of_batches(_: Path) -> None:
    """If the batches have a length, the ranks agree once on the number of passes."""
    reads: list[int] = []
    for most in (2, 20):
        local = batches(most if rank() else most // 2)
        reads.append(reads_of(lambda local=local: evaluate(Net(), local, pair_loss)))
    assert reads[0] == reads[1]
