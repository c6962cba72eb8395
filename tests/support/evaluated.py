"""Evaluations in several processes: batches split among them, and a model with a collective in each pass."""

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, product
from typing import Any

import torch
from support.training.models import Batch, Net, Recurrent, batches, carried_loss, mean_loss, pair_loss
from support.training.reads import reads_of
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from torch_bridge import evaluate, make_loader
from torch_bridge.distributed import processes

LOSSES: dict[str, Callable[..., Any]] = {"mean": mean_loss, "pair": pair_loss}
# Rows of each batch, by process.
SPLITS = [
    [[3, 2], [4, 1], [5, 2]],
    [[3, 2, 6], [4], [1, 1]],
    [[], [2, 4], [3]],
    [[3], [], []],
]
CARRIED = [batches(count, time=4, seed=count) for count in (3, 1)]
LOADED = [1, 7, 8, 9]
"""Numbers of samples."""


class Sized:
    """Batches with a length, which may be wrong."""

    def __init__(self, batches: list[Batch], length: int) -> None:
        self.batches, self.length = batches, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


def _some_iterators(local: list[Batch]) -> Iterable[Batch]:
    return iter(local) if processes.rank() == 1 else local


# How a process receives its batches, and the number of passes beyond the largest number of batches.
FORMS: list[tuple[Callable[[list[Batch]], Iterable[Batch]], int]] = [
    (list, 0),
    (iter, 0),
    (_some_iterators, 0),
    (lambda local: Sized(local, min(len(local), 1)), 0),
    (lambda local: Sized(local, len(local) + 2), 2),
]
CASES = list(zip(product(SPLITS, FORMS), cycle(LOSSES)))  # each form gets each of the two losses


class Model(nn.Module):
    """A model that takes part in a collective in every forward pass, and counts the passes."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm, self.passes = Net(dropout=0.5), nn.BatchNorm1d(3), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        distributed.all_reduce(torch.ones(1))
        return self.net(self.norm(inputs))


def _wrapped(kind: str, model: Model) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        fully_shard(model.net.first)
        fully_shard(model)
    return model


def batches_of(split: list[list[int]]) -> list[list[Batch]]:
    """Return batches of these sizes, all with different numbers."""
    return [
        [batches(1, rows, seed=10 * rank + index)[0] for index, rows in enumerate(sizes)]
        for rank, sizes in enumerate(split)
    ]


def _corrupted_after(count: int, loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss function that turns wrong after `count` calls, the number of a process's batches."""
    calls = 0

    def wrapped(model: nn.Module, batch: Batch) -> Any:
        nonlocal calls
        calls += 1
        loss = loss_fn(model, batch)
        if calls <= count:
            return loss
        return (loss[0] * torch.nan, 10**6) if isinstance(loss, tuple) else loss * torch.nan

    return wrapped


def evaluate_splits(kind: str) -> list[float]:
    """Return the losses; check the number of passes, and that the model is as before."""
    inner, losses = Model(), list[float]()
    model = _wrapped(kind, inner)
    inner.norm.eval()

    def state() -> list[Any]:
        modes = [module.training for module in model.modules()]
        return [modes, list(map(id, model.parameters())), [buffer.tolist() for buffer in model.buffers()]]

    before = state()
    for (split, (form, more_passes)), loss in CASES:
        local, inner.passes = batches_of(split)[processes.rank()], 0
        losses.append(evaluate(model, form(local), _corrupted_after(len(local), LOSSES[loss])))
        assert inner.passes == max(map(len, split)) + more_passes
        assert state() == before
    return losses


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


def evaluate_otherwise() -> dict[str, Any]:
    """Evaluate named means, a carry, a loader's batches, and batches whose number of reads is counted."""
    rank, results = processes.rank(), dict[str, Any]()
    results["named"] = [evaluate(Net(), batches_of(split)[rank], named_loss) for split in SPLITS]
    model = Recurrent()
    results["carried"] = evaluate(model, CARRIED[rank], carried_loss, carry=model.initial())
    loaders = [
        make_loader(TensorDataset(*batches(1, rows)[0]), 2, training=False, num_workers=0) for rows in LOADED
    ]
    results["loaded"] = [evaluate(Net(), loader, pair_loss) for loader in loaders]
    results["reads"] = []
    for most in (2, 20):
        local = batches(most if rank else most // 2)
        results["reads"].append(reads_of(lambda local=local: evaluate(Net(), local, pair_loss)))
    results["errors"] = _errors()
    return results


def _named_by_rank(model: nn.Module, batch: Batch) -> dict[str, Any]:
    return {f"loss of {processes.rank()}": mean_loss(model, batch)}


def _errors() -> list[str]:
    """Return the errors of this process for batches or losses that are wrong in the group as a whole."""
    messages: list[str] = []
    names = list(LOSSES)
    for given, loss_fn in (
        (list[Batch](), pair_loss),
        (iter(list[Batch]()), pair_loss),
        (batches(2), LOSSES[names[processes.rank() % 2]]),
        (batches(2), _named_by_rank),
        (batches(2), named_loss if processes.rank() else pair_loss),
    ):
        try:
            evaluate(Net(), given, loss_fn)
        except (TypeError, ValueError) as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages
