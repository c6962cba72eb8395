"""What to write instead, said where an error of `loss_fn` shows a mistake in how the step was called."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def explain(error: BaseException, micro_batches: Sequence[Any]) -> None:
    """Say what `step(inputs, targets)` means, where `loss_fn` could not take the parts of a batch apart.

    Raises:
        ValueError: In place of such an error.
    """
    if len(micro_batches) < 2 or not all(isinstance(batch, Tensor) for batch in micro_batches):
        return
    meaning = (
        f"{len(micro_batches)} arguments are {len(micro_batches)} micro-batches, and loss_fn gets one at a "
        "time: pass a batch of several tensors as one argument, step((x, y))"
    )
    if isinstance(error, ValueError) and "values to unpack" in str(error):
        raise ValueError(f"{error}: {meaning}") from error
    if isinstance(error, TypeError | IndexError):
        error.add_note(meaning)
