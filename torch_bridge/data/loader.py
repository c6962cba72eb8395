"""A data loader that fits the machine and resumes in mid-epoch."""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sized
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch.utils.data import IterableDataset

# torchdata has its types in its source and no marker that says so.
from torchdata.stateful_dataloader import StatefulDataLoader  # pyright: ignore[reportMissingTypeStubs]
from torchdata.stateful_dataloader.sampler import RandomSampler  # pyright: ignore[reportMissingTypeStubs]

from torch_bridge.core import checks

# Each worker holds the dataset object once more, and a single device seldom eats faster than this.
MOST_WORKERS = 8

_NOT_HERE = {
    "num_workers": "is given as workers=",
    "generator": "is made from seed=",
    "batch_sampler": "has no place beside batch_size; give sampler=",
    "pin_memory_device": "is deprecated; give device=",
    "non_blocking": "belongs to the copy, not to the loader; prefetch(loader, device) copies that way",
}
_WORKERS_ONLY = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


@runtime_checkable
class Indexed(Protocol):
    """A dataset with a length and samples by index: `TensorDataset`, any map-style `Dataset`, a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


class _Loader(StatefulDataLoader[Any]):
    """A StatefulDataLoader whose state knows whose it is, and is that after the last batch handed out."""

    made_with: Mapping[str, Any]
    _state: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  (torch names its class)
        batches = super().__iter__()
        # Kept from batch to batch, since torchdata counts a batch as done that failed while it was loaded.
        self._state = self._snapshot()
        for batch in batches:
            self._state = self._snapshot()
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self._snapshot() if self._state is None else self._state

    def _snapshot(self) -> dict[str, Any]:
        state = super().state_dict()
        # torchdata sees the end of an epoch when it is asked for one batch too many; a state saved
        # before that would come back as an epoch without batches. Its own count of batches is the one
        # that is right after a resume, with workers and without.
        if self._iterator is not None and self._iterator._num_yielded == len(self):  # pyright: ignore[reportPrivateUsage]
            state["_iterator_finished"] = True
        return {**state, "made_with": dict(self.made_with)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("made_with") if isinstance(state_dict, Mapping) else None
        if saved is None:
            raise ValueError("state_dict is not the state of a loader that make_loader built")
        if saved != self.made_with:
            changes = [
                f"{name} = {saved.get(name)!r} (now {value!r})"
                for name, value in self.made_with.items()
                if saved.get(name) != value
            ]
            raise ValueError(f"state_dict was saved by a loader with {', '.join(changes)}")
        super().load_state_dict(state_dict)
        self._state = None


def make_loader(
    dataset: Indexed,
    batch_size: int,
    *,
    training: bool = True,
    device: torch.device | str | None = None,
    workers: int | None = None,
    seed: int = 0,
    **overrides: Any,
) -> StatefulDataLoader[Any]:
    """A loader whose settings fit together and fit the machine, reproducible and resumable in mid-epoch.

    Every iteration is an epoch. For training each has another order, drawn from `seed`, and the last
    incomplete batch is dropped; otherwise the dataset comes in its own order, whole. torch's, NumPy's
    and Python's random states are left alone.

    `state_dict()` may be asked at any time, and `load_state_dict(state)` on a loader built with the
    same arguments makes its next iteration begin with the first batch that had not been handed out:
    in mid-epoch the rest of that epoch, after an epoch's last batch the next epoch. The random states
    inside workers are not saved, so an augmentation that is to be the same after a resume takes its
    randomness from (seed, epoch, index) and not from a generator that runs on.

    Args:
        dataset: Samples by index, with a length.
        batch_size: Samples in a batch.
        training: Whether to shuffle and to drop the last incomplete batch.
        device: Where the batches will go (see `prefetch`); for CUDA they are put in pinned memory.
        workers: Processes that load; by default one fewer than the cores that this process may use,
            at most 8. They live through all epochs, each with its own copy of the dataset. A state
            belongs to a number of workers: give it, to resume on a machine with other cores. Where
            processes are spawned, the script needs its `if __name__ == "__main__":`.
        seed: What the orders are drawn from: 0 to 2³² - 1.
        **overrides: Other keyword arguments of `torch.utils.data.DataLoader`, such as `shuffle`,
            `drop_last`, `collate_fn` or `prefetch_factor`. A `sampler` replaces the order; to be
            resumable it has to have a state, or give the same order again.

    Returns:
        A `torchdata.stateful_dataloader.StatefulDataLoader`.

    Raises:
        TypeError: A dataset without length or index (an `IterableDataset`, which has a place in its
            stream instead: build the loader yourself), or a keyword argument that has no place here.
        ValueError: Settings that contradict each other, or a dataset too small for a single batch.
            From `load_state_dict`: the state of a loader that was built otherwise.

    >>> loader = make_loader(range(10), 4, workers=0)
    >>> batches = iter(loader)
    >>> first, state = next(batches), loader.state_dict()
    >>> resumed = make_loader(range(10), 4, workers=0)
    >>> resumed.load_state_dict(state)
    >>> [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]
    True
    """
    for name in overrides.keys() & _NOT_HERE.keys():
        raise TypeError(f"{name} = {overrides[name]!r} {_NOT_HERE[name]}")
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Indexed):
        raise TypeError(f"dataset = {dataset!r} must have a length and samples by index")
    batch_size = checks.at_least("batch_size", batch_size, 1)
    seed = checks.at_least("seed", seed, 0)
    if seed >= 2**32:
        raise ValueError(f"seed = {seed} must be below 2**32: torch's generator would ignore the bits above")
    on_cuda = device is not None and torch.device(device).type == "cuda" and torch.cuda.is_available()

    for_workers = [name for name in _WORKERS_ONLY if overrides.get(name)]
    if workers is None:
        workers = max(min(_usable_cores() - 1, MOST_WORKERS), 1 if for_workers else 0)
    workers = checks.at_least("workers", workers, 0)
    if workers == 0 and for_workers:
        raise ValueError(f"{for_workers[0]} = {overrides[for_workers[0]]!r} needs workers > 0")
    if overrides.get("prefetch_factor") is not None:
        checks.at_least("prefetch_factor", overrides["prefetch_factor"], 1)
    if not overrides.get("in_order", True):
        raise ValueError("in_order = False would lose the order that a resume needs")
    if overrides.get("pin_memory") and not on_cuda:
        raise ValueError(f"pin_memory = True, but device = {device!r} is no CUDA device of this machine")

    settings: dict[str, Any] = {
        "shuffle": training and overrides.get("sampler") is None,
        "drop_last": training,
        "pin_memory": on_cuda,
        "persistent_workers": workers > 0,
        "sampler": None,
        **overrides,
    }
    shuffle, sampler = settings.pop("shuffle"), settings.pop("sampler")
    if shuffle and sampler is not None:
        raise ValueError("shuffle = True and a sampler: give one of them")
    samples = len(dataset) if sampler is None else len(cast(Sized, sampler))
    if samples < (batch_size if settings["drop_last"] else 1):
        raise ValueError(
            f"{samples} samples give no batch of batch_size = {batch_size}"
            f" with drop_last = {settings['drop_last']}"
        )
    if shuffle:
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
        loader = _Loader(
            cast(Any, dataset),
            batch_size,
            sampler=sampler,
            num_workers=workers,
            # A generator of its own: what seeds the workers must not draw from the sampler's.
            generator=torch.Generator().manual_seed(seed),
            **settings,
        )
    loader.made_with = {
        "samples": samples,
        "batch_size": batch_size,
        "shuffle": bool(shuffle),
        "drop_last": bool(settings["drop_last"]),
        "seed": seed,
        "workers": workers,
    }
    return loader


def _usable_cores() -> int:
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
