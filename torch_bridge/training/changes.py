"""What an update was built on, to notice when the user or another library changes it."""

import operator
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.schedulers.param_groups import all_groups
from torch_bridge.training.optimizers import check_no_scheduler


class Foundation:
    """The settings that choose an optimizer's driver and, for a CUDA graph, all that is baked into one.

    What a graph depends on, besides the shapes of the batches: each module's mode, parts, parameters and
    buffers, the optimizers' settings and states, where these are in memory, and whether they require
    gradients. Not noticed are changes of plain values that a forward pass reads, such as a dropout rate or a
    variable of `loss_fn`, of hooks, of torch's global switches, and of `.data` to another view of the same
    memory.

    Args:
        model: The module that the update trains.
        optimizers: Its optimizers.
        with_wrappers: The same, and what trainers have wrapped them in.
        captured: Whether to compare what a graph depends on, too.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        with_wrappers: Sequence[Any],
        captured: bool,
    ) -> None:
        self._model, self._optimizers, self._captured = model, optimizers, captured
        self._with_wrappers = with_wrappers
        self.settle()

    def settle(self) -> None:
        """Compare with the present state from now on."""
        attributes: list[dict[str, Any]] = list(map(vars, self._with_wrappers))
        self._settled_steps = [(each, each.get("step")) for each in attributes]
        self._settled_groups = [
            (
                optimizer,
                [
                    (group.get("fused"), _tied(group), list(group["params"]))
                    for group in optimizer.param_groups
                ],
            )
            for optimizer in self._optimizers
        ]
        if self._captured:
            self._settled_settings = self._settings()
            self._modules = list(self._model.modules())
            # Kept alive, so that what comes later can't be mistaken for them.
            self._settled_objects = list(self._objects())
            self._tensors = [tensor for tensor in self._settled_objects if _has_memory(tensor)]
            self._settled_values = self._values()

    def check_no_scheduler(self) -> None:
        """Refuse a scheduler that was attached to an optimizer since.

        Raises:
            ValueError: There is one.
        """
        check_no_scheduler(self._with_wrappers)

    def changed(self) -> bool:
        """Whether something differs from when it was settled. Does not synchronize with the device."""
        # Each update pays for these loops: written out they take a third of the time.
        for attributes, step in self._settled_steps:
            if attributes.get("step") is not step:
                return True
        for optimizer, settled in self._settled_groups:
            groups = optimizer.param_groups
            if len(groups) != len(settled):
                return True
            for group, (fused, rate, parameters) in zip(groups, settled):  # noqa: B905 -- just compared
                lr, present = group["lr"], group["params"]
                if lr is not rate and (rate is not None or isinstance(lr, Tensor)):
                    return True
                if group.get("fused") is not fused or len(present) != len(parameters):
                    return True
                if not all(map(_is, present, parameters)):
                    return True
        return self._captured and not (
            self._settings() == self._settled_settings
            # The values are those of the same objects.
            and _identical(list(self._objects()), self._settled_objects)
            and self._values() == self._settled_values
        )

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


_is = operator.is_
_contents = operator.methodcaller("values")
_requires_grad = operator.attrgetter("requires_grad")
_training = operator.attrgetter("training")


def _has_memory(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _identical(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(_is, one, other))


def _tied(group: dict[str, Any]) -> Tensor | None:
    """The rate where it is a tensor, which has to stay the same; every update writes one that is a number."""
    rate = group["lr"]
    return rate if isinstance(rate, Tensor) else None


def _settings(group: dict[str, Any]) -> list[Any]:
    return [(name, _value(value)) for name, value in group.items() if name not in ("lr", "params")]


def _value(value: Any) -> Any:
    """What stands for a setting's value, to be compared without synchronizing with the device."""
    if isinstance(value, tuple | list):
        return tuple(_value(item) for item in cast("tuple[Any, ...]", value))
    return id(value) if isinstance(value, Tensor) else value
