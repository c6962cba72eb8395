"""The results of an update."""

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
    """The learning rate of each parameter group in this update, float32 of shape (groups,)."""
    applied: Tensor
    """The number of updates applied so far, an int64 scalar."""
    skipped: Tensor
    """The number of updates skipped so far, an int64 scalar."""
    clock: Tensor
    """The step of the curve at which `lr` was taken, an int64 scalar: the number of updates applied before
    this one, unless a rule held the clock; with `unit`, the samples or tokens they consumed, // unit."""

    @property
    def consumed(self) -> Tensor:
        """The samples or tokens consumed so far, an int64 scalar; without `unit`, the same as `applied`.

        Skipped updates do not count. An attribute, not an item of the tuple.
        """
        return self.applied

    @property
    def aux(self) -> tuple[Any, ...]:
        """With `has_aux=True`, the aux outputs of `loss_fn`: one pytree of tensors per micro-batch.

        They are detached, come from this rank alone, and are there for skipped updates too. Without a CUDA
        graph they are not copied, so a parameter or buffer among them keeps changing. An attribute, not an
        item of the tuple.
        """
        return ()


class _ExtendedResult(StepResult):
    """A result whose attributes `consumed` and `aux` are stored next to the items of the tuple."""

    @property
    def consumed(self) -> Tensor:
        return _read_extra(self, "consumed")

    @property
    def aux(self) -> tuple[Any, ...]:
        return _read_extra(self, "aux")

    # Typing forbids it, since a NamedTuple stores only its items. This class also stores attributes.
    def _replace(self, **items: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        replaced = super()._replace(**items)
        vars(replaced).update(vars(self))
        return replaced


def _read_extra(result: StepResult, name: str) -> Any:
    try:
        return vars(result)[name]
    except KeyError:
        raise AttributeError(
            f"this result was rebuilt from the items of another one, as tree_map does, and {name} is not an "
            f"item: read result.{name} first"
        ) from None


def extend_result(result: StepResult, consumed: Tensor, flat_aux: Sequence[Any]) -> StepResult:
    """Return the result with `consumed` and `aux`; `flat_aux` is a pytree's structure, then its leaves."""
    extended = _ExtendedResult(*result)
    aux = pytree.tree_unflatten(flat_aux[1:], flat_aux[0]) if flat_aux else ()
    vars(extended).update(consumed=consumed, aux=aux)
    return extended


def read_and_raise_if_nonfinite(result: StepResult, scaled: bool) -> None:
    """Raise an error if a result is not finite. Synchronizes with the device.

    Raises:
        FloatingPointError: The loss is not finite; or the norm is not, and the loss was not `scaled`. (With a
            scaled loss, the scale may have overflowed.)
    """
    loss, norm = result.loss.item(), result.grad_norm.item()
    if not math.isfinite(loss) or (not math.isfinite(norm) and not scaled):
        number = int(result.applied + result.skipped)
        raise FloatingPointError(
            f"update {number} was skipped: its loss is {loss} and its gradient norm {norm}"
        )
