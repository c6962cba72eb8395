"""The number of updates of a training run."""

from collections.abc import Sized
from contextlib import suppress
from typing import Any

from plateau_jax.arguments import checks


def count_updates(loader: Sized | int, epochs: int, *, accumulation: int = 1) -> int:
    """Count the updates in a training run, for the `total_steps` of its curve.

        updates = ⌈batches / accumulation⌉ · epochs

    An update takes `accumulation` batches; the last update of an epoch may take fewer. PyTorch
    Ignite, accelerate with `sync_with_dataloader=False` and `optax.MultiSteps` carry the remaining
    batches into the next epoch instead. They make `batches * epochs // accumulation` updates. Each
    rank counts the batches of its loader, and all ranks get the same number.

    Args:
        loader: Anything whose length is its number of batches, such as a `DataLoader`; or this
            rank's number of batches in an epoch.
        epochs: The number of passes over the loader.
        accumulation: Batches in an update.

    Returns:
        The number of updates.

    Raises:
        TypeError: `loader` is not an integer and has no length, like a loader over an
            `IterableDataset`: pass its number of batches; or `epochs` or `accumulation` is not an
            integer.
        ValueError: One of the three numbers is below 1.

    >>> from torch_bridge import count_updates
    >>> count_updates(10, epochs=3, accumulation=4)
    9
    """
    batches: Any = loader
    if not isinstance(loader, str | bytes):  # "100" is no number of batches, and not 3 of them
        with suppress(TypeError):  # a number has no length
            batches = len(batches)
    batches = checks.at_least("the number of batches", batches, 1)
    epochs = checks.at_least("epochs", epochs, 1)
    accumulation = checks.at_least("accumulation", accumulation, 1)
    return -(-batches // accumulation) * epochs
