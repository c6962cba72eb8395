"""Recurrent state that goes from one micro-batch to the next, kept in buffers that are reused."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Carry:
    """A pytree of tensors: an LSTM's or GRU's state.

    Raises:
        TypeError: A leaf that is not a tensor, or no leaf at all.
    """

    def __init__(self, initial: Any, device: torch.device) -> None:
        leaves, self._structure = pytree.tree_flatten(initial)
        if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise TypeError(f"carry = {initial!r} must be a tensor, or a pytree of tensors")
        self._initial = [leaf.detach().to(device, copy=True) for leaf in leaves]
        self.buffers = [leaf.clone() for leaf in self._initial]

    def tree(self, leaves: Sequence[Tensor]) -> Any:
        return pytree.tree_unflatten(list(leaves), self._structure)

    def detached(self, value: Any) -> list[Tensor]:
        """The leaves of a new state, cut off the autograd graph, in the buffers' dtypes.

        Raises:
            ValueError: Another structure, shape or device than the initial state's.
        """
        leaves, structure = pytree.tree_flatten(value)
        fits = structure == self._structure and all(
            isinstance(leaf, Tensor) and leaf.shape == buffer.shape and leaf.device == buffer.device
            for leaf, buffer in zip(leaves, self.buffers, strict=True)
        )
        if not fits:
            raise ValueError(
                f"loss_fn returned a carry of {_shapes(value)}; it must be like the initial one, "
                f"{_shapes(self.tree(self.buffers))}"
            )
        # A bf16 LSTM returns its state in bf16, whatever it was given.
        return [leaf.detach().to(buffer.dtype) for leaf, buffer in zip(leaves, self.buffers, strict=True)]

    def select_if_skipped(self, leaves: Sequence[Tensor], skip: Tensor) -> list[Tensor]:
        """New tensors: a new state's leaves, or the present ones where `skip`."""
        return [torch.where(skip, *pair) for pair in zip(self.buffers, leaves, strict=True)]

    def write(self, leaves: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.buffers, list(leaves))

    def reset(self) -> None:
        self.write(self._initial)


def _shapes(value: Any) -> str:
    return str(pytree.tree_map_only(Tensor, lambda tensor: (*tensor.shape, str(tensor.device)), value))
