"""`step(inputs, targets)`, written for `step((inputs, targets))`: an update of two micro-batches."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_bridge.curve_api import warn


def add_micro_batch_hint(error: Exception, micro_batches: Sequence[Any]) -> None:
    """Add a note to an error that `loss_fn` may have raised because it got one part of a batch alone."""
    # Running out of memory is a RuntimeError too.
    is_of_parts = isinstance(error, TypeError | ValueError | IndexError | RuntimeError)
    if is_of_parts and not isinstance(error, torch.OutOfMemoryError) and _are_several_tensors(micro_batches):
        error.add_note(_meaning(len(micro_batches)))


def warn_if_parts_of_batch(micro_batches: Sequence[Any]) -> None:
    """Warn of bare tensors that are probably the parts of one batch, and not micro-batches.

    Micro-batches of tokens may differ in length.

    Warns:
        CurveWarning: They differ in dtype or trailing shape.
    """
    if not _are_several_tensors(micro_batches):
        return
    first = micro_batches[0]
    for other in micro_batches[1:]:
        are_tokens = (
            not first.is_floating_point() and first.dtype == other.dtype and first.dim() == other.dim()
        )
        if not are_tokens and (first.dtype != other.dtype or first.shape[1:] != other.shape[1:]):
            warn(
                f"tensors of {first.dtype} and shape {tuple(first.shape)}, and of {other.dtype} and shape "
                f"{tuple(other.shape)}, are the micro-batches of one update. {_meaning(len(micro_batches))}"
            )
            return


def _are_several_tensors(micro_batches: Sequence[Any]) -> bool:
    return len(micro_batches) > 1 and all(isinstance(batch, Tensor) for batch in micro_batches)


def _meaning(count: int) -> str:
    return (
        f"{count} arguments are {count} micro-batches, and loss_fn gets one at a time: pass a batch of "
        "several tensors as one argument, step((x, y))"
    )
