"""Batches split among several ranks, for evaluation."""

from collections.abc import Iterator
from typing import Any

from support.training.models import Batch, batches
from torch import nn

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
