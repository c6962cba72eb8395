"""The ranks of a training run: their number, collectives of Python objects, and equal batches."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from operator import length_hint
from typing import Any, TypeVar, cast

from torch import distributed

Value = TypeVar("Value")
Batch = TypeVar("Batch")

_NO_BATCH: Any = object()


def world_size() -> int:
    """Return the number of ranks: of the process group or, before there is one, from torchrun."""
    if has_group():
        return distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the rank of this process, from 0."""
    if has_group():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def gather(value: Value, group: Any = None) -> list[Value]:
    """Return the value of every rank, in the order of ranks. A collective: every rank must call it.

    Args:
        value: The value of this rank.
        group: A process group of all ranks; None for torch's default group.

    Raises:
        ValueError: There are several processes but no process group.
    """
    if group is None and world_size() == 1:
        return [value]
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values


def collective_call(work: Callable[[], Value], group: Any = None) -> list[Value]:
    """Call a function on every rank, and return all results. An error on one rank is raised on all.

    A collective: every rank must call it. The group is that of `gather`.

    Raises:
        Exception: The error of the function on this rank.
        RuntimeError: The function raised on another rank.
    """
    # If a rank raised its error at once, the others would wait for it in the collective. So errors
    # are gathered too.
    value: Any = None
    error: Exception | None = None
    try:
        value = work()
    except Exception as caught:
        error = caught
    try:
        gathered = gather((value, error_as_text(error)), group)
        messages = [message for _, message in gathered]
        raise_error_of_any_rank(error, messages)
    finally:
        # The traceback refers to this frame: a reference cycle, which would keep tensors alive.
        del error
    return [cast("Value", value) for value, _ in gathered]


def error_as_text(error: BaseException | None) -> str | None:
    """Return an error as text, to gather from all ranks."""
    if error is None:
        return None
    return f"{type(error).__name__}: {error}"


def raise_error_of_any_rank(
    error: BaseException | None, descriptions: Sequence[str | None]
) -> None:
    """Raise this rank's error, or a RuntimeError with the first one of the other ranks."""
    if error is not None:
        raise error
    for rank, description in enumerate(descriptions):
        if description is not None:
            raise RuntimeError(f"rank {rank} failed: {description}")


def has_group() -> bool:
    """Return True if there is a process group."""
    return distributed.is_available() and distributed.is_initialized()


def in_lockstep(batches: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Yield `(batch, True)` for each batch, then `(filler, False)` until all ranks have as many.

    The filler is this rank's last batch, repeated. With three batches on rank 0 and one on rank 1:

        rank 0    (a, True)   (b, True)    (c, True)
        rank 1    (d, True)   (d, False)   (d, False)

    The ranks agree once on the largest length. After that number of batches, or from the start if
    no iterable has a length, they agree before every batch. If no rank has a batch, nothing is
    yielded.

    Raises:
        ValueError: A rank has no batch, but others have; or there is no process group.
    """
    if world_size() == 1:
        for batch in batches:
            yield batch, True
        return

    length = length_hint(batches)
    iterator = iter(batches)
    batch = next(iterator, _NO_BATCH)
    has_batch = batch is not _NO_BATCH

    gathered = gather((length, has_batch))
    lengths = [length for length, _ in gathered]
    ranks_have_batch = [has_batch for _, has_batch in gathered]
    if not any(ranks_have_batch):
        return
    if not all(ranks_have_batch):
        rank = ranks_have_batch.index(False)
        raise ValueError(f"rank {rank} has no batch, but others have: give each rank at least one")

    for num_yielded in count(1):
        yield batch, has_batch
        if has_batch:  # iterators of some libraries begin again if asked after their end
            next_batch = next(iterator, _NO_BATCH)
            has_batch = next_batch is not _NO_BATCH
            if has_batch:
                batch = next_batch
        # Ask all ranks even at the agreed length: it may be wrong, for instance after a loader
        # resumed in the middle of an epoch.
        if num_yielded >= max(lengths) and not any(gather(has_batch)):
            return
