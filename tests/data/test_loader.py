"""The loader: its epochs, its settings, and what it rejects."""

import os
import random
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.data.loaders import (
    WORKERS,
    Arguments,
    build,
    epoch,
    with_and_without_workers,
)
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from torch_bridge import make_loader, prefetch

pytestmark = WORKERS


@with_and_without_workers
@pytest.mark.parametrize("depth", [0, 2])
def test_loader_keeps_global_random_states(num_workers: int, depth: int) -> None:
    def states() -> Any:
        of_numpy = repr(np.random.get_state())  # noqa: NPY002  this is about the global one
        return torch.get_rng_state().tolist(), of_numpy, random.getstate()

    before = states()
    feed = build({"dataset": range(9), "batch_size": 2}, depth, num_workers=num_workers)
    epoch(feed)
    next(iter(feed))
    state = feed.state_dict()
    epoch(feed)
    feed.load_state_dict(state)
    epoch(feed)
    assert states() == before


class Made:
    """Samples created on torch's default device when they are requested."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), index)


@with_and_without_workers
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("dataset", [range(7), Made()], ids=["range", "made"])
def test_default_device_changes_nothing(num_workers: int, depth: int, dataset: Any) -> None:
    """A loader is built, iterated, saved and resumed while "meta" is the default device."""

    def run() -> list[Any]:
        loaders = [
            build({"dataset": dataset, "batch_size": 2}, depth, num_workers=num_workers) for _ in range(2)
        ]
        first = next(iter(loaders[0]))
        assert first.device.type == "cpu"
        loaders[1].load_state_dict(loaders[0].state_dict())
        return [first.tolist(), *(epoch(loaders[1]) for _ in range(2))]

    expected = run()
    try:
        torch.set_default_device("meta")
        assert run() == expected
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)
    with torch.device("meta"):
        assert run() == expected


@pytest.mark.parametrize(
    ("processes", "cores", "workers"),
    [(1, 1, 0), (1, 2, 1), (1, 9, 8), (1, 64, 8), (4, 7, 0), (4, 8, 1), (4, 16, 3), (4, 200, 8)],
)
def test_default_workers_follow_usable_cores_up_to_limit(
    monkeypatch: pytest.MonkeyPatch, processes: int, cores: int, workers: int
) -> None:
    """The processes of a machine share its cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    loader = make_loader(range(4), 2)
    assert loader.num_workers == workers
    assert loader.persistent_workers == (workers > 0)
    assert make_loader(range(4), 2, prefetch_factor=3).num_workers == max(workers, 1)


@pytest.mark.parametrize(
    ("device", "pinned"), [("cuda", True), ("cuda:1", True), ("cpu", False), (None, False)]
)
def test_only_batches_for_cuda_are_pinned(
    monkeypatch: pytest.MonkeyPatch, device: str | None, pinned: bool
) -> None:
    assert not make_loader(range(4), 2, device="cpu").pin_memory
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert make_loader(range(4), 2, device=device).pin_memory == pinned
    assert not make_loader(range(4), 2, device=device, pin_memory=False).pin_memory


def test_overrides_reach_data_loader() -> None:
    dataset = TensorDataset(torch.arange(6))
    loader = make_loader(
        dataset, 2, num_workers=2, prefetch_factor=5, persistent_workers=False, timeout=9, drop_last=False
    )
    assert isinstance(loader, DataLoader)
    assert (loader.prefetch_factor, loader.persistent_workers, loader.timeout) == (5, False, 9)
    assert (loader.batch_size, loader.drop_last) == (2, False)


def test_custom_order_is_a_subset() -> None:
    order = [3, 1, 4, 0, 5]
    loader = make_loader(
        Subset(cast("Any", range(6)), order), 2, shuffle=False, drop_last=False, num_workers=0
    )
    assert [index for batch in epoch(loader) for index in batch] == order


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"dataset": Stream()}, TypeError, "dataset = .*Stream.* must have a length and samples by index"),
        ({"dataset": iter(range(4))}, TypeError, "dataset = .* must have a length"),
        ({"dataset": []}, ValueError, "0 samples give no batch"),
        ({"dataset": [], "training": False}, ValueError, "0 samples give no batch"),
        (
            {"dataset": range(3)},
            ValueError,
            "3 samples give no batch of batch_size = 4 with drop_last = True",
        ),
        ({"batch_size": 0}, ValueError, "batch_size = 0 must be at least 1"),
        ({"batch_size": 2.0}, TypeError, "batch_size = 2.0 must be an integer"),
        ({"batch_size": None}, TypeError, "batch_size = None must be an integer"),
        ({"num_workers": -1}, ValueError, "num_workers = -1 must be at least 0"),
        ({"num_workers": True}, TypeError, "num_workers = True must be an integer"),
        ({"seed": -1}, ValueError, "seed = -1 must be at least 0"),
        ({"seed": 2**32}, ValueError, "seed = 4294967296 must be below"),
        ({"seed": None}, TypeError, "seed = None must be an integer"),
        ({"sampler": range(8)}, TypeError, r"sampler = range\(0, 8\): make_loader takes no sampler"),
        ({"batch_sampler": []}, TypeError, "batch_sampler = .*: make_loader takes no sampler"),
        ({"generator": None}, TypeError, "generator = None: make_loader takes no sampler"),
        ({"in_order": False}, TypeError, "in_order = False: make_loader takes no sampler or order"),
        ({"num_workers": 0, "prefetch_factor": 2}, ValueError, "num_workers"),
        ({"nonsense": 1}, TypeError, "nonsense"),
    ],
)
def test_invalid_arguments_are_rejected(wrong: Arguments, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make_loader(**{"dataset": range(8), "batch_size": 4, **wrong})


def test_long_value_is_cut_in_rejection() -> None:
    numbers = torch.arange(1000.0)
    feed = prefetch([numbers] * 100, "cpu")
    calls: tuple[Callable[[], object], ...] = (
        lambda: make_loader(range(8), 4, sampler=numbers),
        lambda: make_loader(set(range(1000)), 4),  # pyright: ignore[reportArgumentType]  (the mistake)
        feed.state_dict,
    )
    for call in calls:
        with pytest.raises(TypeError) as caught:
            call()
        assert len(str(caught.value)) < 400
        assert "\n" not in str(caught.value)
