"""Work that all ranks do at the same place: where it fails on one rank, it has failed on all."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch_bridge.distributed import processes

Value = TypeVar("Value")


def on_all_ranks(work: Callable[[], Value]) -> list[Value]:
    """Do the work on this rank, and return what it returned on every rank, by rank.

    A collective: every rank calls it.

    Raises:
        Exception: What the work raised on this rank.
        RuntimeError: It raised on another rank.
    """
    value: Any = None
    error: Exception | None = None
    try:
        value = work()
    except Exception as caught:
        error = caught
    try:
        gathered = processes.gather((value, error and f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
    finally:
        del error  # its traceback holds this frame, and with it what the work has in memory
    for rank, (_, other) in enumerate(gathered):
        if other is not None:
            raise RuntimeError(f"rank {rank} failed: {other}")
    return [cast("Value", value) for value, _ in gathered]
