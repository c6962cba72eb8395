"""The largest micro-batch that runs, found by trying."""

import gc
import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torch_bridge.core import checks
from torch_bridge.distributed import processes
from torch_bridge.distributed.agreement import on_all_ranks
from torch_bridge.loop.preserved_state import random_states_kept, states_kept
from torch_bridge.training.step import TrainStep

# Two; more are needed while fp16 skips until its scale fits, and before a CUDA graph is captured.
_MOST_UPDATES = 20
_SIGNS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "out of memory",
    "_STATUS_ALLOC_FAILED",  # of cuBLAS, cuDNN and the like
    "std::bad_alloc",
)


def find_batch_size(
    make_step: Callable[[], Callable[..., Any]],
    make_batch: Callable[[int], Any],
    global_batch: int,
    *,
    limit: int | None = None,
) -> tuple[int, int]:
    """The largest micro-batch that runs, and how many make an update of the global batch.

        micro_batch · accumulation · ranks = global_batch

    It bisects the divisors of global_batch/ranks, which takes about log₂ of their number of trials.
    If a micro-batch does not fit, larger ones are taken not to fit either.

    A trial makes two updates, since the optimizer makes its states in the first. An update holds all of its
    micro-batches in memory and runs two of them, the second with the gradients of the first in memory.
    Afterwards everything is restored: weights, buffers, gradients and modes of
    `step.model`, states and settings of `step.optimizers`, the random states of torch, NumPy and Python.
    During the search, copies of these are in host memory. Memory is freed after each trial.

    With several ranks, every rank calls it. Trials run no collectives; after each trial the ranks agree, and
    a size must fit on every rank. Memory that communication needs beyond its buffers is not measured, above
    all that of blocks which `fully_shard` gathers ahead: set `limit` to leave some room.

    Args:
        make_step: Builds a new `TrainStep` at each call, over the same model and optimizer or new ones. (It
            may build another callable that takes micro-batches; then only what its attributes `model` and
            `optimizers` hold is restored.)
        make_batch: `make_batch(micro_batch)` returns a micro-batch as training passes them to the step.
        global_batch: Samples an update, over all ranks; 1 to 2³¹ - 1.
        limit: The largest micro-batch to try.

    Returns:
        micro_batch and accumulation.

    Raises:
        TypeError: A function that can't be called, or a number that is no integer.
        ValueError: A number out of its range; a global batch that can't be divided by the number of ranks.
        RuntimeError: Not even one sample fits; an error in another rank.

    All errors of `make_step` are raised, and all errors of `make_batch` and the step but "out of memory".

    >>> from plateau_jax import PlateauCurve
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    >>> def make_step():
    ...     return TrainStep(model, optimizer, lambda model, batch: model(batch).mean(), PlateauCurve(100))
    >>> find_batch_size(make_step, lambda micro_batch: torch.ones(micro_batch, 2), 96, limit=40)
    (32, 3)
    """

    def candidates() -> list[int]:
        for name, function in (("make_step", make_step), ("make_batch", make_batch)):
            if not callable(function):
                raise TypeError(f"{name} = {function!r} must be callable")
        share, rest = divmod(checks.count("global_batch", global_batch), processes.count())
        if rest:
            raise ValueError(
                f"global_batch = {global_batch} can't be divided by the {processes.count()} ranks"
            )
        most = share if limit is None else checks.at_least("limit", limit, 1)
        return [size for size in _divisors(share) if size <= most]

    sizes, *others = on_all_ranks(candidates)
    if any(other != sizes for other in others):
        raise ValueError("global_batch and limit are not the same in all ranks")
    share = int(global_batch) // processes.count()  # of NumPy's integers too
    fitting, unfit = 0, len(sizes)  # so many fit; from there on none does
    while fitting < unfit:
        middle = (fitting + unfit) // 2
        size = sizes[middle]
        fits = all(on_all_ranks(lambda size=size: _fits(make_step, make_batch, size, share // size)))
        fitting, unfit = (middle + 1, unfit) if fits else (fitting, middle)
    if not fitting:
        raise RuntimeError(
            "not even a micro-batch of one sample fits: see checkpoint_activations, and fully_shard"
        )
    return sizes[fitting - 1], share // sizes[fitting - 1]


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _fits(
    make_step: Callable[[], Callable[..., Any]],
    make_batch: Callable[[int], Any],
    size: int,
    accumulation: int,
) -> bool:
    try:
        with random_states_kept():
            return _runs(make_step(), make_batch, size, accumulation)
    finally:
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _runs(step: Any, make_batch: Callable[[int], Any], size: int, accumulation: int) -> bool:
    """Whether updates run with the memory that there is."""
    kept = states_kept(getattr(step, "model", None), getattr(step, "optimizers", ()))
    try:
        with step._trial(kept) if isinstance(step, TrainStep) else _trial_of_another(kept) as is_done:
            for _ in range(_MOST_UPDATES):
                batch = make_batch(size)
                held = [
                    batch,
                    *(pytree.tree_map_only(Tensor, torch.clone, batch) for _ in range(accumulation - 1)),
                ]
                step(*held[:2])
                if is_done():
                    break
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        return False
    return True


@contextmanager
def _trial_of_another(kept: AbstractContextManager[Any]) -> Generator[Callable[[], bool]]:
    """As `TrainStep._trial`, for another callable: done after two calls."""
    calls = count(1)
    with kept:
        yield lambda: next(calls) == 2


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that there was no memory."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__ or getattr(error, "inner_exception", None)  # that of torch.compile
    return False
