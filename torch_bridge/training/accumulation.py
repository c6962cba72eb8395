"""How the micro-batches of an update add up: one loss, one gradient."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torch_bridge.training.gradients import gradients_of
from torch_bridge.training.loss import Loss, check_kind
from torch_bridge.training.precision import LossScale


class Division(Protocol):
    """What sums are divided by before they go backward, and the factor that corrects for it at the end."""

    divisor: Any
    """What the next sum is divided by, a tensor or a float; None for 1."""
    weights: list[Tensor | float]
    """The weights so far, where the divisor depends on them."""

    def take(self, weight: Tensor | float) -> Tensor | float | None:
        """Choose the divisor for a sum of this weight.

        Returns:
            What the total and the gradients so far have to be multiplied by, since they were divided by
            another divisor; None for 1.
        """
        ...

    def take_mean(self) -> None:
        """Note that a loss is a mean, which is not divided."""
        ...

    def check_constant(self, is_pair: bool) -> None:
        """Refuse a loss without a gradient, where the update could not go on with it.

        Raises:
            ValueError: It can't.
        """
        ...

    def finish(
        self, total: Tensor, is_pair: bool, gradients: list[Tensor], norm_dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        """Multiply the gradients by what is missing; the loss of the whole update, and the total norm."""
        ...


class Accumulator:
    """Runs the backward pass of each micro-batch when its loss comes, and adds the losses up.

    Means are averaged; pairs give Σ sum / Σ weight. Sums are divided before they go backward, so that
    they are of ordinary size; `division` says by what.

    Args:
        count: How many micro-batches will come.
        parameters: Those that are optimized.
        scale: The scale of the losses under fp16.
        division: A new one for each update.
    """

    def __init__(
        self,
        count: int,
        parameters: Sequence[nn.Parameter],
        scale: LossScale | None,
        division: Division,
    ) -> None:
        self._count, self._parameters, self._scale = count, parameters, scale
        self._division = division
        self._first: Loss | None = None
        self._total: Any = None

    def add(self, loss: Loss) -> None:
        """Run a micro-batch's backward pass.

        Raises:
            TypeError: A mean after pairs, or a pair after means.
            ValueError: A mean that depends on no parameter; a loss on another device than the
                parameters.
        """
        if self._first is None:
            self._first = loss
        else:
            check_kind(loss, self._first)
        if loss.total.device != self._parameters[0].device:
            raise ValueError(
                f"loss_fn returned a loss on {loss.total.device}; "
                f"the parameters are on {self._parameters[0].device}"
            )
        if loss.weight is not None:
            part = self._divided(loss.total, loss.weight)
        else:
            self._division.take_mean()
            part = loss.total / self._count if self._count > 1 else loss.total
        if part.requires_grad:
            (part if self._scale is None else part * self._scale.factor).backward()
        else:
            self._division.check_constant(loss.weight is not None)
        part = part.detach() if part.dtype.itemsize >= 4 else part.detach().float()
        self._total = part if self._total is None else self._total + part

    def _divided(self, total: Tensor, weight: Tensor | float) -> Tensor:
        """What goes backward of a pair."""
        change = self._division.take(weight)
        if change is not None:
            self._total = self._total * change
            if gradients := gradients_of(self._parameters):
                torch._foreach_mul_(gradients, change)
        divisor = self._division.divisor
        return total if divisor is None else total / divisor

    def finish(self, gradients: list[Tensor], norm_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
        """Bring the gradients to their size; the loss of all micro-batches, and the total norm.

        Raises:
            ValueError: The total weight is a zero known on the host.
        """
        is_pair = self._first is not None and self._first.weight is not None
        return self._division.finish(self._total, is_pair, gradients, norm_dtype)

    def keep_weights(self) -> None:
        """Let the scale remember the largest weight on the device."""
        weights = [weight for weight in self._division.weights if isinstance(weight, Tensor)]
        if self._scale is not None and self._count > 1 and weights:
            self._scale.keep_weights(weights)


def nonzero(weight: Tensor | float) -> Tensor | float:
    """The weight, or 1 in place of zero."""
    return torch.where(weight == 0, 1.0, weight) if isinstance(weight, Tensor) else weight or 1.0
