"""The processes of a run: how many there are, which one this is, a value gathered from all."""

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import distributed

Value = TypeVar("Value")


def world_size() -> int:
    """The number of ranks: of the process group or, before there is one, of torchrun."""
    return distributed.get_world_size() if has_group() else int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The rank of this process, from 0."""
    return distributed.get_rank() if has_group() else int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Whether this process has rank 0: the one that should print, draw and write files.

    >>> if is_main():
    ...     print("once, however many processes there are")
    once, however many processes there are
    """
    return rank() == 0


def gather(value: Value) -> list[Value]:
    """The value of every rank, in the order of ranks. A collective: every rank calls it.

    Raises:
        RuntimeError: There are several processes and no process group.
    """
    if world_size() == 1:
        return [value]
    if not has_group():
        raise RuntimeError(
            f"WORLD_SIZE = {world_size()}, but there is no process group: call distribute(model), or "
            "torch.distributed.init_process_group(), first"
        )
    values: list[Any] = [None] * world_size()
    distributed.all_gather_object(values, value)
    return values


def collective_call(work: Callable[[], Value]) -> list[Value]:
    """Call a function on every rank, and return what it returned on each. An error on one is raised on all.

    A collective: every rank calls it.

    Raises:
        Exception: What the function raised on this rank.
        RuntimeError: It raised on another rank.
    """
    value: Any = None
    error: Exception | None = None
    try:
        value = work()
    except Exception as caught:
        error = caught
    try:
        gathered = gather((value, error and f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
    finally:
        del error  # its traceback holds this frame, and with it what the work has in memory
    for rank, (_, message) in enumerate(gathered):
        if message is not None:
            raise RuntimeError(f"rank {rank} failed: {message}")
    return [cast("Value", value) for value, _ in gathered]


def has_group() -> bool:
    """Whether there is a process group."""
    return distributed.is_available() and distributed.is_initialized()
