"""What a loss function returns beside the loss, for `has_aux=True`: its way through an update."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from torch_bridge.training.loss import Loss, as_loss, is_pair, shown


def as_loss_with_aux(value: Any) -> Loss:
    """What a loss function with `has_aux=True` returned, as a `Loss`.

    Raises:
        TypeError: It is no pair (loss, aux), or aux holds something that is no tensor.
        TypeError, ValueError: As `as_loss`.
    """
    if not is_pair(value):
        raise TypeError(f"loss_fn returned {shown(value)}; with has_aux=True it must return (loss, aux)")
    loss, aux = value
    for leaf in pytree.tree_leaves(aux):
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"loss_fn returned an aux that holds {shown(leaf)}; it must be a pytree of tensors"
            )
    return as_loss(loss)._replace(aux=pytree.tree_map(Tensor.detach, aux))


def flat(aux: Sequence[Any]) -> Sequence[Any]:
    """The aux of each micro-batch as a structure and tensors, which a CUDA graph can copy."""
    if not aux:
        return ()
    leaves, structure = pytree.tree_flatten(tuple(aux))
    return structure, *leaves


def tree(flat: Sequence[Any]) -> tuple[Any, ...]:
    """What `flat` was given."""
    return pytree.tree_unflatten(flat[1:], flat[0]) if flat else ()
