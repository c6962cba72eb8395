"""Keeps what a trial changes and puts it back: random states, weights, buffers, optimizers' states."""

import copy
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_bridge.distributed.dtensors import local_part


@contextmanager
def random_states_kept() -> Generator[None]:
    """The random numbers of torch (CPU and all CUDA devices), NumPy and Python go on as before."""
    on_host, python = torch.get_rng_state(), random.getstate()
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpy = np.random.get_state()  # noqa: NPY002 (the state that is to be kept)
    try:
        yield
    finally:
        torch.set_rng_state(on_host)
        if on_devices:
            torch.cuda.set_rng_state_all(on_devices)
        np.random.set_state(numpy)  # noqa: NPY002 (the same)
        random.setstate(python)


@contextmanager
def states_kept(model: nn.Module | None, optimizers: Sequence[Optimizer]) -> Generator[None]:
    """The model's weights, buffers, gradients and modes stay as they are, and all of its optimizers.

    The copies are in host memory: they take none of a device's memory.
    """
    put_back = [_gradients(model), _modes(model), _buffers(model), *map(_state, optimizers)]
    tensors: list[Any] = [] if model is None else [*model.parameters(), *model.buffers()]
    for optimizer in optimizers:
        tensors += pytree.tree_leaves([dict(optimizer.state), optimizer.param_groups])
    once = {id(tensor): tensor for tensor in tensors if isinstance(tensor, Tensor) and _is_own(tensor)}
    values = [(tensor, local_part(tensor).detach().to("cpu", copy=True)) for tensor in once.values()]
    try:
        yield
    finally:
        for restore in put_back:
            restore()
        with torch.no_grad():
            for tensor, value in values:
                local_part(tensor).copy_(value)


def _gradients(model: nn.Module | None) -> Callable[[], None]:
    parameters = [] if model is None else list(model.parameters())
    found = [(parameter, parameter.requires_grad, parameter.grad) for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None  # a trial would add to it in place

    def restore() -> None:
        for parameter, requires_grad, gradient in found:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient

    return restore


def _modes(model: nn.Module | None) -> Callable[[], None]:
    found = [] if model is None else [(module, module.training) for module in model.modules()]

    def restore() -> None:
        for module, training in found:
            module.training = training

    return restore


def _buffers(model: nn.Module | None) -> Callable[[], None]:
    modules = [] if model is None else list(model.modules())
    found = [(module._buffers, dict(module._buffers)) for module in modules]

    def restore() -> None:
        for present, buffers in found:
            present.clear()
            present.update(buffers)

    return restore


def _state(optimizer: Optimizer) -> Callable[[], None]:
    def kept(leaf: Any) -> Any:
        return leaf if isinstance(leaf, Tensor) else copy.deepcopy(leaf)

    found = {key: pytree.tree_map(kept, state) for key, state in optimizer.state.items()}
    groups = [(group, dict(group)) for group in optimizer.param_groups]

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update(found)
        for group, settings in groups:
            group.clear()
            group.update(settings)

    return restore


def _is_own(tensor: Tensor) -> bool:
    """Whether each element has its own place in memory: an expanded tensor can't be written to."""
    if tensor.layout != torch.strided:
        return True
    return all(stride or size < 2 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
