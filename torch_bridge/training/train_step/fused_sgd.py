"""Two defects of torch's fused SGD, and how a step avoids them.

1. On a CPU, its kernel leaves most 16-bit parameters unchanged and writes wrong momentum:
   https://github.com/pytorch/pytorch/issues/191763, repaired by pull request 192545 there. A step
   rejects such parameters.
2. If a group has no momentum yet, it allocates uninitialized buffers for its kernel to fill, and a
   skipped update leaves them unfilled. The kernel also either uses the buffers of all parameters
   with a gradient or creates them all. So a step creates missing buffers itself, as zeros. With
   dampening, zeros would change the first update, so the host decides whether to skip.

Once no supported version of torch has these defects, delete this file and `test_fused_sgd.py`, and
remove `fused_sgd` and momentum from `steppers`, and dampening from `optimizer_traits`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.optimizer_traits import MOMENTUM


def check(optimizer: Optimizer) -> None:
    """Reject fused SGD with 16-bit parameters on a CPU."""
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if not group.get("fused"):
            continue
        for parameter in group["params"]:
            is_half = parameter.dtype in (torch.bfloat16, torch.float16)
            if is_half and parameter.is_cpu:
                raise ValueError(
                    f"on a CPU, the fused SGD of torch 2.13 leaves most {parameter.dtype} "
                    "parameters unchanged (github.com/pytorch/pytorch/issues/191763): build it "
                    "with fused=False"
                )


class Momentum:
    """Creates missing momentum of fused SGD, as zeros."""

    def __init__(self, optimizer: torch.optim.SGD) -> None:
        self._optimizer = optimizer

    def create_undampened(self) -> None:
        """Create the momentum of groups without dampening, before an update.

        The first update gets the same bits from zeros.
        """
        for group in self._optimizer.param_groups:
            if not group["momentum"] or group["dampening"]:
                continue
            for parameter in self._missing(group["params"]):
                if parameter.requires_grad:
                    self._write_zeros(parameter)

    def complete_dampened(self) -> None:
        """Complete the momentum of groups with dampening, before the optimizer's step.

        Torch creates the first ones itself, from an undampened gradient. Zeros are for parameters
        that get their first gradient later.
        """
        for group in self._optimizer.param_groups:
            if not group["momentum"] or not group["dampening"] or not group.get("fused"):
                continue
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            missing = self._missing(trained)
            if len(missing) < len(trained):
                for parameter in missing:
                    self._write_zeros(parameter)

    def _missing(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        states = self._optimizer.state
        return [
            parameter for parameter in parameters if states.get(parameter, {}).get(MOMENTUM) is None
        ]

    def _write_zeros(self, parameter: Tensor) -> None:
        zeros = torch.zeros_like(parameter, requires_grad=False)
        self._optimizer.state[parameter][MOMENTUM] = zeros


def momentum_of(optimizer: Optimizer) -> Momentum | None:
    """Return the `Momentum` of an optimizer that is fused SGD; None for any other."""
    if type(optimizer) is not torch.optim.SGD:
        return None
    if not any(group.get("fused") for group in optimizer.param_groups):
        return None
    return Momentum(optimizer)
