"""`make_loader`: a data loader that fits the machine and resumes in mid-epoch."""

import os
import sys
import warnings
from collections.abc import Sized
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch.utils.data import IterableDataset, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

# torchdata has its types in its source and no marker that says so.
from torchdata.stateful_dataloader import StatefulDataLoader  # pyright: ignore[reportMissingTypeStubs]
from torchdata.stateful_dataloader.sampler import RandomSampler  # pyright: ignore[reportMissingTypeStubs]

from torch_bridge.core import checks
from torch_bridge.data.global_batches import GlobalBatches
from torch_bridge.data.resumable_loader import ResumableLoader, on_cpu
from torch_bridge.distributed import processes

# Each worker holds the dataset object once more, and a single device seldom needs more than this.
MOST_WORKERS = 8

_NOT_HERE = {
    "workers": "is given as num_workers=",
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
    num_workers: int | None = None,
    seed: int = 0,
    **overrides: Any,
) -> StatefulDataLoader[Any]:
    """A reproducible data loader that resumes in the middle of an epoch, with settings for this machine.

    Every iteration is an epoch. For training each epoch has a new order, drawn from `seed`, and an incomplete
    last batch is dropped; otherwise the whole dataset comes in its own order. Samples are loaded and collated
    on the CPU, whatever torch's default device is. The random states of torch, NumPy and Python are not
    changed.

    Under several processes (of the process group or, before there is one, torchrun's) each rank loads its
    share of every batch. Put together in the order of ranks, the shares are the batch that one process would
    load with `batch_size` times the number of processes. An incomplete last batch is split as evenly as
    possible. If it has fewer samples than there are processes, some ranks get none of them. In evaluation
    these ranks have one batch fewer (see `evaluate`). In training, where every update needs all ranks, they
    get a batch without rows: a batch of one sample, with every tensor cut to no rows along its first
    dimension.

    `load_state_dict(loader.state_dict())` on a loader built with the same arguments makes its next
    iteration begin with the first batch that had not been handed out: in mid-epoch the rest of that
    epoch, after an epoch's last batch the next one. The state is the same on every rank. Any number of
    processes can load it, if all of them together have the same batch, with any number of workers. A
    loader has one place: a new iteration, or a loaded state, ends the iteration before. A dataset's own
    state and the random states inside workers are not saved, so an augmentation that is to be the same
    after a resume has to take its random numbers from (seed, epoch, index).

    Args:
        dataset: Samples by index, with a length.
        batch_size: Samples in a batch of one process.
        training: Whether to shuffle and to drop the last incomplete batch.
        device: Where the batches will go (see `prefetch`); for CUDA they are put in pinned memory.
        num_workers: Processes that load, each with its own copy of the dataset, through all epochs. By
            default one fewer than the cores that this process may use, at most 8; the processes on one
            machine (torchrun's `LOCAL_WORLD_SIZE`) share its cores. Where workers are spawned, a script
            needs `if __name__ == "__main__":`.
        seed: What the orders are drawn from: 0 to 2³² - 1.
        **overrides: Other keyword arguments of `torch.utils.data.DataLoader`, such as `shuffle`,
            `drop_last`, `collate_fn` or `prefetch_factor`. A `sampler` gives the order of all samples, the
            same on every rank. To resume, it must have a state, or give the same order again.

    Returns:
        A `torchdata.stateful_dataloader.StatefulDataLoader`.

    Raises:
        TypeError: A dataset without length or index (an `IterableDataset` keeps its own place in its
            stream: build the loader yourself), or a keyword argument that has no place here.
        ValueError: Settings that contradict each other; under several processes a `DistributedSampler`, or
            a sampler whose `generator` is None; a dataset too small for a single batch; a batch without
            rows that a `collate_fn` would have to make. From `load_state_dict`: the state of a loader that
            was built with other arguments.
        RuntimeError: torch does not know the device. From an iteration: another has ended it, or the
            loader was built before the process group.

    >>> from torch_bridge import make_loader
    >>> loader = make_loader(range(10), 4, num_workers=0)
    >>> batches = iter(loader)
    >>> first, state = next(batches), loader.state_dict()
    >>> rest = [batch.tolist() for batch in batches]
    >>> resumed = make_loader(range(10), 4, num_workers=0)
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
    settings = _settings(training, device, num_workers, overrides)
    shuffle, sampler, drop_last = (settings.pop(name) for name in ("shuffle", "sampler", "drop_last"))
    count, rank = processes.count(), processes.rank()
    if count > 1 and isinstance(sampler, DistributedSampler):
        raise ValueError(
            f"sampler = {sampler!r} gives this rank's share of the samples, but the loader itself takes this "
            "rank's share of every batch: give a sampler of all samples"
        )
    if count > 1 and sampler is not None and getattr(sampler, "generator", sampler) is None:
        raise ValueError(
            f"sampler = {sampler!r} draws from torch's global random numbers, which differ from rank to "
            "rank: give it a generator= with the same seed on all ranks"
        )
    samples = len(dataset) if sampler is None else len(cast(Sized, sampler))
    whole = batch_size * count
    if samples < (whole if drop_last else 1):
        raise ValueError(
            f"{samples} samples give no batch of batch_size = {batch_size}"
            f"{f' in each of {count} processes' if count > 1 else ''} with drop_last = {drop_last}"
        )
    without_rows = training and not drop_last and 0 < samples % whole < count
    if without_rows and overrides.get("collate_fn") is not None:
        raise ValueError(
            f"{samples} samples leave {samples % whole} for {count} processes in the last batch, but your "
            "collate_fn can't make a batch without rows: give drop_last = True, or another batch_size"
        )
    if sampler is None:
        sampler = (
            RandomSampler(dataset, generator=_generator(seed)) if shuffle else SequentialSampler(dataset)
        )
    batches = GlobalBatches(sampler, batch_size, drop_last, rank, count, equally_many=training)
    made_with = {
        "samples": samples,
        "batch_size": whole,
        "shuffle": shuffle,
        "drop_last": drop_last,
        "seed": seed,
    }
    # The workers' seeds are drawn from this generator: not from the sampler's, whose order they would
    # change, and others on every rank.
    seeds = _generator(seed + rank)
    with on_cpu(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
        return ResumableLoader(dataset, batches, made_with, generator=seeds, **settings)


def _settings(
    training: bool, device: torch.device | str | None, num_workers: int | None, overrides: dict[str, Any]
) -> dict[str, Any]:
    """The keyword arguments of the loader, and `shuffle`. Raises ValueError if they contradict each other."""
    for name in overrides.keys() & _NOT_HERE.keys():
        raise TypeError(f"{name} = {overrides[name]!r} {_NOT_HERE[name]}")
    for_workers = [name for name in _WORKERS_ONLY if overrides.get(name)]
    if num_workers is None:
        cores = _usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        num_workers = max(min(cores - 1, MOST_WORKERS), 1 if for_workers else 0)
    num_workers = checks.at_least("num_workers", num_workers, 0)
    if num_workers == 0 and for_workers:
        raise ValueError(f"{for_workers[0]} = {overrides[for_workers[0]]!r} needs num_workers > 0")
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
        "pin_memory": on_cuda,
        "persistent_workers": num_workers > 0,
        "snapshot_every_n_steps": None,  # ResumableLoader has a state of its own
        **overrides,
        "shuffle": bool(overrides.get("shuffle", training and sampler is None)),
        "sampler": sampler,
        "drop_last": bool(overrides.get("drop_last", training)),
        "num_workers": num_workers,
    }


def _generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def _usable_cores() -> int:
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
