"""An update of one micro-batch on one rank: there is nothing to add up."""

from typing import Any

import torch
from torch import Tensor

from torch_bridge.training.gradients import total_norm
from torch_bridge.training.loss import Loss
from torch_bridge.training.precision import LossScale


class SingleMicroBatch:
    """As `Accumulator` for one micro-batch on one rank, in a third of the time.

    A mean goes backward as it is, a pair as sum/weight.

    Args:
        device: Where the parameters are.
        scale: The scale of the losses under fp16.
    """

    def __init__(self, device: torch.device, scale: LossScale | None) -> None:
        self._device, self._scale = device, scale
        self._loss: Any = None

    def add(self, loss: Loss) -> None:
        """Run the backward pass.

        Raises:
            ValueError: As `Accumulator.add`.
        """
        total, weight = loss
        if total.device != self._device:
            raise ValueError(
                f"loss_fn returned a loss on {total.device}; the parameters are on {self._device}"
            )
        if weight is not None:
            total = total / nonzero_on_host(weight)
        if total.requires_grad:
            (total if self._scale is None else total * self._scale.factor).backward()
        elif weight is None:  # the sum of an empty batch may depend on no parameter; a mean may not
            raise ValueError("the loss has no gradient with respect to any parameter")
        # A mean may be a view of what a later update overwrites; a quotient is not.
        self._loss = total.detach() if weight is not None else total.detach().clone()
        if total.dtype.itemsize < 4:
            self._loss = self._loss.float()

    def finish(self, gradients: list[Tensor], norm_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
        """Unscale the gradients; the loss, and the total norm."""
        if self._scale is not None:
            torch._foreach_mul_(gradients, self._scale.factor.reciprocal())
        return self._loss, total_norm(gradients, norm_dtype)

    def keep_weights(self) -> None:
        """Nothing is kept: the scale needs weights only for updates of several micro-batches."""


def nonzero_on_host(total_weight: Tensor | float) -> Tensor | float:
    """The total weight. A zero is refused if the host knows it; on the device it makes the loss NaN."""
    if not isinstance(total_weight, Tensor) and total_weight == 0:
        raise ValueError("the total weight of the micro-batches is zero")
    return total_weight
