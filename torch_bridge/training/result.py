"""What an update reports."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from torch import Tensor
from torch.utils import _pytree as pytree


class StepResult(NamedTuple):
    """The results of one update, as device tensors that later updates do not overwrite.

    >>> import torch
    >>> half, one, zero = torch.tensor(0.5), torch.tensor(1), torch.tensor(0)
    >>> result = StepResult(half, half, torch.tensor([0.125]), applied=one, skipped=zero, clock=zero)
    >>> result.lr
    tensor([0.1250])
    """

    loss: Tensor
    """The loss of the whole update, a floating-point scalar."""
    grad_norm: Tensor
    """The total 2-norm of the gradients, unscaled, before clipping; a floating-point scalar."""
    lr: Tensor
    """The rate of each parameter group in this update, float32 of shape (groups,)."""
    applied: Tensor
    """How many updates took place so far, an int64 scalar."""
    skipped: Tensor
    """How many were skipped so far, an int64 scalar."""
    clock: Tensor
    """The step of the curve that `lr` is of, an int64 scalar: how many updates took place before this one,
    unless a rule has held the clock; with `unit` what those consumed, // unit."""

    @property
    def consumed(self) -> Tensor:
        """What the updates so far have consumed, an int64 scalar: samples or tokens under `unit`, or updates.

        Skipped updates do not count. An attribute, not an item of the tuple.
        """
        return self.applied

    @property
    def aux(self) -> tuple[Any, ...]:
        """With `has_aux=True` what `loss_fn` returned beside the loss, a pytree of tensors a micro-batch.

        They are detached, of this rank alone, and of skipped updates too. Without a CUDA graph they are not
        copied: a parameter or a buffer among them goes on changing. An attribute, not an item of the tuple.
        """
        return ()


class _ExtendedResult(StepResult):
    """A result with its own `consumed` and `aux`, which are attributes and not items of the tuple."""

    @property
    def consumed(self) -> Tensor:
        return _extra(self, "consumed")

    @property
    def aux(self) -> tuple[Any, ...]:
        return _extra(self, "aux")

    # Typing forbids it, since a NamedTuple has nothing but its items; this class has.
    def _replace(self, **items: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        replaced = super()._replace(**items)
        vars(replaced).update(vars(self))
        return replaced


def _extra(result: StepResult, name: str) -> Any:
    try:
        return vars(result)[name]
    except KeyError:
        raise AttributeError(
            f"this result was made anew from the items of another, as by tree_map, and {name} is not one of "
            f"them: read result.{name} before"
        ) from None


def extend_result(result: StepResult, consumed: Tensor, flat_aux: Sequence[Any]) -> StepResult:
    """The result with what is not an item of the tuple: `flat_aux` is a pytree's structure and leaves."""
    extended = _ExtendedResult(*result)
    aux = pytree.tree_unflatten(flat_aux[1:], flat_aux[0]) if flat_aux else ()
    vars(extended).update(consumed=consumed, aux=aux)
    return extended


def read_and_raise_if_nonfinite(result: StepResult, scaled: bool) -> None:
    """Refuse a result that is not finite. Synchronizes with the device.

    Raises:
        FloatingPointError: The loss is not finite; or the norm, unless the loss was `scaled`: then it may
            be an overflow of the scale.
    """
    loss, norm = result.loss.item(), result.grad_norm.item()
    if not math.isfinite(loss) or (not math.isfinite(norm) and not scaled):
        number = int(result.applied + result.skipped)
        raise FloatingPointError(
            f"update {number} was skipped: its loss is {loss} and its gradient norm {norm}"
        )
