"""Run a function in several processes, which are the ranks of a gloo group."""

import os
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from support.programs import FORKSERVER

_LIMIT = 300  # seconds; less than the time after which pytest ends its own process


def run(function: Callable[..., Any], *arguments: Any, processes: int = 2) -> list[Any]:
    """Call `function(*arguments)` on each rank, and return the results in the order of ranks.

    Each process imports the function by name: define it in a module of `support`.

    Raises:
        AssertionError: A process raised, ended early, or took too long. Then all are killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        running: dict[Connection, tuple[int, Any]] = {}
        for rank in range(processes):
            parent_end, child_end = FORKSERVER.Pipe()
            worker = FORKSERVER.Process(
                target=_work, args=(child_end, rank, processes, str(store), function, arguments)
            )
            worker.start()
            child_end.close()
            running[parent_end] = rank, worker
        workers = list(running.items())  # kept open: a process ends when its connection is closed
        results: list[Any] = [None] * processes
        deadline = time.monotonic() + _LIMIT
        try:
            while running:
                ready = wait(list(running), timeout=max(0.0, deadline - time.monotonic()))
                waiting = [rank for rank, _ in running.values()]
                assert ready, f"processes {waiting} took over {_LIMIT} s"
                for connection in ready:
                    assert isinstance(connection, Connection)
                    rank, worker = running.pop(connection)
                    try:
                        result, error = connection.recv()
                    except EOFError:
                        worker.join()
                        raise AssertionError(
                            f"process {rank} ended with {worker.exitcode}"
                        ) from None
                    assert error is None, f"process {rank} raised\n{error}"
                    results[rank] = result
        finally:
            for connection, (_, worker) in workers:
                worker.kill()
                worker.join()
                connection.close()
        return results


def run_checks(modules: Sequence[ModuleType], directory: Path, processes: int = 2) -> None:
    """Call the functions `check_…` of these modules on each rank of one group, each with a folder.

    Their assertions are the test. Starting the processes takes longer than most checks.
    """
    checks: list[Callable[[Path], object]] = []
    for module in modules:
        checks += _checks_in(module)
    run(_call_all, checks, directory, processes=processes)


def _checks_in(module: ModuleType) -> list[Callable[[Path], object]]:
    checks: list[Callable[[Path], object]] = []
    for name, value in vars(module).items():
        is_imported = getattr(value, "__module__", None) != module.__name__
        if name.startswith("check_") and not is_imported:
            checks.append(value)
    return checks


def _call_all(checks: Sequence[Callable[[Path], object]], directory: Path) -> None:
    for check in checks:
        check(directory / check.__name__)


def error_of(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Return the type and the message of the error that a call raises; empty if it raises none."""
    try:
        call(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


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
    # A warning of torch.compile under this very Python; pyproject.toml ignores it too.
    warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0", RuntimeWarning)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    result = None
    error = None
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
    # Other ranks may still need this one: wait for the test to end. Then leave without destroying
    # the group, since gloo can abort the process there.
    with suppress(EOFError):
        connection.recv()
    os._exit(0)
