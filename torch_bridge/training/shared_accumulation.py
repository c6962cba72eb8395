"""How the micro-batches of all processes add up to one update."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp

from torch_bridge.distributed.wrappers import Wrapper
from torch_bridge.training.accumulation import Accumulator, nonzero
from torch_bridge.training.gradients import total_norm
from torch_bridge.training.loss import Loss
from torch_bridge.training.precision import LossScale


class SharedAccumulator(Accumulator):
    """As `Accumulator`, over the micro-batches of all processes; what it returns is the same in each.

    Means are averaged, as the wrapper averages gradients. With c what all sums are divided by, it leaves
    1/size · Σ gradients/c, and the gradient of Σ sum / Σ weight is c·size/Σ weight of that.

    One message more than the wrapper's own brings total, weight, norm and kind together. Where the gradient
    of a sum can overflow, in fp16 here or on its way, there is another one, about c: the largest first
    weight, or the largest so far. Otherwise c is 1.

    Args:
        count, parameters, scale: As for `Accumulator`.
        wrapper: The model's, over more than one process.
    """

    def __init__(
        self, count: int, parameters: Sequence[nn.Parameter], scale: LossScale | None, wrapper: Wrapper
    ) -> None:
        super().__init__(count, parameters, scale)
        self._wrapper = wrapper
        self._can_overflow = (
            scale is not None
            or wrapper.may_send_fp16
            or any(parameter.dtype == torch.float16 for parameter in parameters)
        )
        self._device = parameters[0].device
        self._weight: Any = 0.0

    def _divided(self, loss: Loss) -> Tensor:
        if loss.weight is None:
            return super()._divided(loss)
        self._weight = self._weight + loss.weight
        if not self._can_overflow:
            return loss.total
        # Those of the host too, since it knows those of this process alone.
        self._weights.append(self._on_device(loss.weight))
        if self._divisor is None:
            self._divisor = nonzero(self._agreed(loss.weight))
        return loss.total / self._divisor

    def _agreed(self, weight: Tensor | float) -> Tensor:
        """The largest of all processes' weights and those that the scale remembers."""
        agreed = self._on_device(weight).float()
        if self._scale is not None and self._scale.largest_weight is not None:
            agreed = torch.maximum(agreed, self._scale.largest_weight)
        agreed = torch.nan_to_num(agreed)
        self._wrapper.reduce(agreed, ReduceOp.MAX)
        return agreed

    def _check_constant(self, loss: Loss) -> None:
        raise ValueError(
            "the loss has no gradient with respect to any parameter, and the other processes wait for one: "
            "run the model on a micro-batch without rows, too, and return (loss.sum(), 0)"
        )

    def finish(self, gradients: list[Tensor], norm_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
        norm = total_norm(gradients, norm_dtype)
        # float64 holds the square of every float32.
        squares = norm.double().square() / self._wrapper.copies
        is_pair = self._first is not None and self._first.weight is not None
        kind = self._on_device(float(is_pair))
        sums = torch.stack([self._total.double(), self._on_device(self._weight).double(), squares, kind])
        self._wrapper.reduce(sums)
        total, weight, squares, pairs = sums
        size, norm_of_all = self._wrapper.size, squares.sqrt()
        # Of means in some processes and pairs in others there is no loss: all skip.
        total = torch.where(pairs % size == 0, total, math.nan)
        share: Any = 1 / size
        factor = None if self._scale is None else self._scale.factor.reciprocal()
        if is_pair:
            share = (1.0 if self._divisor is None else self._divisor) / weight
            factor = share * size if factor is None else share * size * factor
        if factor is not None:
            # Of another dtype than the gradients it would be one operator a gradient.
            torch._foreach_mul_(gradients, factor.to(norm.dtype))
            norm_of_all = norm_of_all * factor
        return (total * share).to(self._total.dtype), norm_of_all.to(norm.dtype)

    def _on_device(self, number: Tensor | float) -> Tensor:
        return (
            number
            if isinstance(number, Tensor)
            else torch.full((), number, dtype=torch.float64, device=self._device)
        )
