"""The largest micro-batch that fits in memory, found by trial."""

import gc
import math
import random
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from plateau_jax.arguments import checks
from torch_bridge.training.distributed import processes
from torch_bridge.training.train_step.result import StepResult

# The optimizer creates its state in the first update, and a CUDA graph is captured in the fourth:
# the fifth only replays it.
_UPDATES = 5
_MAX_CALLS = 24  # fp16 skips up to 16 updates until its loss scale fits
_OUT_OF_MEMORY_MESSAGES = (
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
    """Find the largest micro-batch that fits in memory, and how many of them make the global batch.

    Provisional: a minor release may change it.

        micro_batch · accumulation = global_batch

    The search bisects the divisors of `global_batch`: if a micro-batch does not fit, larger ones
    don't either. Each trial builds a `TrainStep`, makes five updates, and frees its memory. To save
    time, an update of a trial keeps all of its micro-batches in memory, but runs only two of them:
    further ones need no more memory. At the end, the random states of torch, NumPy and Python are
    restored.

    The search runs in one process. To train on n ranks, run it beforehand with the global batch
    divided by n, then again with a `limit` below the result, to leave memory for communication.

    Args:
        make_step: Builds a new model and optimizer, and returns a `TrainStep` over them, or another
            callable that takes micro-batches. Nothing else may refer to the model. If the
            `TrainStep` has a `DataClock`, this needs a `count`.
        make_batch: `make_batch(n)` returns a micro-batch of n samples, on the device.
        global_batch: Samples in an update; at most 2³¹ - 1.
        limit: The largest micro-batch to try.

    Returns:
        The pair (micro_batch, accumulation), with accumulation the number of micro-batches in an
        update.

    Raises:
        TypeError: A number is not an integer.
        ValueError: `make_step` returned a `TrainStep` over a model that existed before; a number is
            out of range.
        RuntimeError: Not even one sample fits; or there are several processes.

    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import TrainStep
    >>> def make_step():
    ...     model = torch.nn.Linear(2, 1)
    ...     optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    ...     loss_fn = lambda model, batch: model(batch).mean()
    ...     return TrainStep(model, optimizer, loss_fn, PlateauCurve(100))
    >>> find_batch_size(make_step, lambda micro_batch: torch.ones(micro_batch, 2), 96, limit=40)
    (32, 3)
    """
    samples = checks.positive_int("global_batch", global_batch)
    if limit is None:
        limit = samples
    limit = checks.at_least("limit", limit, 1)
    if processes.world_size() > 1:
        raise RuntimeError(
            f"find_batch_size runs in one process, and there are {processes.world_size()}: run it "
            f"beforehand in a separate process, with global_batch = {samples} divided by the "
            "number of ranks"
        )
    with _preserved_random_states():
        _check_model_is_new(make_step)
        sizes = [size for size in _divisors(samples) if size <= limit]
        # Bisection bounds: sizes[:fitting] fit, sizes[unfit:] do not.
        fitting = 0
        unfit = len(sizes)
        while fitting < unfit:
            middle = (fitting + unfit) // 2
            fits = _fits(make_step, make_batch, sizes[middle], samples // sizes[middle])
            _free_memory()
            if fits:
                fitting = middle + 1
            else:
                unfit = middle
    if not fitting:
        raise RuntimeError(
            "not even a micro-batch of one sample fits: see checkpoint_activations, and fully_shard"
        )
    micro_batch = sizes[fitting - 1]
    return micro_batch, samples // micro_batch


def _divisors(number: int) -> list[int]:
    divisors: set[int] = set()
    for size in range(1, math.isqrt(number) + 1):
        if number % size == 0:
            divisors.add(size)
            divisors.add(number // size)
    return sorted(divisors)


def _check_model_is_new(make_step: Callable[[], Any]) -> None:
    """Reject a `make_step` whose model outlives its `TrainStep`: trials would train the model."""
    model = getattr(make_step(), "model", None)
    parameters: list[weakref.ref[Any]] = []
    if model is not None:
        parameters = [weakref.ref(parameter) for parameter in model.parameters()]
    del model
    _free_memory()
    if any(parameter() is not None for parameter in parameters):
        raise ValueError(
            "the model of the TrainStep that make_step returned exists outside of it, and trials "
            "would train it: build the model and its optimizer inside make_step, and keep no "
            "reference to them"
        )


def _fits(
    make_step: Callable[[], Callable[..., Any]],
    make_batch: Callable[[int], Any],
    size: int,
    accumulation: int,
) -> bool:
    """Return True if a new `TrainStep` makes its updates without running out of memory."""
    train_step = make_step()  # outside the try: if it alone does not fit, no batch size helps
    try:
        for calls in range(1, _MAX_CALLS + 1):
            skipped = _skipped_after_update(train_step, make_batch(size), accumulation)
            if calls - skipped == _UPDATES:
                break
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        return False
    return True


def _skipped_after_update(train_step: Callable[..., Any], batch: Any, accumulation: int) -> int:
    """Make an update as training does, and return the number of updates skipped so far."""
    # All micro-batches of the update are in memory, but it is enough to run two: the second one
    # runs with the gradients of the first in memory, and further ones need no more.
    copies: list[Any] = [
        pytree.tree_map_only(Tensor, torch.clone, batch) for _ in range(accumulation - 1)
    ]
    result = train_step(batch, *copies[:1])
    if isinstance(result, StepResult):
        return int(result.skipped)
    return 0


def _free_memory() -> None:
    gc.collect()  # modules, graphs and tracebacks are in reference cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def _preserved_random_states() -> Generator[None]:
    """Restore all random states at the end.

    The number of trials depends on the memory; a run's random numbers must not.
    """
    numpy_state = np.random.get_state()  # noqa: NPY002 (the state to restore)
    python_state = random.getstate()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002 (the same)
        random.setstate(python_state)


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if an error, or its cause, says that memory ran out."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError):
            message = str(error)
            if any(part in message for part in _OUT_OF_MEMORY_MESSAGES):
                return True
        error = error.__cause__ or getattr(error, "inner_exception", None)  # of torch.compile
    return False
