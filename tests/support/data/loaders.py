"""Loaders and their states; and one process that plays all ranks."""

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from torch_bridge import make_loader, prefetch

# Marks for test modules whose loaders have workers.
WORKERS = [
    # The tests may start more workers than the machine has cores.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # Workers are forked while threads of other tests' libraries may run; they use none of those.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

Arguments = dict[str, Any]
"""The arguments of `make_loader`."""


def ahead(loader: Iterable[Any], depth: int) -> prefetch[Any]:
    """Return a prefetch on the CPU that fetches ahead as on CUDA."""
    feed = prefetch(loader, "cpu")
    feed._depth = depth
    return feed


def build(arguments: Arguments, depth: int = 0, **more: Any) -> Any:
    """Build a loader, prefetched if `depth` is positive."""
    loader = make_loader(**arguments, **more)
    if depth == 0:
        return loader
    return ahead(loader, depth)


def epoch(feed: Iterable[Any]) -> list[Any]:
    return [batch.tolist() for batch in feed]


# One process that plays all ranks.


@contextmanager
def process(rank: int, processes: int) -> Generator[None]:
    """Act as one of several ranks that torchrun has started, before there is a process group."""
    with patch.dict(os.environ, {"RANK": str(rank), "WORLD_SIZE": str(processes)}):
        yield


def on_each_rank(function: Callable[..., Any], *arguments: Any, processes: int) -> list[Any]:
    """Return what a function returns on each rank."""
    results: list[Any] = []
    for rank in range(processes):
        with process(rank, processes):
            results.append(function(*arguments))
    return results
