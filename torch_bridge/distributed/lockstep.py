"""The same number of batches on every rank: a forward pass of a wrapped model is a collective."""

from collections.abc import Iterable, Iterator
from itertools import count
from operator import length_hint
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.utils import _pytree as pytree

from torch_bridge.distributed import processes

Batch = TypeVar("Batch")
_NONE: Any = object()


def in_lockstep(batches: Iterable[Batch], device: torch.device) -> Iterator[tuple[Batch, bool]]:
    """Yield `(batch, True)` for each batch, then `(filler, False)` until all ranks have as many.

    The filler is this rank's last batch, repeated; on a rank without any batch it is the first
    batch of another rank. With three batches on rank 0 and one on rank 1:

        rank 0    (a, True)   (b, True)    (c, True)
        rank 1    (d, True)   (d, False)   (d, False)

    The ranks agree once on the largest length. After that number of batches, or from the start if
    an iterable has no length, they agree before every batch. If no rank has a batch, nothing is
    yielded.

    Args:
        batches: This rank's batches.
        device: The device for the tensors of another rank's batch, if that rank had them on a
            device.

    Raises:
        RuntimeError: There are several processes but no process group.
    """
    if processes.world_size() == 1:
        for batch in batches:
            yield batch, True
        return

    length = length_hint(batches, -1)
    iterator = iter(batches)
    batch = next(iterator, _NONE)
    has_batch = batch is not _NONE

    gathered = processes.gather((length, has_batch))
    lengths = [length for length, _ in gathered]
    ranks_have_batch = [has_batch for _, has_batch in gathered]
    if not any(ranks_have_batch):
        return
    if not all(ranks_have_batch):
        # A collective: ranks that have a batch take part too, and discard the result.
        first = _broadcast(batch, ranks_have_batch.index(True), device)
        if not has_batch:
            batch = first

    agreed_length = max(lengths)
    if -1 in lengths:
        agreed_length = 0
    for num_yielded in count(1):
        yield batch, has_batch
        if has_batch:
            following = next(iterator, _NONE)
            has_batch = following is not _NONE
            if has_batch:
                batch = following
        # Ask all ranks even at the agreed length: it may be wrong, for instance after a loader
        # resumed in the middle of an epoch.
        if num_yielded >= agreed_length and not any(processes.gather(has_batch)):
            return


def _broadcast(batch: Any, source: int, device: torch.device) -> Any:
    """Return the batch of the rank `source`, on this rank's device if it was on a device there."""
    # It travels through host memory: the other rank's device, such as "cuda:1", has another name
    # here.
    were_on_host = [leaf.is_cpu for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    sent = [pytree.tree_map_only(Tensor, Tensor.cpu, batch), were_on_host]
    distributed.broadcast_object_list(sent, source)

    received, were_on_host = sent
    stays_on_host = iter(were_on_host)

    def to_device(leaf: Tensor) -> Tensor:
        if next(stays_on_host):
            return leaf
        return leaf.to(device)

    return pytree.tree_map_only(Tensor, to_device, received)
