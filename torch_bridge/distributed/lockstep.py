"""Equally many batches on every rank, since a wrapped model must be called equally often everywhere."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed
from torch.utils import _pytree as pytree

from torch_bridge.distributed import processes

Batch = TypeVar("Batch")
_NONE: Any = object()


def in_lockstep(batches: Iterable[Batch], device: torch.device) -> Iterator[tuple[Batch, bool]]:
    """Each batch with True; then filler batches with False, until every rank has got equally many.

    The filler is this rank's last batch, repeated; on a rank without any batch it is the first batch of
    another rank. The ranks agree once on the greatest length. From there on, and where an iterable has no
    length, they agree before every batch. If no rank has a batch, nothing is yielded.

    Args:
        batches: This rank's batches.
        device: Where the tensors of another rank's batch are put, if that rank had them on a device.

    Raises:
        RuntimeError: There are several processes and no process group.
    """
    if processes.world_size() == 1:
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
    """The batch of the rank `source`, sent through host memory: its device may have another name here."""
    sent: list[Any] = [None]
    if processes.rank() == source:
        on_host = [leaf.is_cpu for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
        sent = [(pytree.tree_map_only(Tensor, Tensor.cpu, batch), on_host)]
    distributed.broadcast_object_list(sent, source)
    received, on_host = sent[0]
    stays = iter(on_host)
    return pytree.tree_map_only(Tensor, lambda leaf: leaf if next(stays) else leaf.to(device), received)
