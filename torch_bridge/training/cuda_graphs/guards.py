"""Guards: the conditions under which a captured update stays valid."""

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.param_groups import all_groups

# Every captured update pays for the comparisons: `map` runs these without Python's interpreter.
_requires_grad = operator.attrgetter("requires_grad")
_training = operator.attrgetter("training")

# A graph bakes the settings of an optimizer in, except for the learning rate, which it reads from
# the clock's tensor. The parameters are compared as objects.
_NOT_COMPARED = ("lr", "initial_lr", "params")


class Guards:
    """Detect changes to what a captured update depends on, apart from the shapes of its batches.

    Compared are each module's mode, submodules, parameters and buffers; the optimizers' settings
    and states; and the memory and `requires_grad` of all their tensors. Other changes go unnoticed:
    to plain values that a forward pass reads (a dropout probability, a variable of `loss_fn`), to
    hooks, to torch's global switches, and to `.data` if it becomes another view of the same memory.

    Args:
        model: The module that is trained.
        optimizers: Its optimizers.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model = model
        self._optimizers = optimizers
        self.record()

    def record(self) -> None:
        """Record the current state, to compare later states with it."""
        self._modules = list(self._model.modules())
        # The objects are kept alive: a new object could otherwise get the id of one that was freed.
        self._recorded_objects = self._objects()
        tensors = [item for item in self._recorded_objects if isinstance(item, Tensor)]
        self._tensors = [tensor for tensor in tensors if tensor.layout == torch.strided]
        self._recorded_values = self._values()

    def failed(self) -> bool:
        """Return True if anything differs from the recorded state. Does not synchronize."""
        objects = self._objects()
        recorded = self._recorded_objects
        if len(objects) != len(recorded) or not all(map(operator.is_, objects, recorded)):
            return True
        # Only now are the recorded tensors known to be in use, so that their memory says something.
        return self._values() != self._recorded_values

    def _objects(self) -> list[Any]:
        """Return all submodules, parameters, buffers and values of states, in one flat list."""
        objects: list[Any] = []
        for module in self._modules:
            objects += module._modules.values()
            objects += module._parameters.values()
            objects += module._buffers.values()
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                objects += state.values()
        return objects

    def _values(self) -> list[Any]:
        """Return what the objects do not show: settings, modes, the memory of the tensors."""
        values: list[Any] = []
        for group in all_groups(self._optimizers):
            for name, setting in group.items():
                if name not in _NOT_COMPARED:
                    values += name, _comparable(setting)
        values += map(Tensor.data_ptr, self._tensors)
        values += map(_requires_grad, self._tensors)
        values += map(_training, self._modules)
        return values


def _comparable(value: Any) -> Any:
    """Return a value whose comparison does not synchronize with the device."""
    if isinstance(value, tuple | list):
        return tuple(map(_comparable, cast("tuple[Any, ...]", value)))
    if isinstance(value, Tensor):
        return id(value)
    return value
