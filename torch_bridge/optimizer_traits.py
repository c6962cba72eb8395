"""Properties of optimizer classes that decide how their updates are skipped, sharded and counted.

For a class that is not named here, the host decides whether to skip an update, and its parameters
may be sharded.

To add an optimizer whose fused kernels can skip an update on the device, add it to
`SKIP_ATTRIBUTES`. Try first what a skipped first update leaves behind: see
`training/train_step/fused_sgd.py`. If torch cannot run a class on DTensors, add it to
`_NOT_SHARDABLE`. Add the class to `FUSED` or `OTHERS` in `tests/support/training/optimizers.py`:
every kind of training run then covers it. Name it in `docs/training_step.md`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

# Skipping an update.

SKIP_ATTRIBUTES: Mapping[type[Optimizer], str] = MappingProxyType(
    {
        torch.optim.Adam: "found_inf",
        torch.optim.AdamW: "found_inf",
        torch.optim.SGD: "found_inf",
        torch.optim.Adagrad: "found_inf",
    }
)
"""The optimizers whose fused kernels can skip an update, and the attribute that tells them to.

The attribute is a float32 tensor on the device: the kernels change nothing if it is 1. They read
the learning rate from a tensor too.
"""


def skip_attribute(optimizer: Optimizer) -> str | None:
    """Return the name in `SKIP_ATTRIBUTES`; None if the host must decide whether to skip."""
    if not all(group.get("fused") for group in optimizer.param_groups):
        return None
    return SKIP_ATTRIBUTES.get(type(optimizer))


# Sharding. These raise in the middle of an update in torch 2.13 if parameters are DTensors.

_NOT_SHARDABLE = ("Adafactor", "Muon", "Rprop")
_NOT_SHARDABLE_IF_FUSED = ("Adagrad", "SGD")


def check_shardable(optimizer: Optimizer) -> None:
    """Reject an optimizer that torch cannot run on sharded parameters.

    Raises:
        ValueError: Torch cannot run it; the message names the optimizer.
    """
    class_name = type(optimizer).__name__
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    if class_name in _NOT_SHARDABLE:
        unsupported = class_name
    elif class_name in _NOT_SHARDABLE_IF_FUSED and is_fused:
        unsupported = f"{class_name} with fused=True"
    else:
        return
    raise ValueError(f"torch cannot run {unsupported} on parameters under fully_shard")


# Kinds of optimizers.

IMPLEMENTATION_OPTIONS = ("fused", "foreach", "capturable", "differentiable")
"""Options of a group that choose torch's implementation, which may differ between machines."""


def is_of_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def derives_from_torch(optimizer: Optimizer) -> bool:
    """Return True for torch's optimizers and their subclasses, which may run its fused kernels."""
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("torch.optim") and base is not Optimizer:
            return True
    return False


def has_two_steps(optimizer: object) -> bool:
    """Return True for SAM and its relatives, which need two backward passes per update.

    Programs call `first_step` and `second_step` instead of `step`, which needs a closure.
    """
    optimizer_class = type(optimizer)
    names = ("first_step", "second_step")
    return all(callable(getattr(optimizer_class, name, None)) for name in names)


# The state of a parameter: its moments, and what they show of earlier updates.

STEP_COUNT = "step"
"""The entry with the number of updates, a number or a tensor of one element."""

MOMENTUM = "momentum_buffer"
"""The entry with the momentum of SGD, which counts no updates."""

MOMENTS = ("exp_avg", "exp_avg_sq", "square_avg", "row_var", "col_var", "variance", "prev")
"""Entries of torch's optimizers that stay zero until the first gradient that is not."""


def updates_made(optimizer: Optimizer) -> int | None:
    """Return the number of updates that an optimizer's state shows, the most of any parameter.

    None if the state shows that there were updates, but not how many, as for SGD with momentum.
    Steps on a device are read, which synchronizes with it: call this when something is built or
    loaded, not per update.
    """
    states = [
        cast("dict[str, Any]", entry)
        for entry in getattr(optimizer, "state", {}).values()
        if isinstance(entry, dict)
    ]
    most = 0
    for state in states:
        most = max(most, _steps_in(state))
    # Values other than momentum prove nothing: some optimizers create theirs when they are built.
    if most == 0 and any(_is_nonzero(state.get(MOMENTUM)) for state in states):
        return None
    return most


def _steps_in(state: dict[str, Any]) -> int:
    """Return the number of updates in a parameter's state; 0 if it has none."""
    step = state.get(STEP_COUNT)
    if isinstance(step, Tensor) and (step.is_meta or step.numel() != 1):
        return 0
    if isinstance(step, Tensor):
        step = step.item()
    if not isinstance(step, int | float):
        return 0
    # To create the states, torch's `get_optimizer_state_dict` steps once with gradients of zero.
    if step == 1 and _has_seen_only_zeros(state):
        return 0
    return max(int(step), 0)


def _has_seen_only_zeros(state: dict[str, Any]) -> bool:
    """Return True if a parameter's state has moments, and all are zero."""
    moments: list[Any] = [state[name] for name in MOMENTS if name in state]
    for moment in moments:
        # Quantized moments, as of torchao, have no sum.
        if type(getattr(moment, "_local_tensor", moment)) is not Tensor or _is_nonzero(moment):
            return False
    return bool(moments)


def _is_nonzero(moment: Any) -> bool:
    """Return False for None and for zeros, with which a `TrainStep` starts fused SGD."""
    if not isinstance(moment, Tensor) or moment.is_meta:
        return moment is not None
    # For a DTensor, this rank's shard: a sum over ranks would be a collective.
    shard = getattr(moment, "_local_tensor", moment)
    return bool(shard.abs().sum())  # `any` rejects sparse momentum
