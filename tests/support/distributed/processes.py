"""Processes that are the ranks of a gloo group, and call functions and tests."""

import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from support.programs import FORKSERVER

_LIMIT = 300  # seconds; less than the time after which pytest ends its own process


def run(function: Callable[..., Any], *arguments: Any, processes: int = 2) -> list[Any]:
    """Call `function(*arguments)` on each rank of a new group, as `RankGroup.call` does."""
    group = RankGroup(processes)
    try:
        return group.call(function, *arguments)
    finally:
        group.close()


class RankGroup:
    """The ranks of a group. They start with the first call, and then wait for the next."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.workers: dict[Connection, Any] = {}
        """The process of each rank, by the connection to it."""
        self.folder = ""

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        """Call a function on each rank, and return the results in the order of ranks.

        Each process imports the function by name, from a test file or any other module. The call
        may destroy the group; the next one then starts another.

        Raises:
            AssertionError: A process raised, ended early, or took too long. Then all are killed,
                and the next call starts new ones.
        """
        if not self.workers:
            self.start()
        file = getattr(sys.modules[function.__module__], "__file__", None)
        call = pickle.dumps((function, arguments, options))
        try:
            for connection in self.workers:
                connection.send((function.__module__, file, call))
            results, are_in_group = self.receive()
        except BaseException:
            self.close()
            raise
        if not all(are_in_group):
            self.close()
        return results

    def close(self) -> None:
        for connection, worker in self.workers.items():
            worker.kill()
            worker.join()
            connection.close()
        if self.workers:
            shutil.rmtree(self.folder)
        self.workers.clear()

    def start(self) -> None:
        self.folder = tempfile.mkdtemp()
        store = os.path.join(self.folder, "store")
        for rank in range(self.size):
            parent_end, child_end = FORKSERVER.Pipe()
            worker = FORKSERVER.Process(target=_work, args=(child_end, rank, self.size, store))
            worker.start()
            child_end.close()
            self.workers[parent_end] = worker

    def receive(self) -> tuple[list[Any], list[bool]]:
        """Return the result of each rank, and whether it is still in the group."""
        waiting = {connection: rank for rank, connection in enumerate(self.workers)}
        results: list[Any] = [None] * self.size
        are_in_group = [False] * self.size
        deadline = time.monotonic() + _LIMIT
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            assert ready, f"processes {list(waiting.values())} took over {_LIMIT} s"
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    result, is_in_group, error = connection.recv()
                except EOFError:
                    worker = self.workers[connection]
                    worker.join()
                    raise AssertionError(f"process {rank} ended with {worker.exitcode}") from None
                if error is not None:
                    raise AssertionError(f"process {rank} raised\n{error}")
                results[rank] = pickle.loads(result)
                are_in_group[rank] = is_in_group
        return results, are_in_group


def error_of(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Return the type and the message of the error that a call raises; empty if it raises none."""
    try:
        call(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _work(connection: Connection, rank: int, size: int, store: str) -> None:
    import torch
    from torch import distributed

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("error")
    # A warning of torch.compile under this very Python; pyproject.toml ignores it too.
    warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0", RuntimeWarning)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=_LIMIT),
    )
    # Until the tests end, since other ranks may still need this one. Then leave without destroying
    # the group: gloo can abort the process there.
    with suppress(EOFError):
        while True:
            module, file, call = connection.recv()
            result = None
            error = None
            try:
                result = pickle.dumps(_call(module, file, call))
            except BaseException as caught:
                error = _text_of(caught)
            connection.send((result, distributed.is_initialized(), error))
    os._exit(0)


def _text_of(error: BaseException) -> str:
    """Return a traceback with the local variables of each function in it."""
    described = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join(described.format())


def _call(module: str, file: str | None, call: bytes) -> Any:
    """Call a pickled function of a module, with the same random states each time."""
    import torch

    if module not in sys.modules:
        _import_file(module, file)
    function, arguments, options = pickle.loads(call)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 -- the global generator, for code that draws from it
    torch.manual_seed(0)
    with warnings.catch_warnings():
        return function(*arguments, **options)


def _import_file(name: str, file: str | None) -> None:
    """Import a file under a name, as pytest imports test files: they are not on the import path."""
    assert file is not None
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
