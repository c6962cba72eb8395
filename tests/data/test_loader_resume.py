"""A loader has one position, which a state may move forward or back."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, strategies as st
from support.data.batches_by_rank import shared
from support.data.loaders import (
    WORKERS,
    build,
    depths,
    epoch,
    saved_after,
    seeds,
    with_and_without_workers,
)
from support.examples import examples

from torch_bridge import make_loader

pytestmark = WORKERS


@given(seeds, st.integers(0, 40), st.integers(0, 40))
@examples(30)
def test_any_epoch_is_reachable_from_any_other(seed: int, first: int, second: int) -> None:
    """Orders are drawn one after another; a state may lead forward or back."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(5, generator=generator).tolist() for _ in range(41)]
    loader = make_loader(range(5), 5, seed=seed, num_workers=0)
    state = loader.state_dict()
    for number in (first, second):
        loader.load_state_dict({**state, "epoch": number})
        assert epoch(loader) == [orders[number]]


@given(seeds, st.integers(1020, 1028) | st.integers(1, 2**40))
@example(0, 2**31)
@examples(100)
def test_far_epoch_is_the_one_after_the_epoch_before(seed: int, number: int) -> None:
    """A damaged state may name any epoch: it is reached as soon as any other."""
    earlier, loader = (make_loader(range(9), 9, seed=seed, num_workers=0) for _ in range(2))
    state = loader.state_dict()
    earlier.load_state_dict({**state, "epoch": number - 1})
    loader.load_state_dict({**state, "epoch": number})
    orders = [*epoch(earlier), *epoch(earlier)]
    assert epoch(loader) == orders[1:]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(9))
    assert orders[0] != orders[1]


def test_interrupt_while_an_order_is_drawn_changes_no_order() -> None:
    uninterrupted, loader = (make_loader(range(20), 4, seed=3, num_workers=0) for _ in range(2))
    draw = torch.randperm

    def interrupted_draw(*args: Any, **options: Any) -> None:
        draw(*args, **options)  # Python delivers Ctrl-C after the call that it came in
        raise KeyboardInterrupt

    assert epoch(loader) == epoch(uninterrupted)
    state = loader.state_dict()
    with patch.object(torch, "randperm", interrupted_draw), pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    loader.load_state_dict(state)
    assert [epoch(loader) for _ in range(2)] == [epoch(uninterrupted) for _ in range(2)]


@given(shared(), st.integers(0, 10), depths)
@examples(100)
def test_loader_may_load_its_earlier_state(case: Any, count: int, depth: int) -> None:
    feed, resumed = (build(case[0], depth, num_workers=0) for _ in range(2))
    state = saved_after(feed, count)
    resumed.load_state_dict(state)
    rest = [epoch(resumed) for _ in range(2)]
    for _ in zip(range(2), feed, strict=False):
        pass
    feed.load_state_dict(state)
    assert [epoch(feed) for _ in range(2)] == rest


@with_and_without_workers
@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("load", [False, True])
def test_new_iteration_ends_earlier_one(num_workers: int, depth: int, load: bool) -> None:
    """With workers the old one would take batches away from the new one."""
    arguments = {"dataset": range(10), "batch_size": 2, "num_workers": num_workers}
    uninterrupted, feed = build(arguments), build(arguments, depth)
    first, second = epoch(uninterrupted), epoch(uninterrupted)
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
def test_resumed_loader_meets_same_failing_sample(fails_at: int, depth: int) -> None:
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
