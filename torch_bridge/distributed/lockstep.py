"""As many batches in every process, so that a model that communicates is called as often everywhere."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed
from torch.utils import _pytree as pytree

from torch_bridge.distributed import processes

Batch = TypeVar("Batch")
_NONE: Any = object()


def in_step(batches: Iterable[Batch], device: torch.device) -> Iterator[tuple[Batch, bool]]:
    """Each batch, with True; then one again, with False, until every process has been given as many.

    That one is the last batch, or where there was none the first one of another process. The processes
    agree once on the greatest length; from there on, and where an iterable has no length, on every batch.
    Each of them iterates; nothing comes where no process has a batch.

    Args:
        batches: This process's own.
        device: Where tensors of another process's batch go that it has not in host memory.

    Raises:
        RuntimeError: Several processes without a process group.
    """
    if processes.count() == 1:
        for batch in batches:
            yield batch, True
        return
    length = _length(batches)
    iterator = iter(batches)
    batch = next(iterator, _NONE)
    own = batch is not _NONE
    lengths, owns = zip(*processes.gather((length, own)), strict=True)
    if not any(owns):
        return
    if not all(owns):
        first = _broadcast(batch, owns.index(True), device)
        batch = batch if own else first
    agreed = 0 if None in lengths else max(lengths)
    for turn in count(1):
        yield batch, own
        following = next(iterator, _NONE) if own else _NONE
        own = following is not _NONE
        if own:
            batch = following
        # A length may be wrong, as that of a loader that goes on in mid-epoch is.
        if turn >= agreed and not any(processes.gather(own)):
            return


def _length(batches: Iterable[Any]) -> int | None:
    try:
        return len(cast(Any, batches))
    except TypeError:
        return None


def _broadcast(batch: Any, source: int, device: torch.device) -> Any:
    """The source's batch, by way of host memory: what names its device there may name another here."""
    sent: list[Any] = [None]
    if processes.rank() == source:
        on_host = [leaf.is_cpu for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
        sent = [(pytree.tree_map_only(Tensor, Tensor.cpu, batch), on_host)]
    distributed.broadcast_object_list(sent, source)
    received, on_host = sent[0]
    stays = iter(on_host)
    return pytree.tree_map_only(Tensor, lambda leaf: leaf if next(stays) else leaf.to(device), received)
