"""Hints for `step(inputs, targets)`, which is two micro-batches, if `step((inputs, targets))` was meant."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_bridge.curve_api import warn


def add_micro_batch_hint(error: Exception, micro_batches: Sequence[Any]) -> None:
    """Add a note to an error that `loss_fn` may have raised because it got only one part of a batch."""
    # OutOfMemoryError is a RuntimeError too.
    may_be_parts = isinstance(error, TypeError | ValueError | IndexError | RuntimeError)
    if may_be_parts and not isinstance(error, torch.OutOfMemoryError) and _are_several_tensors(micro_batches):
        error.add_note(_hint(len(micro_batches)))


def warn_if_parts_of_batch(micro_batches: Sequence[Any]) -> None:
    """Warn about bare tensors that are probably the parts of one batch, not micro-batches.

    Integer tensors of one dtype may be micro-batches of token ids, which differ in length: no warning.

    Warns:
        CurveWarning: The tensors differ in dtype or trailing shape.
    """
    if not _are_several_tensors(micro_batches):
        return
    first = micro_batches[0]
    for batch in micro_batches[1:]:
        are_tokens = (
            not first.is_floating_point() and first.dtype == batch.dtype and first.dim() == batch.dim()
        )
        if not are_tokens and (first.dtype != batch.dtype or first.shape[1:] != batch.shape[1:]):
            warn(
                f"tensors of {first.dtype} and shape {tuple(first.shape)}, and of {batch.dtype} and shape "
                f"{tuple(batch.shape)}, are the micro-batches of one update. {_hint(len(micro_batches))}"
            )
            return


def _are_several_tensors(micro_batches: Sequence[Any]) -> bool:
    return len(micro_batches) > 1 and all(isinstance(batch, Tensor) for batch in micro_batches)


def _hint(count: int) -> str:
    return (
        f"{count} arguments are {count} micro-batches, and loss_fn gets one at a time: pass a batch of "
        "several tensors as one argument, step((x, y))"
    )
