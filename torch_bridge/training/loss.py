"""What a loss function may return, a mean or a sum and its weight, and how micro-batches add up."""

from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from torch_bridge.training.carry import Carry
from torch_bridge.training.gradients import gradients_of


class Loss(NamedTuple):
    """A mean loss (`weight` is None), or a sum and the weight that it is to be divided by."""

    total: Tensor
    weight: Tensor | float | None


def read_loss(value: Any) -> Loss:
    """The value that a loss function returned.

    Raises:
        TypeError: It is neither a tensor nor a pair (sum, weight).
        ValueError: The loss is not a scalar, or the weight is negative or not a scalar.
    """
    if isinstance(value, Tensor):
        return Loss(_scalar("loss", value), None)
    if not _is_pair(value):
        raise TypeError(
            f"loss_fn returned {_shown(value)}; it must return a scalar tensor or a pair (sum, weight)"
        )
    total, weight = value
    if not isinstance(total, Tensor):
        raise TypeError(f"loss_fn returned the sum {_shown(total)}; it must be a scalar tensor")
    total = _scalar("sum", total)
    if isinstance(weight, Tensor):
        if weight.dim() != 0:
            raise ValueError(f"loss_fn returned a weight of shape {tuple(weight.shape)}; it must be a scalar")
        return Loss(total, weight.detach().float())
    if isinstance(weight, bool) or not isinstance(weight, Real):
        raise TypeError(
            f"loss_fn returned the weight {_shown(weight)}; it must be a number or a scalar tensor"
        )
    number = float(cast("float", weight))
    if not 0 <= number < float("inf"):
        raise ValueError(f"loss_fn returned the weight {weight!r}; it must be finite and not negative")
    return Loss(total, number)


def forward(
    loss_fn: Callable[..., Any], model: nn.Module, batch: Any, carry: Carry | None, leaves: list[Tensor]
) -> tuple[Loss, list[Tensor]]:
    """Call a loss function; with a carry, give it the state of these leaves and take its new ones."""
    if carry is None:
        return read_loss(loss_fn(model, batch)), leaves
    returned = loss_fn(model, batch, carry.tree(leaves))
    if not _is_pair(returned):
        raise TypeError(
            f"loss_fn returned {type(returned).__name__}; with a carry it must return (loss, carry)"
        )
    return read_loss(returned[0]), carry.detached(returned[1])


def check_kind(loss: Loss, first: Loss) -> None:
    """Refuse means beside pairs."""
    if (loss.weight is None) != (first.weight is None):
        raise TypeError("loss_fn returned a mean for one batch and a pair (sum, weight) for another")


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(cast("Sequence[Any]", value)) == 2


def accumulate(
    losses: Iterable[Loss], count: int, scale: Tensor | None, parameters: Sequence[nn.Parameter]
) -> tuple[Tensor, Tensor | float | None]:
    """Run the backward passes of `count` micro-batches, each as its loss comes.

    Sums are divided before they go backward: by the first weight, or 1 where it is zero. Under fp16,
    where `scale` is given and large sums would overflow, by the largest weight so far.

    Returns:
        The loss of all of them, and what the gradients are still to be multiplied by (None for 1).

    Raises:
        TypeError: Means and pairs among the losses.
        ValueError: The total weight is a zero known on the host, or a mean hangs on no parameter.
    """
    total: Any = 0.0
    weights: list[Tensor | float] = []
    divisor: Any = None
    first: Loss | None = None
    for index, loss in enumerate(losses):
        first = first or loss
        check_kind(loss, first)
        if loss.weight is None:
            part = loss.total / count if count > 1 else loss.total
        else:
            weights.append(loss.weight)
            before = divisor
            if before is None:
                divisor = _nonzero(loss.weight) if count > 1 else _not_zero(loss.weight)
            elif scale is not None:
                divisor = _larger(before, loss.weight)
                if divisor is not before:
                    total = total * (before / divisor)
                    if gradients := gradients_of(parameters):
                        torch._foreach_mul_(gradients, before / divisor)
            part = loss.total / divisor
        if part.requires_grad:
            (part if scale is None else part * scale).backward()
        elif loss.weight is None:  # the sum of an empty micro-batch may hang on nothing; a mean may not
            raise ValueError("the loss has no gradient with respect to any parameter")
        part = part.detach() if part.dtype.itemsize >= 4 else part.detach().float()
        total = total + part if index > 0 else part
    if count == 1 and divisor is None:
        total = total.clone()  # the loss may be a view of what a later update overwrites
    rescale = None if scale is None else scale.reciprocal()
    if divisor is not None and count > 1:
        share = divisor / _not_zero(sum(weights))
        total = total * share
        rescale = share if rescale is None else share * rescale
    return total, rescale


def _nonzero(weight: Tensor | float) -> Tensor | float:
    """The weight, or 1 in place of zero."""
    return torch.where(weight == 0, 1.0, weight) if isinstance(weight, Tensor) else weight or 1.0


def _larger(one: Tensor | float, other: Tensor | float) -> Tensor | float:
    if not isinstance(one, Tensor):
        one, other = other, one
    return one.clamp(min=other) if isinstance(one, Tensor) else max(one, other)


def _not_zero(weight: Tensor | float) -> Tensor | float:
    """The weight, refused if it is a zero known on the host; one on the device makes the loss not finite."""
    if not isinstance(weight, Tensor) and weight == 0:
        raise ValueError("the total weight of the micro-batches is zero")
    return weight


def _scalar(name: str, tensor: Tensor) -> Tensor:
    if tensor.dim() != 0 or not tensor.is_floating_point():
        raise ValueError(
            f"loss_fn returned a {name} of shape {tuple(tensor.shape)} and {tensor.dtype}; "
            "it must be a floating-point scalar: reduce it with .mean(), or return (loss.sum(), weight)"
        )
    return tensor


def _shown(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
