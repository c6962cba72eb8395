"""Loaders and their states; the batches of each rank; and one process that plays all ranks."""

import io
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import pytest
import torch
from hypothesis import strategies as st
from support.training.steps import through_file
from support.trees import equal_trees
from torch import Tensor

from torch_bridge import make_loader, prefetch

# Marks for test modules whose loaders have workers.
WORKERS = [
    # The tests may start more workers than the machine has cores.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # Workers are forked while threads of other tests' libraries may run; they use none of those.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

_two_workers = pytest.param(2, marks=pytest.mark.slow)
with_and_without_workers = pytest.mark.parametrize("num_workers", [0, _two_workers])

Arguments = dict[str, Any]
"""The arguments of `make_loader`."""
Epoch = list[list[int]]
"""The batches of an epoch, or of its rest: the indices of their samples."""

seeds = st.integers(0, 2**32 - 1)
depths = st.integers(0, 3)


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


def saved_after(feed: Any, count: int) -> Any:
    """Return the state after this many batches, over as many epochs as it takes."""
    batches = iter(())
    for _ in range(count):
        try:
            next(batches)
        except StopIteration:
            batches = iter(feed)
            next(batches)
    return through_file(feed.state_dict())


class Counted:
    """A loader that counts the batches it hands out, and fails at one of them."""

    def __init__(
        self, length: int, fails_at: int | None = None, error: type[BaseException] = OSError
    ) -> None:
        self.length = length
        self.fails_at = fails_at
        self.error = error
        self.count = 0

    def __iter__(self) -> Iterator[Tensor]:
        for index in range(self.length):
            if index == self.fails_at:
                raise self.error(index)
            self.count = index + 1
            yield torch.tensor(index)

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.count = state_dict["count"]


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


def join_shares(shares: list[Epoch]) -> Epoch:
    """Join the batches of all ranks into global batches."""
    global_batches: Epoch = []
    for batches in zip_longest(*shares, fillvalue=cast("list[int]", [])):
        global_batches.append([index for batch in batches for index in batch])
    return global_batches


def split(arguments: Arguments, processes: int) -> Arguments:
    """Return the arguments on one rank, for those with the global batch size."""
    return {**arguments, "batch_size": arguments["batch_size"] // processes}


# Loaders with a global batch size, and what they must load.


@st.composite
def loaders_for_ranks(draw: st.DrawFn, worlds: int = 1) -> tuple[Arguments, list[int]]:
    """Draw arguments with a global batch size, and numbers of processes that divide it."""
    batch_size = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
    training = draw(st.booleans())
    arguments: Arguments = {"training": training, "seed": draw(seeds), "batch_size": batch_size}
    for name in draw(st.sets(st.sampled_from(["shuffle", "drop_last"]))):
        arguments[name] = draw(st.booleans())
    divisors = [processes for processes in range(1, 5) if batch_size % processes == 0]
    processes = draw(st.lists(st.sampled_from(divisors), min_size=worlds, max_size=worlds))
    if arguments.get("drop_last", training):
        lengths = list(range(batch_size, 41))
    elif training:
        # Each process also needs a sample of the last batch.
        lengths = [
            n for n in range(1, 41) if n % batch_size == 0 or n % batch_size >= max(processes)
        ]
    else:
        lengths = list(range(1, 41))
    arguments["dataset"] = range(draw(st.sampled_from(lengths)))
    return arguments, processes


def expected_epochs(arguments: Arguments, count: int) -> list[Epoch]:
    """Compute the global batches of each epoch."""
    samples = len(arguments["dataset"])
    batch_size = arguments["batch_size"]
    training = arguments["training"]
    generator = torch.Generator().manual_seed(arguments["seed"])
    epochs: list[Epoch] = []
    for _ in range(count):
        order = list(range(samples))
        if arguments.get("shuffle", training):
            order = cast("list[int]", torch.randperm(samples, generator=generator).tolist())
        if arguments.get("drop_last", training):
            order = order[: samples // batch_size * batch_size]
        batches: Epoch = []
        for first in range(0, len(order), batch_size):
            batches.append(order[first : first + batch_size])
        epochs.append(batches)
    return epochs


# Runs that are interrupted and resumed, each time by a different number of processes.


class Stage(NamedTuple):
    """What the processes load before a run is interrupted."""

    processes: int
    epochs: int
    """The number of epochs that they load to the end."""
    batches: int
    """The number of batches after them."""
    depth: int
    """The number of batches that are fetched ahead."""


@dataclass
class Loaded:
    """What a process has loaded in a stage."""

    epochs: list[Epoch]
    batches: Epoch
    state: bytes


def load(arguments: Arguments, state: bytes | None, stage: Stage) -> Loaded:
    """Resume from a state, and load what belongs to a stage."""
    feed = build(arguments, stage.depth)
    if state is not None:
        feed.load_state_dict(_read(state))
    epochs = [epoch(feed) for _ in range(stage.epochs)]
    batches: Epoch = []
    if stage.batches > 0:
        batches = epoch(islice(feed, stage.batches))
    file = io.BytesIO()
    torch.save(feed.state_dict(), file)
    return Loaded(epochs, batches, file.getvalue())


def _read(state: bytes) -> Any:
    return torch.load(io.BytesIO(state), weights_only=True)


def check_stages(
    arguments: Arguments,
    stages: list[Stage],
    run: Callable[..., list[Any]] = on_each_rank,
    **options: Any,
) -> None:
    """Resume each stage from the one before; compare the batches of all ranks with the expected.

    Args:
        arguments: With the global batch size.
        stages: The stages.
        run: `run(function, *arguments, processes=)` → what the function returns on each rank.
        options: Further arguments of the loaders.
    """
    epochs = expected_epochs(arguments, 3 * len(stages))
    number = 0  # of the epoch
    begin = 0  # the batch of the epoch that comes next
    state: bytes | None = None
    for stage in stages:
        arguments_of_rank = split(arguments, stage.processes) | options
        ranks = run(load, arguments_of_rank, state, stage, processes=stage.processes)
        for index in range(stage.epochs):
            loaded = join_shares([rank.epochs[index] for rank in ranks])
            assert loaded == epochs[number][begin:]
            number += 1
            begin = 0
        end = begin + stage.batches
        loaded = join_shares([rank.batches for rank in ranks])
        assert loaded == epochs[number][begin:end]
        begin = end
        if end >= len(epochs[number]):
            number += 1
            begin = 0
        last = ranks[-1]
        for rank in ranks:
            assert equal_trees(_read(rank.state), _read(last.state))
        state = last.state
