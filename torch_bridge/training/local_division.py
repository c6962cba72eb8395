"""What the sums of an update are divided by where one rank runs all of its micro-batches."""

from typing import Any

import torch
from torch import Tensor

from torch_bridge.training.accumulation import nonzero
from torch_bridge.training.gradients import total_norm
from torch_bridge.training.precision import LossScale


class LocalDivision:
    """Divides sums by the first weight, or by 1 where that is zero.

    Under fp16, where large sums would overflow, it divides by the largest weight so far.

    Args:
        count: How many micro-batches will come.
        scale: The scale of the losses under fp16.
    """

    def __init__(self, count: int, scale: LossScale | None) -> None:
        self._count, self._scale = count, scale
        self.divisor: Any = None
        self.weights: list[Tensor | float] = []

    def take(self, weight: Tensor | float) -> Tensor | float | None:
        self.weights.append(weight)
        before, largest = self.divisor, self._scale and self._scale.largest_weight
        if self._count == 1:
            self.divisor = _checked(weight)
        elif before is None:
            if isinstance(weight, Tensor) and largest is not None:
                weight = torch.maximum(weight, largest)
            self.divisor = nonzero(weight)
        elif self._scale is not None and not (isinstance(before, Tensor) and largest is not None):
            self.divisor = _larger(before, weight)
            if self.divisor is not before:
                return before / self.divisor
        return None

    def take_mean(self) -> None:
        """Nothing depends on it."""

    def check_constant(self, is_pair: bool) -> None:
        if not is_pair:  # the sum of an empty micro-batch may depend on no parameter; a mean may not
            raise ValueError("the loss has no gradient with respect to any parameter")

    def finish(
        self, total: Tensor, is_pair: bool, gradients: list[Tensor], norm_dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        factor: Any = None if self._scale is None else self._scale.factor.reciprocal()
        if self._count == 1:
            # The loss may be a view of what a later update overwrites.
            loss = total if is_pair else total.clone()
        elif is_pair:
            share = self.divisor / _checked(sum(self.weights))
            loss, factor = total * share, share if factor is None else share * factor
        else:
            loss = total
        if factor is not None:
            torch._foreach_mul_(gradients, factor)
        return loss, total_norm(gradients, norm_dtype)


def _checked(total_weight: Tensor | float) -> Tensor | float:
    """A total weight, refused where it is a zero known on the host; on the device the loss is not finite."""
    if not isinstance(total_weight, Tensor) and total_weight == 0:
        raise ValueError("the total weight of the micro-batches is zero")
    return total_weight


def _larger(one: Tensor | float, other: Tensor | float) -> Tensor | float:
    if isinstance(one, Tensor):
        return one.clamp(min=other)
    return other.clamp(min=one) if isinstance(other, Tensor) else max(one, other)
