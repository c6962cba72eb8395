"""A resumed run goes on with the first batch not handed out, and a loader has one place."""

import itertools
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples
from support.loaders import (
    WORKERS,
    Arguments,
    arguments,
    build,
    check_resume,
    depths,
    epoch,
    interruptions,
    saved_after,
    with_and_without_workers,
)
from support.training import through_a_file
from torch.utils.data import Sampler
from torchdata.stateful_dataloader.sampler import RandomSampler, StatefulDistributedSampler

from torch_bridge import make_loader, prefetch
from torch_bridge.checkpointing.loading_parts import LoadingPart

pytestmark = WORKERS

Cuts = tuple[Arguments, int, int]
pairs = st.tuples(depths, depths)


@given(interruptions(), pairs, st.booleans())
@example(({"dataset": range(10), "batch_size": 3}, 3, 0), (0, 0), False)
@example(({"dataset": range(10), "batch_size": 3}, 3, 3), (2, 2), False)
@example(({"dataset": range(10), "batch_size": 3}, 3, 3), (0, 0), True)
@example(({"dataset": range(10), "batch_size": 3}, 0, 0), (0, 3), False)
@examples(300)
def test_a_resumed_run_goes_on_with_the_first_batch_not_handed_out(
    cuts: Cuts, depths: tuple[int, int], see_end: bool
) -> None:
    check_resume(*cuts, depths, see_end, num_workers=0)


@pytest.mark.slow
@given(interruptions(), pairs, st.booleans(), st.booleans())
@example(({"dataset": range(7), "batch_size": 2}, 3, 0), (0, 0), False, True)
@example(({"dataset": range(7), "batch_size": 2}, 3, 3), (2, 1), True, False)
@examples(4)
def test_the_same_with_workers(cuts: Cuts, depths: tuple[int, int], see_end: bool, persistent: bool) -> None:
    check_resume(*cuts, depths, see_end, num_workers=2, persistent_workers=persistent)


@pytest.mark.slow
def test_the_same_with_spawned_workers() -> None:
    arguments = {"dataset": range(8), "batch_size": 2, "num_workers": 1, "multiprocessing_context": "spawn"}
    whole, resumed = build(arguments), build(arguments, 1)
    batches = iter(whole)
    next(batches)
    resumed.load_state_dict(through_a_file(whole.state_dict()))
    assert epoch(resumed) == epoch(batches)
    assert epoch(resumed) == epoch(whole)


class _Epochs(Sampler[int]):
    """Another order in each epoch; the state, of the sampler alone, is that of the next epoch at an end."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch, self.position = length, 0, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        order = random.Random(self.epoch).sample(range(self.length), self.length)
        while self.position < self.length:
            self.position += 1
            yield order[self.position - 1]
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch, self.position = state_dict["epoch"], state_dict["position"]


_SAMPLERS: dict[str, Callable[[int], Any]] = {
    "in its iterators": lambda length: RandomSampler(
        range(length), generator=torch.Generator().manual_seed(5)
    ),
    "of its own": _Epochs,
    "none": lambda length: list(range(length)),
    "a place alone": lambda length: StatefulDistributedSampler(
        cast("Any", range(length)), num_replicas=1, rank=0
    ),
}


@pytest.mark.parametrize("sampler", _SAMPLERS)
@pytest.mark.parametrize("length", [8, 9, 1])
@pytest.mark.parametrize("training", [True, False])
def test_the_same_with_a_sampler_that_has_a_state(sampler: str, length: int, training: bool) -> None:
    """At every place, the end of an epoch with an incomplete last batch too."""

    def build_one() -> Any:
        of = {
            "sampler": _SAMPLERS[sampler](length),
            "training": training,
            "drop_last": length > 8 and training,
        }
        return make_loader(range(length), 2, num_workers=0, **of)

    whole = build_one()
    epochs = [epoch(whole) for _ in range(4)]
    for count, see_end in itertools.product(range(2 * len(whole) + 1), (False, True)):
        resumed = build_one()
        at_end = see_end and count > 0 and count % len(whole) == 0
        resumed.load_state_dict(saved_after(build_one(), count, at_end))
        index, start = divmod(count, len(whole))
        assert epoch(resumed) == epochs[index][start:]
        assert epoch(resumed) == epochs[index + 1]


@pytest.mark.parametrize("sampler", [*_SAMPLERS, None])
@given(st.integers(0, 9), st.integers(0, 9), depths)
@examples(15)
def test_a_load_that_is_undone_ends_no_iteration(
    sampler: str | None, seen: int, loaded: int, depth: int
) -> None:
    """Another part refuses its state after the loader has taken its own: all is as before."""

    def build_one() -> Any:
        of = {} if sampler is None else {"sampler": _SAMPLERS[sampler](7)}
        return build({"dataset": range(7), "batch_size": 2, "drop_last": False, **of}, depth, num_workers=0)

    def take(batches: Any, count: int) -> list[Any]:
        return [batch.tolist() for batch in islice(batches, count)]

    other, whole, feed = build_one(), build_one(), build_one()
    state = saved_after(other, loaded)
    expected = [epoch(whole) for _ in range(3)]
    before, now = divmod(seen, 4)
    for each in range(before):
        assert epoch(feed) == expected[each]
    batches = iter(feed)
    assert take(batches, now) == expected[before][:now]
    part = LoadingPart("loader", feed)
    part.receive({"of": "state", "state": state}, False)
    part.load()
    part.put_back()
    assert take(batches, 9) == expected[before][now:]
    if before < 2:
        assert epoch(feed) == expected[before + 1]


def test_a_path_is_not_a_state() -> None:
    for path in ("loader.pt", Path("loader.pt")):
        with pytest.raises(ValueError, match=r"is a path, .*load the file first, .*torch\.load\(path"):
            make_loader(range(4), 2, num_workers=0).load_state_dict(path)  # type: ignore[arg-type]  (that is what is tested)


@given(arguments(), st.integers(0, 10), depths)
@examples(100)
def test_a_loader_may_go_back_to_its_own_state(arguments: Arguments, count: int, depth: int) -> None:
    """A loader may load its own earlier state in mid-epoch: what follows is the same."""
    feed = build(arguments, depth, num_workers=0)
    state = saved_after(feed, count)
    after = [epoch(feed) for _ in range(2)]
    resumed = build(arguments, depth, num_workers=0)
    resumed.load_state_dict(state)
    rest = [epoch(resumed) for _ in range(2)]
    for _ in zip(range(2), feed, strict=False):
        pass
    feed.load_state_dict(state)
    resumed.load_state_dict(saved_after(feed, 0))
    assert [epoch(feed) for _ in range(2)] == rest
    assert [epoch(resumed) for _ in range(2)] == rest
    assert rest[1] == after[0] if count % len(feed) else rest == after


@with_and_without_workers
@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("load", [False, True])
def test_a_new_beginning_ends_the_iteration_before(num_workers: int, depth: int, load: bool) -> None:
    """With workers the old one would take batches away from the new one."""
    arguments = {"dataset": range(10), "batch_size": 2, "num_workers": num_workers}
    whole, feed = build(arguments), build(arguments, depth)
    first, second = epoch(whole), epoch(whole)
    old = iter(feed)
    assert next(old).tolist() == first[0]
    if load:
        feed.load_state_dict(feed.state_dict())
        expected = first[1:]
    else:
        expected = second
    new = iter(feed)
    seen = [] if load else [next(new).tolist()]
    with pytest.raises(RuntimeError, match="this iteration was ended"):
        next(old)
    assert next(old, None) is None
    state = feed.state_dict()
    assert seen + epoch(new) == expected
    resumed = build(arguments)
    resumed.load_state_dict(state)
    assert epoch(resumed) == expected[len(seen) :]


@given(st.integers(0, 3), depths)
def test_after_an_error_a_resumed_loader_comes_to_the_same_sample(fails_at: int, depth: int) -> None:
    values: list[Any] = [0, 1, 2, 3]
    values[fails_at] = "no number"
    arguments = {
        "dataset": values,
        "batch_size": 1,
        "training": False,
        "num_workers": 0,
        "collate_fn": torch.tensor,
    }
    feed, resumed = build(arguments, depth), build(arguments, depth)
    seen: list[Any] = []
    with pytest.raises(ValueError, match="too many dimensions 'str'"):
        seen.extend(batch.item() for batch in feed)
    assert seen == list(range(fails_at))
    resumed.load_state_dict(feed.state_dict())
    with pytest.raises(ValueError, match="too many dimensions 'str'"):
        next(iter(resumed))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"dataset": range(9)}, r"samples = 9 \(now 8\)"),
        ({"batch_size": 2}, r"batch_size = 2 \(now 4\)"),
        ({"seed": 1}, r"seed = 1 \(now 0\)"),
        ({"shuffle": False}, r"shuffle = False \(now True\)"),
        ({"training": False}, r"shuffle = False \(now True\), drop_last = False \(now True\)"),
    ],
)
def test_the_state_of_another_loader_is_refused_and_changes_nothing(other: Arguments, says: str) -> None:
    ours: Arguments = {"dataset": range(8), "batch_size": 4, "num_workers": 0}
    state = make_loader(**{**ours, **other}).state_dict()
    loader, untouched = make_loader(**ours), make_loader(**ours)
    with pytest.raises(ValueError, match=f"saved by a loader with {says}"):
        loader.load_state_dict(state)
    with pytest.raises(ValueError, match=r"make_loader of version 0\.1"):
        loader.load_state_dict({"made_with": loader.state_dict()["made_with"], "_num_yielded": 1})
    with pytest.raises(ValueError, match="not the state of a loader"):
        prefetch(loader, "cpu").load_state_dict({"epoch": 1})
    assert epoch(loader) == epoch(untouched)
