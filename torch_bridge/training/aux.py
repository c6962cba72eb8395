"""What a loss function returns beside the loss, for `has_aux=True`: its way through an update."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from torch_bridge.training.loss import Loss, as_loss, is_pair, shown


class Aux:
    """Collects the aux of an update's micro-batches."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def read(self, value: Any) -> Loss:
        """The `Loss` in what a loss function with `has_aux=True` returned; its aux is kept, detached.

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
        self._found.append(pytree.tree_map(Tensor.detach, aux))
        return as_loss(loss)

    def take(self) -> Sequence[Any]:
        """The aux of each micro-batch as a structure and tensors, which a CUDA graph can copy."""
        leaves, structure = pytree.tree_flatten(tuple(self._found))
        self.clear()
        return structure, *leaves

    def clear(self) -> None:
        """Forget what an update that was broken off has left."""
        self._found.clear()


def tree(flat: Sequence[Any]) -> tuple[Any, ...]:
    """What `Aux.take` was made of, a pytree a micro-batch."""
    return pytree.tree_unflatten(flat[1:], flat[0])
