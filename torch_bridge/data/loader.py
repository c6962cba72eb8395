"""A data loader that fits the machine and resumes in mid-epoch."""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import IterableDataset

# torchdata has its types in its source and no marker that says so.
from torchdata.stateful_dataloader import StatefulDataLoader  # pyright: ignore[reportMissingTypeStubs]
from torchdata.stateful_dataloader.sampler import RandomSampler  # pyright: ignore[reportMissingTypeStubs]

from torch_bridge.core import checks

# Each worker holds the dataset object once more, and a single device seldom needs more than this.
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
    incomplete batch is dropped; otherwise the dataset comes in its own order, whole. Samples are loaded
    and put together on the CPU, whatever torch's default device is. torch's, NumPy's and Python's random
    states are left alone.

    `load_state_dict(loader.state_dict())` on a loader built with the same arguments makes its next
    iteration begin with the first batch that had not been handed out: in mid-epoch the rest of that
    epoch, after an epoch's last batch the next one. A loader has one place: a new iteration, or a loaded
    state, ends the iteration before. The random states inside workers are not saved, so an augmentation
    that is to be the same after a resume takes its randomness from (seed, epoch, index).

    Args:
        dataset: Samples by index, with a length.
        batch_size: Samples in a batch.
        training: Whether to shuffle and to drop the last incomplete batch.
        device: Where the batches will go (see `prefetch`); for CUDA they are put in pinned memory.
        workers: Processes that load, each with its own copy of the dataset, through all epochs; by
            default one fewer than the cores that this process may use, at most 8. A state belongs to a
            number of workers. Where processes are spawned, a script needs `if __name__ == "__main__":`.
        seed: What the orders are drawn from: 0 to 2³² - 1.
        **overrides: Other keyword arguments of `torch.utils.data.DataLoader`, such as `shuffle`,
            `drop_last`, `collate_fn` or `prefetch_factor`. A `sampler` replaces the order; to be
            resumable it has to have a state, or give the same order again.

    Returns:
        A `torchdata.stateful_dataloader.StatefulDataLoader`.

    Raises:
        TypeError: A dataset without length or index (an `IterableDataset` keeps its own place in its
            stream: build the loader yourself), or a keyword argument that has no place here.
        ValueError: Settings that contradict each other, or a dataset too small for a single batch.
            From `load_state_dict`: the state of a loader that was built otherwise.
        RuntimeError: torch does not know the device. From an iteration that was ended by another.

    >>> from torch_bridge import make_loader
    >>> loader = make_loader(range(10), 4, workers=0)
    >>> batches = iter(loader)
    >>> first, state = next(batches), loader.state_dict()
    >>> rest = [batch.tolist() for batch in batches]
    >>> resumed = make_loader(range(10), 4, workers=0)
    >>> resumed.load_state_dict(state)
    >>> [batch.tolist() for batch in resumed] == rest
    True
    """
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Indexed):
        raise TypeError(f"dataset = {dataset!r} must have a length and samples by index")
    batch_size = checks.at_least("batch_size", batch_size, 1)
    seed = checks.at_least("seed", seed, 0)
    if seed >= 2**32:
        raise ValueError(f"seed = {seed} must be below 2**32: torch's generator would ignore the bits above")
    settings = _settings(training, device, workers, overrides)
    shuffle, sampler, drop_last = settings.pop("shuffle"), settings["sampler"], bool(settings["drop_last"])
    samples = len(dataset) if sampler is None else len(cast(Sized, sampler))
    if samples < (batch_size if drop_last else 1):
        raise ValueError(
            f"{samples} samples give no batch of batch_size = {batch_size} with drop_last = {drop_last}"
        )
    if shuffle:
        settings["sampler"] = RandomSampler(dataset, generator=_generator(seed))
    with _on_cpu(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
        # A generator of its own: what seeds the workers must not draw from the sampler's.
        loader = _Loader(cast(Any, dataset), batch_size, generator=_generator(seed), **settings)
    loader.made_with = {
        "samples": samples,
        "batch_size": batch_size,
        "shuffle": shuffle,
        "drop_last": drop_last,
        "seed": seed,
        "workers": settings["num_workers"],
    }
    return loader


def _settings(
    training: bool, device: torch.device | str | None, workers: int | None, overrides: dict[str, Any]
) -> dict[str, Any]:
    """The keyword arguments of the loader, with `shuffle`; refused where they contradict each other."""
    for name in overrides.keys() & _NOT_HERE.keys():
        raise TypeError(f"{name} = {overrides[name]!r} {_NOT_HERE[name]}")
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
    on_cuda = device is not None and torch.device(device).type == "cuda" and torch.cuda.is_available()
    if overrides.get("pin_memory") and not on_cuda:
        raise ValueError(f"pin_memory = True, but device = {device!r} is no CUDA device of this machine")
    sampler = overrides.get("sampler")
    if sampler is not None and overrides.get("shuffle"):
        raise ValueError("shuffle = True and a sampler: give one of them")
    return {
        "drop_last": training,
        "pin_memory": on_cuda,
        "persistent_workers": workers > 0,
        **overrides,
        "shuffle": bool(overrides.get("shuffle", training and sampler is None)),
        "sampler": sampler,
        "num_workers": workers,
    }


class _Loader(StatefulDataLoader[Any]):
    """A StatefulDataLoader whose state knows whose it is, and is that after the last batch handed out."""

    made_with: Mapping[str, Any]
    _state: dict[str, Any] | None = None
    _newest: object = None  # the iteration that the state is of

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  (torch names its class)
        self._newest = this = object()
        with _on_cpu():
            batches = super().__iter__()
        # Kept from batch to batch, since torchdata counts a batch as done that failed while it was loaded.
        self._state = self._snapshot()
        while True:
            if self._newest is not this:
                raise RuntimeError("this iteration was ended: another has begun, or a state was loaded")
            with _on_cpu():
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            self._state = self._snapshot()
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self._snapshot() if self._state is None else self._state

    def _snapshot(self) -> dict[str, Any]:
        with _on_cpu():
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
        # The sampler's generator takes its state on the CPU; torch.load may have put it elsewhere.
        super().load_state_dict(pytree.tree_map_only(Tensor, Tensor.cpu, state_dict))
        self._state = self._newest = None


def _generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def _on_cpu() -> AbstractContextManager[Any]:
    """Tensors without a device are made on the CPU; where they are anyway, nothing slows their making."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _usable_cores() -> int:
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
