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
    """Compare what a CUDA graph bakes in, besides the shapes of the batches.

    These are each module's mode, parts, parameters and buffers, the optimizers' settings and states, their
    memory, and their `requires_grad`. Other changes go unnoticed: of plain values that a forward pass reads,
    such as a dropout rate or a variable of `loss_fn`, of hooks, of torch's global switches, and of `.data` to
    another view of the same memory.

    Args:
        model: The module that the update trains.
        optimizers: Its optimizers.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model, self._optimizers = model, optimizers
        self.record()

    def record(self) -> None:
        """Compare with the present state from now on."""
        self._recorded_settings = self._settings()
        self._modules = list(self._model.modules())
        # Kept alive, so that later objects can't be mistaken for them.
        self._recorded_objects = list(self._objects())
        self._tensors = [tensor for tensor in self._recorded_objects if _has_memory(tensor)]
        self._recorded_values = self._values()

    def failed(self) -> bool:
        """Something differs from when it was recorded. Does not synchronize with the device."""
        if self._settings() != self._recorded_settings:
            return True
        objects = list(self._objects())
        if len(objects) != len(self._recorded_objects):
            return True
        # The values are those of the same objects.
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
    """The settings of a group that a kernel gets: the learning rate is in the clock's memory."""
    return [
        (name, _value(value)) for name, value in group.items() if name not in ("lr", "initial_lr", "params")
    ]


def _value(value: Any) -> Any:
    """A setting's value, to be compared without synchronizing with the device."""
    if isinstance(value, tuple | list):
        return tuple(_value(item) for item in cast("tuple[Any, ...]", value))
    return id(value) if isinstance(value, Tensor) else value
