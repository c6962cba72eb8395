"""Loaders and their states; the batches of each rank; and one process that plays all ranks."""

import io
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, zip_longest
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from hypothesis import strategies as st
from support.training.steps import equal_trees, through_file
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

with_and_without_workers = pytest.mark.parametrize(
    "num_workers", [0, pytest.param(2, marks=pytest.mark.slow)]
)

Arguments = dict[str, Any]
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
    return ahead(loader, depth) if depth else loader


def epoch(feed: Iterable[Any]) -> list[Any]:
    return [batch.tolist() for batch in feed]


def saved_after(feed: Any, count: int) -> Any:
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
        self.length, self.fails_at, self.error, self.count = length, fails_at, error, 0

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


Epoch = list[list[int]]  # indices of samples


@contextmanager
def process(rank: int, processes: int) -> Generator[None]:
    """Act as one of several ranks that torchrun has started, before there is a process group."""
    with patch.dict(os.environ, {"RANK": str(rank), "WORLD_SIZE": str(processes)}):
        yield


def in_each(function: Callable[..., Any], *arguments: Any, processes: int) -> list[Any]:
    results: list[Any] = []
    for rank in range(processes):
        with process(rank, processes):
            results.append(function(*arguments))
    return results


def side_by_side(epochs: list[Epoch]) -> Epoch:
    """Join the batches of all ranks into global batches."""
    return [
        [index for share in shares for index in share]
        for shares in zip_longest(*epochs, fillvalue=[])
    ]


@st.composite
def shared(draw: st.DrawFn, numbers: int = 1) -> tuple[Arguments, list[int]]:
    """Draw arguments with a global batch size, and numbers of processes that divide it."""
    batch_size = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
    given: Arguments = {
        "training": draw(st.booleans()),
        "seed": draw(seeds),
        "batch_size": batch_size,
    }
    for name in draw(st.sets(st.sampled_from(["shuffle", "drop_last"]))):
        given[name] = draw(st.booleans())
    least = batch_size if given.get("drop_last", given["training"]) else 1
    divisors = st.sampled_from(
        [processes for processes in range(1, 5) if batch_size % processes == 0]
    )
    counts = draw(st.lists(divisors, min_size=numbers, max_size=numbers))
    # In training every process also needs a sample of the last batch.
    fewest = max(counts) if given["training"] and not given.get("drop_last", True) else 0
    samples = st.integers(least, 40).filter(
        lambda samples: samples % batch_size in {0, *range(fewest, batch_size)}
    )
    given["dataset"] = range(draw(samples))
    return given, counts


def expected(arguments: Arguments, epochs: int) -> list[Epoch]:
    """Compute the global batches of each epoch."""
    samples, batch_size, training = (
        len(arguments["dataset"]),
        arguments["batch_size"],
        arguments["training"],
    )
    generator = torch.Generator().manual_seed(arguments["seed"])
    batches_by_epoch: list[Epoch] = []
    for _ in range(epochs):
        order = list(range(samples))
        if arguments.get("shuffle", training):
            order = cast("list[int]", torch.randperm(samples, generator=generator).tolist())
        if arguments.get("drop_last", training):
            order = order[: samples // batch_size * batch_size]
        batches_by_epoch.append(
            [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
        )
    return batches_by_epoch


def split(arguments: Arguments, processes: int) -> Arguments:
    return {**arguments, "batch_size": arguments["batch_size"] // processes}


Stage = tuple[int, int, int, int]
"""The number of processes, of whole epochs, of batches after them, and of those fetched ahead."""


def load(
    arguments: Arguments, state: bytes | None, whole: int, more: int, depth: int
) -> tuple[list[Epoch], bytes]:
    """Load whole epochs and some batches after a state; return them and the next state."""
    feed = build(arguments, depth)
    if state is not None:
        feed.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
    epochs = [epoch(feed) for _ in range(whole)]
    epochs.append(epoch(islice(feed, more)) if more else [])
    file = io.BytesIO()
    torch.save(feed.state_dict(), file)
    return epochs, file.getvalue()


def check_stages(
    arguments: Arguments,
    stages: list[Stage],
    run: Callable[..., list[Any]] = in_each,
    **options: Any,
) -> None:
    """Resume each stage from the one before; compare the batches of all ranks with the expected.

    Args:
        arguments: With the global batch size.
        stages: The stages.
        run: `run(function, *arguments, processes=)` → what the function returns on each rank.
        options: Further arguments of the loaders.
    """
    epochs, state, number, begin = expected(arguments, 3 * len(stages)), None, 0, 0
    for processes, whole, more, depth in stages:
        split_arguments = split(arguments, processes) | options
        by_rank = run(load, split_arguments, state, whole, more, depth, processes=processes)
        by_epoch, states = zip(*by_rank, strict=True)
        loaded = [side_by_side(list(together)) for together in zip(*by_epoch, strict=True)]
        for batches in loaded[:-1]:
            assert batches == epochs[number][begin:]
            number, begin = number + 1, 0
        end = begin + more
        assert loaded[-1] == epochs[number][begin:end]
        number, begin = (number, end) if end < len(epochs[0]) else (number + 1, 0)
        state = states[-1]
        first, *others = (torch.load(io.BytesIO(saved), weights_only=True) for saved in states)
        assert all(equal_trees(first, of_rank) for of_rank in others)
