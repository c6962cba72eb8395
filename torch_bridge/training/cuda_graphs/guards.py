"""Guards: the conditions under which a captured update stays valid."""

import operator
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.schedulers.param_groups import all_groups


class Guards:
    """Detect changes to what a captured update depends on, apart from the shapes of its batches.

    Compared are each module's mode, submodules, parameters and buffers; the optimizers' settings and states;
    and the memory and `requires_grad` of all their tensors. Other changes go unnoticed: to plain values that
    a forward pass reads (a dropout probability, a variable of `loss_fn`), to hooks, to torch's global
    switches, and to `.data` if it becomes another view of the same memory.

    Args:
        model: The module that is trained.
        optimizers: Its optimizers.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model, self._optimizers = model, optimizers
        self.record()

    def record(self) -> None:
        """Record the current state, to compare later states with it."""
        self._recorded_settings = self._settings()
        self._modules = list(self._model.modules())
        # The objects are kept alive: a new object could otherwise get the id of one that was freed.
        self._recorded_objects = list(self._objects())
        self._tensors = [tensor for tensor in self._recorded_objects if _has_memory(tensor)]
        self._recorded_values = self._values()

    def failed(self) -> bool:
        """Return True if anything differs from the recorded state. Does not synchronize with the device."""
        if self._settings() != self._recorded_settings:
            return True
        objects = list(self._objects())
        if len(objects) != len(self._recorded_objects):
            return True
        # `_values` reads the recorded tensors, so its result means something only if they are still in use.
        same = all(map(operator.is_, objects, self._recorded_objects))
        return not same or self._values() != self._recorded_values

    def _settings(self) -> list[Any]:
        return list(map(_settings, all_groups(self._optimizers)))

    def _objects(self) -> Iterator[Any]:
        held = (
            (module._parameters, module._buffers, module._modules)  # each a dictionary
            for module in self._modules
        )
        states = chain.from_iterable(optimizer.state.values() for optimizer in self._optimizers)
        dictionaries: Iterator[dict[str, Any]] = chain(chain.from_iterable(held), states)
        return chain.from_iterable(map(_contents, dictionaries))

    def _values(self) -> list[Any]:
        return [
            *map(Tensor.data_ptr, self._tensors),
            *map(_requires_grad, self._tensors),
            *map(_training, self._modules),
        ]


_contents = operator.methodcaller("values")
_requires_grad = operator.attrgetter("requires_grad")
_training = operator.attrgetter("training")


def _has_memory(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _settings(group: dict[str, Any]) -> list[Any]:
    """Return the settings of a group that a graph bakes in."""
    # Not the learning rate, which a graph reads from the clock's tensor.
    return [
        (name, _comparable(value))
        for name, value in group.items()
        if name not in ("lr", "initial_lr", "params")
    ]


def _comparable(value: Any) -> Any:
    """Return a value that equals another one without synchronizing with the device."""
    if isinstance(value, tuple | list):
        return tuple(_comparable(item) for item in cast("tuple[Any, ...]", value))
    return id(value) if isinstance(value, Tensor) else value
