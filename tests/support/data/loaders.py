"""Generated arguments of loaders, and interrupted and resumed runs."""

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

EPOCHS = 3
Arguments = dict[str, Any]
seeds = st.integers(0, 2**32 - 1)
depths = st.integers(0, 3)


@st.composite
def arguments(draw: st.DrawFn) -> Arguments:
    """Draw arguments of make_loader that give at least one batch per epoch."""
    samples = draw(st.integers(1, 30))
    given: Arguments = {"training": draw(st.booleans()), "seed": draw(seeds)}
    for name in draw(st.sets(st.sampled_from(["shuffle", "drop_last"]))):
        given[name] = draw(st.booleans())
    most = samples if given.get("drop_last", given["training"]) else samples + 3
    return {"dataset": range(samples), "batch_size": draw(st.integers(1, most)), **given}


@st.composite
def interruptions(draw: st.DrawFn) -> tuple[Arguments, int, int]:
    """Draw arguments and two numbers of batches, often whole epochs, before the end of the last epoch."""
    given = draw(arguments())
    length = len(make_loader(**given, num_workers=0))
    cuts = st.integers(0, EPOCHS - 1).map(lambda e: e * length) | st.integers(0, EPOCHS * length - 1)
    first, last = sorted([draw(cuts), draw(cuts)])
    return given, first, last - first


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


def saved_after(feed: Any, count: int, see_end: bool = False) -> Any:
    """Return the state after `count` batches. With `see_end`, request another batch at an epoch's end."""
    batches = iter(())
    for _ in range(count):
        try:
            next(batches)
        except StopIteration:
            batches = iter(feed)
            next(batches)
    if see_end:
        assert next(batches, None) is None
    return through_file(feed.state_dict())


def check_resume(
    arguments: Arguments, first: int, second: int, depths: tuple[int, int], see_end: bool = False, **more: Any
) -> None:
    """Compare a run interrupted after `first` batches, and again after `second`, with one that is not."""
    uninterrupted = build(arguments, **more)
    epochs = [epoch(uninterrupted) for _ in range(EPOCHS)]
    length = len(uninterrupted)
    state, done = None, 0
    for count, depth in zip((first, second), depths, strict=True):
        feed = build(arguments, depth, **more)
        if state is not None:
            feed.load_state_dict(state)
        done += count
        state = saved_after(feed, count, see_end and done % length == 0 and count > 0)
    resumed = build(arguments, depths[-1], **more)
    resumed.load_state_dict(state)
    index, start = divmod(done, length)
    expected = [epochs[index][start:], *epochs[index + 1 :]]
    assert [epoch(resumed) for _ in expected] == expected


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
