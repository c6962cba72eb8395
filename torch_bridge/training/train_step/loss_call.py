"""The call of a loss function on a batch: in mixed precision, with a carry, with aux outputs."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from plateau_jax.arguments import checks
from torch_bridge.training.train_step.loss import LossFunction, describe, is_pair
from torch_bridge.training.train_step.precision import Precision

_Loss = TypeVar("_Loss")


class Carry:
    """A pytree of tensors, such as the state of an LSTM or a GRU.

    Raises:
        TypeError: A leaf is not a tensor, or there are no leaves.
    """

    def __init__(self, initial: Any, device: torch.device) -> None:
        leaves, self._structure = pytree.tree_flatten(initial)
        are_tensors = all(isinstance(leaf, Tensor) for leaf in leaves)
        if not leaves or not are_tensors:
            raise TypeError(checks.must("carry", initial, "be a tensor, or a pytree of tensors"))
        self._initial: list[Tensor] = []
        self.buffers: list[Tensor] = []
        for leaf in leaves:
            copied = leaf.detach().to(device, copy=True)
            self._initial.append(copied)
            self.buffers.append(copied.clone())

    def tree(self, leaves: Sequence[Tensor]) -> Any:
        return pytree.tree_unflatten(list(leaves), self._structure)

    def detached(self, value: Any) -> list[Tensor]:
        """Return the leaves of a new state, detached and in the buffers' dtypes.

        Raises:
            ValueError: Its structure, shapes or devices are not those of the initial state.
        """
        leaves, structure = pytree.tree_flatten(value)
        do_fit = all(map(_fits, leaves, self.buffers))
        if structure != self._structure or not do_fit:
            raise ValueError(
                f"loss_fn returned a carry of {_shapes(value)}; it must be like the initial one, "
                f"{_shapes(self.tree(self.buffers))}"
            )
        detached: list[Tensor] = []
        for leaf, buffer in zip(leaves, self.buffers, strict=True):
            # A bf16 LSTM returns its state in bf16, whatever the dtype of its input.
            detached.append(leaf.detach().to(buffer.dtype))
        return detached

    def select_if_skipped(self, leaves: Sequence[Tensor], skip: Tensor) -> list[Tensor]:
        """Return new tensors: the leaves of a new state, or the current ones after a skip."""
        selected: list[Tensor] = []
        for buffer, leaf in zip(self.buffers, leaves, strict=True):
            selected.append(torch.where(skip, buffer, leaf))
        return selected

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


class LossCall(Generic[_Loss]):
    """Calls a loss function on batches, and checks what it returns.

    Args:
        model: The module that the loss function is called with.
        loss_fn: The loss function.
        parse: Checks and converts its result, without carry and aux.
        precision: The dtype of the forward pass.
        carry: The recurrent state, or None.
        has_aux: True if the loss function returns (loss, aux).

    Attributes:
        model, precision, carry, has_aux: The arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction[Any],
        parse: Callable[[Any], _Loss],
        *,
        precision: Precision,
        carry: Carry | None,
        has_aux: bool = False,
    ) -> None:
        self.model = model
        self.precision = precision
        self.carry = carry
        self.has_aux = has_aux
        self._loss_fn: Any = loss_fn
        self._parse = parse

    def run(self, batch: Any, leaves: list[Tensor]) -> tuple[_Loss, list[Tensor], Any]:
        """Call the loss function on a batch.

        Args:
            batch: The batch.
            leaves: The leaves of the carry that it gets; without a carry an empty list.

        Returns:
            The loss, converted by `parse`; the leaves of the new carry; the aux output, detached.

        Raises:
            TypeError, ValueError: The result is not what the arguments say, or `parse` rejects it.
        """
        # If the user's whole loop runs under autocast, torch caches cast weights until the loop
        # ends, so that later updates would use the weights of the first one.
        torch.clear_autocast_cache()
        arguments = [self.model, batch]
        if self.carry is not None:
            arguments.append(self.carry.tree(leaves))
        if self.precision.autocast is None:
            value = self._loss_fn(*arguments)
        else:
            with self.precision.autocast:
                value = self._loss_fn(*arguments)
        if self.carry is not None:
            value, carry = _check_pair(value, "with a carry it must return (loss, carry)")
            leaves = self.carry.detached(carry)
        aux = None
        if self.has_aux:
            value, aux = _check_pair(value, "with has_aux=True it must return (loss, aux)")
            aux = _detach_aux(aux)
        return self._parse(value), leaves, aux


def _detach_aux(aux: Any) -> Any:
    for leaf in pytree.tree_leaves(aux):
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"loss_fn returned an aux that contains {describe(leaf)}; it must be a pytree of "
                "tensors"
            )
    return pytree.tree_map(Tensor.detach, aux)


def _check_pair(value: Any, requirement: str) -> Sequence[Any]:
    if not is_pair(value):
        raise TypeError(f"loss_fn returned {describe(value)}; {requirement}")
    return value
