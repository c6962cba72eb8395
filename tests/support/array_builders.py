"""What processes do that build cached arrays at the same time, or are killed while they build."""

import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed

from torch_bridge import cached_arrays

BATCHES = 6


def between(number: int) -> None:
    """Called before each batch; `stop_at` replaces it."""


def build(source: Path) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Batches of ten rows. A log beside the source gets a line for each build that begins."""
    with source.with_suffix(".log").open("a") as log:
        log.write(f"{os.getpid()}\n")
    for number in range(BATCHES):
        between(number)
        yield {"x": np.full(10, number), "y": np.full((10, 2), -number)}


def is_whole(found: Any) -> bool:
    expected = np.repeat(np.arange(BATCHES), 10)
    return np.array_equal(found["x"], expected) and np.array_equal(found["y"], np.stack([-expected] * 2, 1))


def ask(source: Path, directory: Path) -> bool:
    distributed.barrier()
    return is_whole(cached_arrays(build, source, directory))


def stop_at(number: int, source: Path, directory: Path, connection: Connection, with_child: bool) -> None:
    """Build, but stop before this batch until something is sent.

    With `with_child` a child process is forked at the stop, which outlives its parent.
    """

    def wait(now: int) -> None:
        if now != number:
            return
        if with_child and os.fork() == 0:
            try:
                connection.recv_bytes()
            finally:
                os._exit(0)
        connection.send_bytes(b"here")
        connection.recv_bytes()

    globals()["between"] = wait
    cached_arrays(build, source, directory)


def tell_whole(found: Any, connection: Connection) -> None:
    """Send whether arrays that another process cached are mapped into memory here too."""
    connection.send(isinstance(found["x"], np.memmap) and is_whole(found))
