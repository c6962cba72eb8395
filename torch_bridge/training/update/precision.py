"""Mixed precision: the forward pass's dtype, and the dynamic scale of fp16 losses.

Micikevicius et al., Mixed Precision Training, 2018, arXiv:1710.03740.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from torch_bridge.curve_api import checks

Value = TypeVar("Value")
PrecisionName = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """What a precision's name stands for on a device.

    Args:
        name: "fp32", "bf16" or "fp16".
        device: The device of the parameters.
        parameters: Those that are optimized.

    Raises:
        ValueError: Another name; "fp16" with parameters that are fp16 themselves.
    """

    def __init__(self, name: PrecisionName, device: torch.device, parameters: Sequence[Tensor] = ()) -> None:
        self.name = checks.one_of("precision", name, get_args(PrecisionName))
        if name == "fp16" and any(parameter.dtype == torch.float16 for parameter in parameters):
            raise ValueError(
                'precision="fp16" needs parameters in fp32, which it casts itself; some are fp16'
            )
        dtype = _DTYPES.get(name)
        self._autocast = None if dtype is None else torch.autocast(device.type, dtype=dtype)
        self.scale = LossScale(device) if name == "fp16" else None
        """What losses are multiplied by on their way back, or None."""

    def run(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call a function, which runs forward passes, under autocast."""
        # Where the whole loop is under autocast, torch keeps the weights that it cast until the loop's end.
        torch.clear_autocast_cache()
        if self._autocast is None:
            return function(*arguments)
        with self._autocast:
            return function(*arguments)


class LossScale:
    """The scale that keeps fp16 gradients away from zero: halved at an overflow, doubled every 2 000 updates.

    As `torch.amp.GradScaler`, whose update this calls; the step itself decides whether to skip.
    """

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.full((), 2.0**16, dtype=torch.float32, device=device)
        self.good_updates = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: Tensor, loss: Tensor) -> None:
        """`found_inf` is 1.0 if the update was skipped."""
        # The scale is not to blame for a loss that is not finite, and many bad batches would bring it to
        # zero: such an update is not counted as an overflow, nor as the good update that the call below
        # would then take it for.
        finite = loss.mul(0).eq(0)
        self.good_updates.add_(finite.int() - 1)
        torch._amp_update_scale_(self.factor, self.good_updates, found_inf * finite, 2.0, 0.5, 2000)

    def tensors(self) -> list[Tensor]:
        """The scale, and the good updates since it changed."""
        return [self.factor, self.good_updates]

    def write_state(self, state: Sequence[Tensor]) -> None:
        for own, value in zip(self.tensors(), state, strict=True):
            own.copy_(value)
