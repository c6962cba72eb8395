"""`make_loader`: a data loader that suits the machine and resumes in the middle of an epoch."""

import os
import sys
import warnings
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import IterableDataset

from plateau_jax.arguments import checks
from torch_bridge.training.data.resumable_loader import GlobalBatches, ResumableLoader
from torch_bridge.training.distributed import processes

# Each worker has its own copy of the dataset, and a single device seldom needs more workers.
_MAX_WORKERS = 8

_ORDER_OPTIONS = ("sampler", "batch_sampler", "generator", "in_order")
"""Options of `DataLoader` that would change the order of the samples, so they are rejected."""


@runtime_checkable
class Indexed(Protocol):
    """A dataset with a length and samples by index, such as a map-style `Dataset` or a list."""

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
) -> ResumableLoader:
    """Build a reproducible data loader that resumes in the middle of an epoch.

    Every iteration is an epoch. In training, each epoch has a new order, drawn from `seed` + epoch,
    and an incomplete last batch is dropped. With `training=False`, the whole dataset is loaded in
    the order of its indices. Samples are loaded and collated on the CPU. The random states of
    torch, NumPy and Python are not changed.

    With several processes, each rank loads a different part of every batch. The batches of n ranks,
    joined in the order of the ranks, are those that one process would load with n times the
    `batch_size`. An incomplete last batch is split as evenly as possible. In evaluation a rank may
    get none of it, and then has one batch fewer (see `evaluate`). The ranks are those of the
    process group or, before there is one, of torchrun.

    To resume, build a loader with the same arguments and load the state. The next iteration begins
    with the first batch that had not been returned: the rest of that epoch or, if none is left, the
    next epoch. So if a loop leaves an epoch early, a resumed run first gets the rest of that epoch,
    but an uninterrupted run begins the next one. To leave epochs early, take the batches of all
    epochs from one iterator.

    The state is a position, (epoch, batch). It is the same on every rank, except that a rank
    without samples of the last batch counts that batch when its iteration ends. Any number of ranks
    and workers can load it if the batch of all ranks together keeps its size. A loader has one
    position: a new iteration, or loading a state, ends the previous iteration. Augmentation repeats
    exactly after a resume only if it draws its random numbers from (seed, epoch, index).

    Args:
        dataset: Samples by index, with a length.
        batch_size: Samples in a batch of one process.
        training: If True, shuffle and drop an incomplete last batch.
        device: The device that you will copy the batches to (see `prefetch`). For CUDA they are put
            in pinned memory.
        num_workers: Number of loading processes, each with its own copy of the dataset. They live
            through all epochs. By default one fewer than the cores that this process may use, at
            most 8; the processes on one machine (torchrun's `LOCAL_WORLD_SIZE`) share its cores. On
            systems that spawn workers, a script needs `if __name__ == "__main__":`.
        seed: The seed of the orders, 0 to 2³² - 1.
        **overrides: Other keyword arguments of `torch.utils.data.DataLoader`, such as `shuffle`,
            `drop_last`, `collate_fn` or `prefetch_factor`. For a different order pass
            `torch.utils.data.Subset(dataset, indices)` and `shuffle=False`.

    Returns:
        A `torch.utils.data.DataLoader` with `state_dict` and `load_state_dict`.

    Raises:
        TypeError: The dataset has no length or can't be indexed, like an `IterableDataset`; a
            sampler was passed, or a keyword argument that `DataLoader` does not have.
        ValueError: A number is out of range; the dataset is too small for a batch; in training with
            `drop_last=False`, the last batch has fewer samples than there are ranks. From
            `load_state_dict`: the state is of a loader that was built with different arguments.
        RuntimeError: torch does not know the device. During an iteration: a newer iteration, or a
            loaded state, has ended it; or the loader was built before the process group.

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
        raise TypeError(checks.must("dataset", dataset, "have a length and samples by index"))
    for name in overrides.keys() & _ORDER_OPTIONS:
        raise TypeError(
            f"{name} = {checks.short_repr(overrides[name])} cannot be passed to make_loader: seed= "
            "and shuffle= decide the order of the samples, so that a position is (epoch, batch)"
        )
    batch_size = checks.at_least("batch_size", batch_size, 1)
    seed = checks.in_range("seed", seed, 0, 2**32 - 1)  # torch's generator ignores higher bits
    shuffle = overrides.pop("shuffle", training)
    drop_last = overrides.pop("drop_last", training)
    batches = GlobalBatches(
        len(dataset),
        batch_size,
        shuffle=bool(shuffle),
        drop_last=bool(drop_last),
        seed=seed,
        rank=processes.rank(),
        world_size=processes.world_size(),
    )
    batches.check_sizes(training=training)

    if num_workers is None:
        num_workers = _default_num_workers()
    num_workers = checks.at_least("num_workers", num_workers, 0)
    settings = {
        "pin_memory": device is not None and torch.device(device).type == "cuda",
        "persistent_workers": num_workers > 0,
        **overrides,
    }
    with warnings.catch_warnings():
        # In some versions DataLoader itself calls this deprecated function of torch.
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
        return ResumableLoader(dataset, batches, num_workers=num_workers, **settings)


def _default_num_workers() -> int:
    """Return one fewer than this process's share of the cores, at most `_MAX_WORKERS`."""
    if sys.platform == "linux":
        usable = len(os.sched_getaffinity(0))
    else:
        usable = os.cpu_count() or 1
    cores = usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(cores - 1, _MAX_WORKERS))
