"""The recurrent state, passed from one micro-batch to the next and kept in fixed buffers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torch_bridge.curve_api import checks


class Carry:
    """A pytree of tensors, such as the state of an LSTM or a GRU.

    Raises:
        TypeError: A leaf is not a tensor, or there are no leaves.
    """

    def __init__(self, initial: Any, device: torch.device) -> None:
        leaves, self._structure = pytree.tree_flatten(initial)
        if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise TypeError(
                f"carry = {checks.short_repr(initial)} must be a tensor, or a pytree of tensors"
            )
        self._initial = [leaf.detach().to(device, copy=True) for leaf in leaves]
        self.buffers = [leaf.clone() for leaf in self._initial]

    def tree(self, leaves: Sequence[Tensor]) -> Any:
        return pytree.tree_unflatten(list(leaves), self._structure)

    def detached(self, value: Any) -> list[Tensor]:
        """Return the leaves of a new state, detached and in the buffers' dtypes.

        Raises:
            ValueError: Its structure, shapes or devices are not those of the initial state.
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
        # A bf16 LSTM returns its state in bf16, whatever the dtype of its input.
        return [
            leaf.detach().to(buffer.dtype)
            for leaf, buffer in zip(leaves, self.buffers, strict=True)
        ]

    def select_if_skipped(self, leaves: Sequence[Tensor], skip: Tensor) -> list[Tensor]:
        """Return new tensors: the leaves of a new state, or the current ones if the update is skipped."""
        return [torch.where(skip, *pair) for pair in zip(self.buffers, leaves, strict=True)]

    def write(self, leaves: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.buffers, list(leaves))

    def reset(self) -> None:
        self.write(self._initial)


def _shapes(value: Any) -> str:
    shapes = pytree.tree_map_only(Tensor, lambda tensor: (*tensor.shape, str(tensor.device)), value)
    return checks.short_repr(shapes)
