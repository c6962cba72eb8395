"""Mixed precision: the forward pass's dtype, and the dynamic scale of fp16 losses.

Micikevicius et al., Mixed Precision Training, 2018, arXiv:1710.03740.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from plateau_jax.arguments import checks

PrecisionName = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The autocast context and the loss scale of a named precision.

    Args:
        name: "fp32", "bf16" or "fp16".
        device: The device of the parameters.
        parameters: The optimized parameters.

    Raises:
        ValueError: An unknown name, or "fp16" with parameters that are fp16 themselves.
    """

    def __init__(
        self, name: PrecisionName, device: torch.device, parameters: Sequence[Tensor] = ()
    ) -> None:
        self.name = checks.one_of("precision", name, get_args(PrecisionName))
        has_fp16 = any(parameter.dtype == torch.float16 for parameter in parameters)
        if name == "fp16" and has_fp16:
            raise ValueError(
                'precision="fp16" casts fp32 parameters to fp16 itself; some of these are fp16 '
                "already"
            )
        self.autocast: torch.autocast | None = None
        """The context of a forward pass, or None."""
        if name in _DTYPES:
            self.autocast = torch.autocast(device.type, dtype=_DTYPES[name])
        self.scale: LossScale | None = None
        """The loss scale, or None."""
        if name == "fp16":
            self.scale = LossScale(device)


class LossScale:
    """The factor of the loss that prevents underflow of fp16 gradients.

    It is halved at an overflow, and doubled after 2000 good updates, by the operator of
    `torch.amp.GradScaler`. The step itself decides whether to skip.
    """

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.full((), 2.0**16, dtype=torch.float32, device=device)
        self.growth_tracker = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: Tensor, loss: Tensor) -> None:
        """Update the scale; `found_inf` is 1.0 if the update was skipped, else 0.0."""
        # The scale does not cause a nonfinite loss, and many bad batches would halve it to zero. So
        # such an update counts neither as an overflow nor as a good update: subtracting 1 cancels
        # what the operator below adds.
        finite = loss.mul(0).eq(0)
        has_overflowed = found_inf * finite
        self.growth_tracker.add_(finite.int() - 1)
        torch._amp_update_scale_(self.factor, self.growth_tracker, has_overflowed, 2.0, 0.5, 2000)

    def tensors(self) -> list[Tensor]:
        """Return the scale and its counter of good updates since the last change."""
        return [self.factor, self.growth_tracker]

    def write_state(self, state: Sequence[Tensor]) -> None:
        for tensor, value in zip(self.tensors(), state, strict=True):
            tensor.copy_(value)
