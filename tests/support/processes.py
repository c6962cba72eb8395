"""A function in several processes at once, joined in a gloo group."""

import os
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from support.forkserver import FORKSERVER

_LIMIT = 300  # seconds, for a test that would hang: before pytest ends this process


def run(function: Callable[..., Any], *arguments: Any, processes: int = 2) -> list[Any]:
    """What `function(*arguments)` returns in each process, by rank.

    It belongs in a module of `support`, since each process imports it by name.

    Raises:
        AssertionError: A process raised, ended early, or took too long; all are ended then.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        running: dict[Connection, tuple[int, Any]] = {}
        for rank in range(processes):
            ours, theirs = FORKSERVER.Pipe()
            worker = FORKSERVER.Process(
                target=_work, args=(theirs, rank, processes, str(store), function, arguments)
            )
            worker.start()
            theirs.close()
            running[ours] = rank, worker
        everything = list(running.items())  # kept open: a process goes when its connection is closed
        results: list[Any] = [None] * processes
        deadline = time.monotonic() + _LIMIT
        try:
            while running:
                ready = wait(list(running), timeout=max(0.0, deadline - time.monotonic()))
                assert ready, f"processes {[rank for rank, _ in running.values()]} took over {_LIMIT} s"
                for connection in ready:
                    assert isinstance(connection, Connection)
                    rank, worker = running.pop(connection)
                    try:
                        result, error = connection.recv()
                    except EOFError:
                        worker.join()
                        raise AssertionError(f"process {rank} ended with {worker.exitcode}") from None
                    assert error is None, f"process {rank} raised\n{error}"
                    results[rank] = result
        finally:
            for connection, (_, worker) in everything:
                worker.kill()
                worker.join()
                connection.close()
        return results


def _work(
    connection: Connection,
    rank: int,
    processes: int,
    store: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch
    from torch import distributed

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("error")
    # torch.compile, under that very one; as pyproject.toml has it.
    warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0", RuntimeWarning)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    result, error = None, None
    try:
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=_LIMIT),
        )
        result = function(*arguments)
    except BaseException:
        error = traceback.format_exc()
    connection.send((result, error))
    # Its work is done, and others may still be at theirs: it goes when the test does. Not by way of gloo's
    # own end, which can abort a process.
    with suppress(EOFError):
        connection.recv()
    os._exit(0)
