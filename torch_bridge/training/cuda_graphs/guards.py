"""Guards: the conditions under which a captured update stays valid."""

import operator
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.param_groups import all_groups

_contents = operator.methodcaller("values")
_requires_grad = operator.attrgetter("requires_grad")
_training = operator.attrgetter("training")


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
        self._model, self._optimizers = model, optimizers
        self.record()

    def record(self) -> None:
        """Record the current state, to compare later states with it."""
        self._modules = list(self._model.modules())
        # The objects are kept alive: a new object could otherwise get the id of one that was freed.
        self._recorded_objects = list(self._objects())
        tensors = (item for item in self._recorded_objects if isinstance(item, Tensor))
        self._tensors = [tensor for tensor in tensors if tensor.layout == torch.strided]
        self._recorded_values = self._values()

    def failed(self) -> bool:
        """Return True if anything differs from the recorded state. Does not synchronize with the device."""
        # The recorded tensors are still in use if the objects are the same, and only then say
        # something.
        objects, recorded = list(self._objects()), self._recorded_objects
        same = len(objects) == len(recorded) and all(map(operator.is_, objects, recorded))
        return not same or self._values() != self._recorded_values

    def _objects(self) -> Iterator[Any]:
        """Return all submodules, parameters, buffers and values of states, in one flat sequence."""
        held = ((module._modules, module._parameters, module._buffers) for module in self._modules)
        states = chain.from_iterable(optimizer.state.values() for optimizer in self._optimizers)
        dictionaries: Iterator[dict[str, Any]] = chain(chain.from_iterable(held), states)
        return chain.from_iterable(map(_contents, dictionaries))

    def _values(self) -> list[Any]:
        """Return what the objects do not show: settings, modes, and the memory of the recorded tensors."""
        # A graph bakes the settings in, except for the learning rate, which it reads from the
        # clock's tensor.
        settings = [
            (name, _comparable(value))
            for group in all_groups(self._optimizers)
            for name, value in group.items()
            if name not in ("lr", "initial_lr", "params")
        ]
        return [
            *settings,
            *map(Tensor.data_ptr, self._tensors),
            *map(_requires_grad, self._tensors),
            *map(_training, self._modules),
        ]


def _comparable(value: Any) -> Any:
    """Return a value that equals another one without synchronizing with the device."""
    if isinstance(value, tuple | list):
        return tuple(_comparable(item) for item in cast("tuple[Any, ...]", value))
    return id(value) if isinstance(value, Tensor) else value
