"""The processes of a run: their number, this process's rank, and collectives of Python objects."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from torch import distributed

Value = TypeVar("Value")


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


def is_main() -> bool:
    """Return True if this process has rank 0: the one that should print, plot and write files.

    >>> if is_main():
    ...     print("once, however many processes there are")
    once, however many processes there are
    """
    return rank() == 0


def gather(value: Value, group: Any = None) -> list[Value]:
    """Return the value of every rank, in the order of ranks. A collective: every rank must call it.

    Args:
        value: The value of this rank.
        group: A group of all ranks, other than the default one.

    Raises:
        RuntimeError: There are several processes but no process group.
    """
    if group is None:
        if world_size() == 1:
            return [value]
        if not has_group():
            raise RuntimeError(
                f"WORLD_SIZE = {world_size()}, but there is no process group: call "
                "distribute(model), or torch.distributed.init_process_group(), first"
            )
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
    # A rank that raised at once would leave the others waiting in the collective, so errors are
    # gathered too.
    value: Any = None
    error: Exception | None = None
    try:
        value = work()
    except Exception as caught:
        error = caught
    try:
        gathered = gather((value, describe_error(error)), group)
        raise_error_of_any_rank(error, [message for _, message in gathered])
    finally:
        # The traceback refers to this frame, a cycle that would keep the work's tensors alive.
        del error
    return [cast("Value", value) for value, _ in gathered]


def describe_error(error: BaseException | None) -> str | None:
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
