"""What an update was built on, to notice when something else changes it."""

import operator
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.schedulers.param_groups import all_groups


class Foundation:
    """The settings that choose an optimizer's driver and, for a CUDA graph, all that is baked into one.

    For a graph that is, besides the shapes of the batches: each module's mode, parts, parameters and
    buffers, the optimizers' settings and states, where these are in memory, and whether they require
    gradients. It can't see plain values that a forward pass reads, such as a dropout rate or a variable
    of `loss_fn`, nor hooks, torch's global switches and another view of the same memory.

    Args:
        model: The module that the update trains.
        optimizers: Its optimizers.
        captured: Whether to look at what a graph depends on.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], captured: bool) -> None:
        self._model, self._optimizers, self._captured = model, optimizers, captured
        self.settle()

    def settle(self) -> None:
        """Take the present state as what the update is built on."""
        self._settled_settings = self._settings()
        if self._captured:
            self._modules = list(self._model.modules())
            # Kept alive, so that what comes later can't be mistaken for them.
            self._settled_objects = list(self._objects())
            self._tensors = [tensor for tensor in self._settled_objects if _has_memory(tensor)]
            self._settled_values = self._values()

    def changed(self) -> bool:
        """Whether it is another now. Nothing is read from the device."""
        return self._settings() != self._settled_settings or (
            self._captured
            and not (
                # The values are those of the same objects.
                _identical(list(self._objects()), self._settled_objects)
                and self._values() == self._settled_values
            )
        )

    def _settings(self) -> list[Any]:
        groups = all_groups(self._optimizers)
        return [_settings_of_graph(group) if self._captured else _settings(group) for group in groups]

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


def _identical(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _settings(group: dict[str, Any]) -> tuple[Any, ...]:
    # A rate that is a number is written by every update; one that is a tensor has to stay the same.
    rate = group["lr"]
    return group.get("fused"), id(rate) if isinstance(rate, Tensor) else None, *map(id, group["params"])


def _settings_of_graph(group: dict[str, Any]) -> list[Any]:
    others = ((name, _value(value)) for name, value in group.items() if name not in ("lr", "params"))
    return [_settings(group), *others]


def _value(value: Any) -> Any:
    """To be compared without a look at the device."""
    if isinstance(value, tuple | list):
        return tuple(_value(item) for item in cast("tuple[Any, ...]", value))
    return id(value) if isinstance(value, Tensor) else value
