"""Loaders, prefetched or not, and their states."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from support.training.trees import through_file
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
