"""What the sums of an update are divided by where several ranks run its micro-batches."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp

from torch_bridge.distributed.wrappers import Wrapper
from torch_bridge.training.accumulation import nonzero
from torch_bridge.training.batch_counts import from_words, words
from torch_bridge.training.gradients import total_norm
from torch_bridge.training.precision import LossScale


class SharedDivision:
    """Divides the sums of all ranks by the same number c; loss and norm come out the same in each.

    The wrapper averages gradients over the ranks, which is right for means. For pairs it leaves
    1/size · Σ gradients/c, and the gradient of Σ sum / Σ weight is that times c·size/Σ weight.

    Beside the wrapper's own collectives there is one for total, weight, norm and kind together. Where the
    gradient of a sum can overflow, in fp16 here or in what the wrapper sends, one more agrees on c: the
    largest first weight, or the largest so far. Otherwise c is 1. Ranks with means take part, unless all
    ranks had means in the first update: then nobody agrees on c.

    Args:
        parameters: Those that are optimized.
        scale: The scale of the losses under fp16.
        wrapper: The model's, over more than one rank.
        consumed: What this rank's micro-batches consume, where it is counted: the sum of all ranks in the
            end.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        scale: LossScale | None,
        wrapper: Wrapper,
        consumed: Tensor | None = None,
    ) -> None:
        self._scale, self._wrapper, self._consumed = scale, wrapper, consumed
        self._can_overflow = (
            scale is not None
            or wrapper.may_send_fp16
            or any(parameter.dtype == torch.float16 for parameter in parameters)
        )
        self._device = parameters[0].device
        self._weight: Any = 0.0
        self._has_agreed = False
        self.divisor: Any = None
        self.weights: list[Tensor | float] = []

    def take(self, weight: Tensor | float) -> None:
        self._weight = self._weight + weight
        if not self._can_overflow or self._wrapper.has_means_alone:
            return
        self._wrapper.has_means_alone = False
        # The scale is to remember weights of the host too: the host knows those of its own rank alone.
        self.weights.append(self._on_device(weight))
        if self.divisor is None:
            self.divisor = nonzero(self._agreed(weight))

    def take_mean(self) -> None:
        """Take part in what ranks with pairs agree on. In the first update the host waits for it."""
        if not self._can_overflow or self._wrapper.has_means_alone or self._has_agreed:
            return
        self._has_agreed = True
        largest = self._on_device(-1.0).float()  # less than any weight
        self._wrapper.reduce(largest, ReduceOp.MAX)
        if self._wrapper.has_means_alone is None:
            self._wrapper.has_means_alone = largest.item() < 0

    def _agreed(self, weight: Tensor | float) -> Tensor:
        """The largest of all ranks' weights and those that the scale remembers."""
        agreed = self._on_device(weight).float()
        if self._scale is not None and self._scale.largest_weight is not None:
            agreed = torch.maximum(agreed, self._scale.largest_weight)
        agreed = torch.nan_to_num(agreed)
        self._wrapper.reduce(agreed, ReduceOp.MAX)
        return agreed

    def check_constant(self, is_pair: bool) -> None:
        raise ValueError(
            "the loss has no gradient with respect to any parameter, but the other ranks wait for one: "
            "run the model also on a micro-batch without rows, and return (loss.sum(), 0)"
        )

    def finish(
        self, total: Tensor, is_pair: bool, gradients: list[Tensor], norm_dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        norm = total_norm(gradients, norm_dtype)
        # float64 holds the square of every float32.
        squares = norm.double().square() / self._wrapper.copies
        kind = self._on_device(float(is_pair))
        sums = torch.stack([total.double(), self._on_device(self._weight).double(), squares, kind])
        if self._consumed is not None:
            sums = torch.cat([sums, words(self._consumed)])
        self._wrapper.reduce(sums)
        total_of_all, weight, squares, pairs = sums[:4]
        if self._consumed is not None:
            self._consumed.copy_(from_words(sums[4:]))
        size, norm_of_all = self._wrapper.size, squares.sqrt()
        # Where some ranks have means and others pairs there is no loss: all skip.
        total_of_all = torch.where(pairs % size == 0, total_of_all, math.nan)
        share: Any = 1 / size
        factor = None if self._scale is None else self._scale.factor.reciprocal()
        if is_pair:
            share = (1.0 if self.divisor is None else self.divisor) / weight
            factor = share * size if factor is None else share * size * factor
        if factor is not None:
            # With a factor of another dtype torch would run one operator for each gradient.
            torch._foreach_mul_(gradients, factor.to(norm.dtype))
            norm_of_all = norm_of_all * factor
        return (total_of_all * share).to(total.dtype), norm_of_all.to(norm.dtype)

    def _on_device(self, number: Tensor | float) -> Tensor:
        return (
            number
            if isinstance(number, Tensor)
            else torch.full((), number, dtype=torch.float64, device=self._device)
        )
