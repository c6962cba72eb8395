"""Name the ranks that have not made a call that every rank must make."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from threading import Timer

from torch import distributed

from torch_bridge.distributed import processes

_DELAY_SECONDS = 10.0  # before missing ranks are named
_call_numbers = count(1)


@contextmanager
def warn_of_missing_ranks(call: str, warn: Callable[[str], None]) -> Generator[None]:
    """Warn if, ten seconds after this rank made a call, others have not made it yet.

    Args:
        call: The name of the call.
        warn: Issues a warning at the user's line.

    Warns:
        CurveWarning: At most once per call.
    """
    if processes.world_size() == 1 or not distributed.is_initialized():
        yield
        return
    # A collective would wait for the missing ranks, too. So each rank publishes in the process group's
    # key-value store how many such calls it has made; a rank with a lower number than this one is missing.
    store = distributed.distributed_c10d._get_default_store()
    number, rank = next(_call_numbers), processes.rank()
    peers = [peer for peer in range(processes.world_size()) if peer != rank]

    def is_missing(peer: int) -> bool:
        key = _key(peer)
        return not store.check([key]) or int(store.get(key)) < number

    def report_missing() -> None:
        if missing := [peer for peer in peers if is_missing(peer)]:
            warn(
                f"{call} waits on rank {rank} for {'rank' if len(missing) == 1 else 'ranks'} "
                f"{', '.join(map(str, missing))}: every rank must call it, not the main one alone"
            )

    store.set(_key(rank), str(number))
    timer = Timer(_DELAY_SECONDS, report_missing)
    timer.daemon = True  # it must not keep an interrupted program alive
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _key(rank: int) -> str:
    return f"torch_bridge/checkpoints/calls of rank {rank}"
