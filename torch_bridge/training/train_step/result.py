"""The results of an update."""

import math
from typing import Any, NamedTuple

from torch import Tensor


class StepResult(NamedTuple):
    """The results of one update, as device tensors that later updates do not overwrite.

    >>> import torch
    >>> half, counters = torch.tensor(0.5), torch.tensor([1, 0, 0, 1])
    >>> result = StepResult(half, half, torch.tensor([0.125]), counters)
    >>> result.lr, result.applied
    (tensor([0.1250]), tensor(1))
    """

    loss: Tensor
    """The loss of the whole update, a floating-point scalar."""
    grad_norm: Tensor
    """The total 2-norm of the gradients, unscaled, before clipping; a floating-point scalar."""
    lr: Tensor
    """The learning rate of each parameter group in this update, float32 of shape (groups,)."""
    counters: Tensor
    """`applied`, `skipped`, `curve_step` and `consumed`, in this order: int64 of shape (4,)."""
    aux: tuple[Any, ...] = ()
    """With `has_aux=True`, the aux outputs of `loss_fn`: one pytree of tensors per micro-batch.

    They are detached, come from this rank alone, and are there for skipped updates too. Without a
    CUDA graph they are not copied, so a parameter or buffer among them keeps changing."""

    # An update has its counters in one tensor; most callers read few of them, so slicing waits
    # until then.
    @property
    def applied(self) -> Tensor:
        """The number of updates applied so far, an int64 scalar."""
        return self.counters[0]

    @property
    def skipped(self) -> Tensor:
        """The number of updates skipped so far, an int64 scalar."""
        return self.counters[1]

    @property
    def curve_step(self) -> Tensor:
        """The step of the curve that gave `lr`, an int64 scalar.

        Each applied update moves it by one, unless a hold rule holds the curve. With a `DataClock`,
        it is the samples or tokens consumed before this update, divided by the unit and rounded
        down.
        """
        return self.counters[2]

    @property
    def consumed(self) -> Tensor:
        """The samples or tokens consumed so far, an int64 scalar, without those of skipped updates.

        Without a `DataClock`, the same as `applied`.
        """
        return self.counters[3]


def read_and_raise_if_nonfinite(result: StepResult, *, scaled: bool) -> None:
    """Raise an error if a result is not finite. Synchronizes with the device.

    Raises:
        FloatingPointError: The loss is not finite; or the norm is not, and the loss was not
            `scaled`. (With a scaled loss, the scale may have overflowed.)
    """
    loss = result.loss.item()
    norm = result.grad_norm.item()
    if not math.isfinite(loss) or (not math.isfinite(norm) and not scaled):
        number = int(result.applied + result.skipped)
        raise FloatingPointError(
            f"update {number} was skipped: its loss is {loss} and its gradient norm {norm}"
        )
