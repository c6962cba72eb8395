"""The loader: its epochs, its settings, and what it rejects."""

import os
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.data.batches_by_rank import in_each
from support.data.loaders import WORKERS, build, epoch, with_and_without_workers
from torch.utils.data import DataLoader, TensorDataset

from torch_bridge import make_loader

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
def test_default_device_changes_nothing(num_workers: int, depth: int) -> None:
    """A loader is built, iterated, saved and resumed while "meta" is the default device."""

    def run() -> list[Any]:
        arguments = {"dataset": Made(), "batch_size": 2, "num_workers": num_workers}
        loaders = [build(arguments, depth) for _ in range(2)]
        first = next(iter(loaders[0]))
        assert first.device.type == "cpu"
        loaders[1].load_state_dict(loaders[0].state_dict())
        return [first.tolist(), *(epoch(loaders[1]) for _ in range(2))]

    expected = run()
    with torch.device("meta"):
        assert run() == expected
        assert torch.get_default_device().type == "meta"


def test_workers_of_each_rank_draw_other_numbers() -> None:
    """DataLoader seeds the workers from this generator."""
    loaders = in_each(partial(make_loader, range(8), 2, num_workers=0, seed=3), processes=4)
    drawn = [torch.empty((), dtype=torch.int64).random_(generator=one.generator).item() for one in loaders]
    assert len(set(drawn)) == 4


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
