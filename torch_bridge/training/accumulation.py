"""How the micro-batches of an update add up: one loss, one gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_bridge.training.gradients import gradients_of, total_norm
from torch_bridge.training.loss import Loss, check_kind
from torch_bridge.training.precision import LossScale


class Accumulator:
    """Runs the backward pass of each micro-batch as its loss comes, and adds them up.

    Means are averaged; pairs give Σ sum / Σ weight. Sums are divided before they go backward, so that
    they are of ordinary size: by the first weight, or 1 where it is zero. Under fp16, where large ones
    would overflow, by the largest so far.

    Args:
        count: How many micro-batches will come.
        parameters: Those that are optimized.
        scale: The scale of the losses under fp16.
    """

    def __init__(self, count: int, parameters: Sequence[nn.Parameter], scale: LossScale | None) -> None:
        self._count, self._parameters, self._scale = count, parameters, scale
        self._first: Loss | None = None
        self._total: Any = None
        self._weights: list[Tensor | float] = []
        self._divisor: Any = None

    def add(self, loss: Loss) -> None:
        """Run a micro-batch's backward pass.

        Raises:
            TypeError: A mean after pairs, or a pair after means.
            ValueError: A mean that hangs on no parameter; a loss on another device than the
                parameters; an only weight that is a zero known on the host.
        """
        if self._first is None:
            self._first = loss
        check_kind(loss, self._first)
        if loss.total.device != self._parameters[0].device:
            raise ValueError(
                f"loss_fn returned a loss on {loss.total.device}; "
                f"the parameters are on {self._parameters[0].device}"
            )
        part = self._divided(loss)
        if part.requires_grad:
            (part if self._scale is None else part * self._scale.factor).backward()
        else:
            self._check_constant(loss)
        part = part.detach() if part.dtype.itemsize >= 4 else part.detach().float()
        self._total = part if self._total is None else self._total + part

    def _divided(self, loss: Loss) -> Tensor:
        """What goes backward."""
        if loss.weight is None:
            return loss.total / self._count if self._count > 1 else loss.total
        self._weights.append(loss.weight)
        self._divide_by(loss.weight)
        return loss.total / self._divisor

    def _check_constant(self, loss: Loss) -> None:
        if loss.weight is None:  # the sum of an empty micro-batch may hang on nothing; a mean may not
            raise ValueError("the loss has no gradient with respect to any parameter")

    def _divide_by(self, weight: Tensor | float) -> None:
        before, largest = self._divisor, self._scale and self._scale.largest_weight
        if self._count == 1:
            self._divisor = _checked(weight)
        elif before is None:
            if isinstance(weight, Tensor) and largest is not None:
                weight = torch.maximum(weight, largest)
            self._divisor = nonzero(weight)
        elif self._scale is not None and not (isinstance(before, Tensor) and largest is not None):
            self._divisor = _larger(before, weight)
            if self._divisor is not before:
                share = before / self._divisor
                self._total = self._total * share
                if gradients := gradients_of(self._parameters):
                    torch._foreach_mul_(gradients, share)

    def finish(self, gradients: list[Tensor], norm_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
        """Bring the gradients to their size; the loss of all micro-batches, and the total norm.

        Raises:
            ValueError: The total weight is a zero known on the host.
        """
        loss, factor = self._result()
        if factor is not None:
            torch._foreach_mul_(gradients, factor)
        return loss, total_norm(gradients, norm_dtype)

    def _result(self) -> tuple[Tensor, Tensor | float | None]:
        """The loss, and what the gradients are still to be multiplied by (None for 1)."""
        factor = None if self._scale is None else self._scale.factor.reciprocal()
        if self._count == 1:
            # The loss may be a view of what a later update overwrites.
            return (self._total.clone() if self._divisor is None else self._total), factor
        if self._divisor is None:
            return self._total, factor
        share = self._divisor / _checked(sum(self._weights))
        return self._total * share, share if factor is None else share * factor

    def keep_weights(self) -> None:
        """Let the scale remember the largest weight on the device."""
        weights = [weight for weight in self._weights if isinstance(weight, Tensor)]
        if self._scale is not None and self._count > 1 and weights:
            self._scale.keep_weights(weights)


def nonzero(weight: Tensor | float) -> Tensor | float:
    """The weight, or 1 in place of zero."""
    return torch.where(weight == 0, 1.0, weight) if isinstance(weight, Tensor) else weight or 1.0


def _checked(total_weight: Tensor | float) -> Tensor | float:
    """A total weight, refused where it is a zero known on the host; on the device the loss is not finite."""
    if not isinstance(total_weight, Tensor) and total_weight == 0:
        raise ValueError("the total weight of the micro-batches is zero")
    return total_weight


def _larger(one: Tensor | float, other: Tensor | float) -> Tensor | float:
    if isinstance(one, Tensor):
        return one.clamp(min=other)
    return other.clamp(min=one) if isinstance(other, Tensor) else max(one, other)
