"""What the sums of an update are divided by where one rank runs its micro-batches, two or more."""

from typing import Any

import torch
from torch import Tensor

from torch_bridge.training.accumulation import nonzero
from torch_bridge.training.gradients import total_norm
from torch_bridge.training.precision import LossScale
from torch_bridge.training.single_micro_batch import nonzero_on_host


class LocalDivision:
    """Divides sums by the first weight, or by 1 where that is zero.

    Under fp16, where large sums would overflow, it divides by the largest weight so far.

    Args:
        scale: The scale of the losses under fp16.
    """

    def __init__(self, scale: LossScale | None) -> None:
        self._scale = scale
        self.divisor: Any = None
        self.weights: list[Tensor | float] = []

    def take(self, weight: Tensor | float) -> Tensor | float | None:
        self.weights.append(weight)
        before, largest = self.divisor, self._scale and self._scale.largest_weight
        if before is None:
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
        if is_pair:
            share = self.divisor / nonzero_on_host(sum(self.weights))
            total, factor = total * share, share if factor is None else share * factor
        if factor is not None:
            torch._foreach_mul_(gradients, factor)
        return total, total_norm(gradients, norm_dtype)


def _larger(one: Tensor | float, other: Tensor | float) -> Tensor | float:
    if isinstance(one, Tensor):
        return one.clamp(min=other)
    return other.clamp(min=one) if isinstance(other, Tensor) else max(one, other)
