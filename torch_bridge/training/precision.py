"""Mixed precision: the autocast context, and the dynamic scale of fp16 losses."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torch_bridge.core import checks

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context for a forward pass.

    Raises:
        ValueError: `precision` is not "fp32", "bf16" or "fp16".
    """
    checks.one_of("precision", precision, ("fp32", "bf16", "fp16"))
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])


class LossScale:
    """The scale that keeps fp16 gradients away from zero: halved at an overflow, doubled every 2 000 updates.

    As `torch.amp.GradScaler` has it, whose update this calls; the decision to skip is the step's own.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), 2.0**16, dtype=torch.float32, device=device)
        self.good_updates = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: Tensor, loss: Tensor) -> None:
        """`found_inf` is 1.0 where the update was skipped."""
        # A loss that is not finite is no work of the scale, which many bad batches would bring to zero:
        # it is no overflow, and no good update either, which the call below counts it for.
        finite = loss.mul(0).eq(0)
        self.good_updates.add_(finite.int() - 1)
        torch._amp_update_scale_(self.scale, self.good_updates, found_inf * finite, 2.0, 0.5, 2000)
