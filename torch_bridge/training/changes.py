"""What an update was built on, to notice when something else changes it."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Foundation:
    """The settings that choose an optimizer's driver and, for a CUDA graph, all that is baked into one.

    For a graph that is, besides the shapes of the batches: each module's mode, parts, parameters and
    buffers, the optimizers' states, where these are in memory, and whether they require gradients. It
    can't see plain values that a forward pass reads, such as a dropout rate or a variable of `loss_fn`,
    nor hooks and torch's global switches.

    Args:
        model: The module that the update trains.
        optimizers: Its optimizers.
        memory: Whether to look at what a graph depends on too.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], memory: bool) -> None:
        self._modules = list(model.modules()) if memory else []
        self._optimizers = optimizers
        self._with_memory = memory
        self.settle()

    def settle(self) -> None:
        """Take the present state as what the update is built on."""
        self._settled = self._present()

    def changed(self) -> bool:
        return self._settled != self._present()

    def _present(self) -> list[Any]:
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        parts: Iterator[Any] = map(_settings, groups)
        if self._with_memory:
            parts = chain(parts, map(_module, self._modules), *map(_states, self._optimizers))
        return list(parts)


def _settings(group: dict[str, Any]) -> list[Any]:
    # A rate that is a number is written by every update; one that is a tensor has to stay the same.
    return [
        list(map(id, value)) if name == "params" else (name, _value(value))
        for name, value in group.items()
        if name != "lr" or isinstance(value, Tensor)
    ]


def _value(value: Any) -> Any:
    """To be compared without a look at the device."""
    if isinstance(value, tuple | list):
        return [_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]  (a list of anything)
    return id(value) if isinstance(value, Tensor) else value


def _module(module: nn.Module) -> list[Any]:
    tensors = chain(module._parameters.values(), module._buffers.values())
    return [module.training, *map(id, module._modules.values()), *map(_memory, tensors)]


def _states(optimizer: Optimizer) -> Iterator[Any]:
    for state in optimizer.state.values():
        yield [_memory(value) if isinstance(value, Tensor) else _value(value) for value in state.values()]


def _memory(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    place = tensor.data_ptr() if tensor.layout == torch.strided else id(tensor)
    return place, tensor.requires_grad
