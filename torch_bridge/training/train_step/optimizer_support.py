"""Properties of optimizer classes that decide how their updates are skipped and sharded.

For a class that is not named here, the host decides whether to skip an update, and its parameters
may be sharded.

To add an optimizer whose fused kernels can skip an update on the device, add it to `SKIPPING`. Try
first what a skipped first update leaves behind: see `fused_sgd`. If torch
cannot run a class on DTensors, add it to `_NOT_SHARDABLE`. Add the class to `FUSED` or `OTHERS` in
`tests/support/training/optimizers.py`: every kind of training run then covers it. Name it in
`docs/training_step.md`.
"""

import torch
from torch.optim import Optimizer

from torch_bridge.groups.optimizers import groups_of

# Skipping an update.

SKIPPING = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""The optimizers whose fused kernels change nothing if the optimizer's attribute `found_inf`, a
float32 tensor on the device, is 1. They read the learning rate from a tensor too."""


def can_skip(optimizer: Optimizer) -> bool:
    """Return True if the device can skip an update; else the host must decide."""
    is_fused = all(group.get("fused") for group in groups_of(optimizer))
    return is_fused and type(optimizer) in SKIPPING


# Sharding. These raise in the middle of an update in torch 2.13 if parameters are DTensors.

_NOT_SHARDABLE = ("Adafactor", "Muon", "Rprop")
_NOT_SHARDABLE_IF_FUSED = ("Adagrad", "SGD")


def check_shardable(optimizer: Optimizer) -> None:
    """Reject an optimizer that torch cannot run on sharded parameters.

    Raises:
        ValueError: Torch cannot run it; the message names the optimizer.
    """
    class_name = type(optimizer).__name__
    is_fused = any(group.get("fused") for group in groups_of(optimizer))
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


def derives_from_torch(optimizer: Optimizer) -> bool:
    """Return True for torch's optimizers and their subclasses, which may run its fused kernels."""
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("torch.optim") and base is not Optimizer:
            return True
    return False
