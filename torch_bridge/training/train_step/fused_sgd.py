"""Defects of torch's fused SGD, and how a step avoids them.

1. On a CPU, its kernel leaves most 16-bit parameters unchanged and writes wrong momentum:
   https://github.com/pytorch/pytorch/issues/191763, repaired by pull request 192545 there. A step
   rejects such parameters.
2. If a group has no momentum yet, it allocates uninitialized buffers for its kernel to fill, and a
   skipped update leaves them unfilled. The kernel also either uses the buffers of all parameters
   with a gradient or creates them all. So a step creates missing buffers itself, as zeros, from
   which the first update gets the same bits. With dampening it would not, so a step rejects that.

Once no supported version of torch has these defects, delete this file and `test_fused_sgd.py`, and
remove `fused_sgd` from `steppers`.
"""

from typing import Any

import torch
from torch.optim import Optimizer

from torch_bridge.groups.optimizers import MOMENTUM, groups_of


def check(optimizer: Optimizer) -> None:
    """Reject fused SGD with 16-bit parameters on a CPU, or with dampening.

    Raises:
        ValueError: The message says how to build the optimizer.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in groups_of(optimizer):
        if not group.get("fused"):
            continue
        if group["momentum"] and group["dampening"]:
            raise ValueError("a TrainStep needs fused=False for SGD with dampening")
        for parameter in group["params"]:
            is_half = parameter.dtype in (torch.bfloat16, torch.float16)
            if is_half and parameter.is_cpu:
                raise ValueError(
                    f"on a CPU, torch's fused SGD leaves most {parameter.dtype} "
                    "parameters unchanged (github.com/pytorch/pytorch/issues/191763): build it "
                    "with fused=False"
                )


def create_momentum(optimizer: Optimizer) -> None:
    """Create missing momentum of fused groups of SGD, as zeros, before an update."""
    if type(optimizer) is not torch.optim.SGD:
        return
    states: Any = optimizer.state
    for group in groups_of(optimizer):
        if not group["momentum"] or not group.get("fused"):
            continue
        for parameter in group["params"]:
            if parameter.requires_grad and states[parameter].get(MOMENTUM) is None:
                states[parameter][MOMENTUM] = torch.zeros_like(parameter, requires_grad=False)
