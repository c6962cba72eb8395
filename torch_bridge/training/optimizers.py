"""Which optimizers a training step takes, and which of them skip an update on the device."""

import inspect
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torch_bridge.groups import groups_of

# Their fused kernels take a tensor `found_inf` and leave everything as it is where it is 1.
_WITH_FOUND_INF = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> torch.device:
    """Refuse what a training step cannot drive; return the device that the parameters are on.

    Raises:
        TypeError: Not an optimizer, or one whose `step` needs a closure.
        ValueError: Parameters that are not the model's, or on several devices; a scheduler that is
            attached to the optimizer.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model = {model!r} must be a torch.nn.Module")
    groups = groups_of(optimizer)
    name = type(optimizer).__name__
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{name} needs a closure, which an update in one piece cannot give; use another optimizer"
        )
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise ValueError(
            "a scheduler is attached to the optimizer, and the curve given here would be a second clock; "
            "build the optimizer anew, without the scheduler"
        )
    own = {id(parameter) for parameter in model.parameters()}
    parameters = [parameter for group in groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in own for parameter in parameters)
    if foreign:
        raise ValueError(f"{foreign} of the optimizer's {len(parameters)} parameters are not the model's")
    devices = {parameter.device for parameter in parameters}
    if len(devices) != 1:
        raise ValueError(
            f"the optimizer's parameters are on {sorted(map(str, devices))}; it must be one device"
        )
    return devices.pop()


def skips_on_device(optimizer: Optimizer, groups: list[dict[str, Any]]) -> bool:
    """Whether the optimizer, with these groups, takes the decision to skip as a tensor."""
    return type(optimizer) in _WITH_FOUND_INF and all(group.get("fused") for group in groups)


def check_capturable(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    """Refuse what a CUDA graph cannot hold.

    Raises:
        ValueError: The optimizer is not a fused one, or not capturable.
    """
    if not skips_on_device(optimizer, groups):
        names = ", ".join(kind.__name__ for kind in _WITH_FOUND_INF)
        raise ValueError(
            f"cuda_graph=True needs {names} with fused=True; the optimizer is {type(optimizer).__name__} "
            f"with fused={[group.get('fused') for group in groups]}"
        )
    if not all(group.get("capturable", True) for group in groups):
        raise ValueError(
            f"cuda_graph=True needs {type(optimizer).__name__} with capturable=True beside fused=True"
        )


def has_momentum(optimizer: Optimizer) -> bool:
    """False while fused SGD has momentum buffers to create: a skip would leave them uninitialized."""
    if type(optimizer) is not torch.optim.SGD:
        return True
    return not any(
        group["momentum"]
        and parameter.grad is not None
        and optimizer.state.get(parameter, {}).get("momentum_buffer") is None
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
