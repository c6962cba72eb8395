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
        if structure != self._structure or not all(map(_fits, leaves, self.buffers)):
            raise ValueError(
                f"loss_fn returned a carry of {_shapes(value)}; it must be like the initial one, "
                f"{_shapes(self.tree(self.buffers))}"
            )
        # A bf16 LSTM returns its state in bf16, whatever the dtype of its input.
        pairs = zip(leaves, self.buffers, strict=True)
        return [leaf.detach().to(buffer.dtype) for leaf, buffer in pairs]

    def select_if_skipped(self, leaves: Sequence[Tensor], skip: Tensor) -> list[Tensor]:
        """Return new tensors: the leaves of a new state, or the current ones after a skip."""
        pairs = zip(self.buffers, leaves, strict=True)
        return [torch.where(skip, buffer, leaf) for buffer, leaf in pairs]

    def write(self, leaves: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.buffers, list(leaves))

    def reset(self) -> None:
        self.write(self._initial)


def _fits(leaf: Any, buffer: Tensor) -> bool:
    if not isinstance(leaf, Tensor):
        return False
    return leaf.shape == buffer.shape and leaf.device == buffer.device


def _shapes(value: Any) -> str:
    shapes = pytree.tree_map_only(Tensor, lambda tensor: (*tensor.shape, str(tensor.device)), value)
    return checks.short_repr(shapes)
