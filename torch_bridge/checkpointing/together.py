"""What every process does at the same place: where it fails in one, it has failed in all."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch_bridge.distributed import processes

Value = TypeVar("Value")


def together(work: Callable[[], Value]) -> list[Value]:
    """What `work()` returns in every process, by rank.

    Raises:
        Exception: What it raised in this process.
        RuntimeError: It raised in another one.
    """
    value, error = None, None
    try:
        value = work()
    except Exception as caught:
        error = caught
    told: list[tuple[Any, str | None]]
    told = processes.gather((value, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    for rank, (_, other) in enumerate(told):
        if other is not None:
            raise RuntimeError(f"process {rank} failed: {other}")
    return [cast("Value", value) for value, _ in told]
