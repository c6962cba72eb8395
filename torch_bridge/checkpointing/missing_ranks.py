"""Name the ranks that have not made a call that every rank has to make."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from threading import Timer

from torch import distributed

from torch_bridge.distributed import processes

_SECONDS = 10.0  # until missing ranks are named
_calls = count(1)


@contextmanager
def named_when_missing(call: str, warn: Callable[[str], None]) -> Generator[None]:
    """Warn of the ranks that are still missing after ten seconds in this context.

    Args:
        call: The name of the call.
        warn: Warns at the user's line.

    Warns:
        CurveWarning: Once a call, at the user's line.
    """
    if processes.world_size() == 1 or not distributed.is_initialized():
        yield
        return
    # Not a collective, which would wait as well: each rank notes how many such calls it has made.
    store, number, rank = distributed.distributed_c10d._get_default_store(), next(_calls), processes.rank()
    others = [other for other in range(processes.world_size()) if other != rank]

    def is_missing(other: int) -> bool:
        key = _key(other)
        return not store.check([key]) or int(store.get(key)) < number

    def look() -> None:
        if missing := [other for other in others if is_missing(other)]:
            warn(
                f"{call} waits on rank {rank} for {'rank' if len(missing) == 1 else 'ranks'} "
                f"{', '.join(map(str, missing))}: every rank must call it, not the main one alone"
            )

    store.set(_key(rank), str(number))
    timer = Timer(_SECONDS, look)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _key(rank: int) -> str:
    return f"torch_bridge/checkpoints/calls of rank {rank}"
