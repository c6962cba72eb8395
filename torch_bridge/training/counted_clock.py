"""The clock of samples or tokens: so many make one step of the curve."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_bridge.core import Curve, stack
from torch_bridge.schedulers.unit_clocks import MOST_CONSUMED
from torch_bridge.table import multiplier, tensors
from torch_bridge.training.clock import Clock, Counts


class CountedClock(Clock):
    """With `consumed` the sum of the counts of all updates that took place, it stands at `consumed // unit`.

    The rates are computed on the device from the curves' table, so that an update may move the clock on by
    any number of steps.

    Args:
        curves: The curve of each parameter group.
        peaks: The peak of each group.
        device: Where the counts and the rates are.
        unit: How many samples or tokens make one step.
        seen: Is told where the clock stood, whenever the host learns it.
    """

    unit: int

    def __init__(
        self,
        curves: Sequence[Curve],
        peaks: Sequence[float],
        device: torch.device,
        unit: int,
        seen: Callable[[int], None] = lambda clock: None,
    ) -> None:
        super().__init__(curves, peaks, device, seen, unit=unit)
        self._unit = unit
        self.counts = self._numbers[1:]
        self._applied_and_skipped = self._numbers[1:3]
        self._consumed = self._numbers[4]
        self._one_applied = torch.tensor([1, 0], device=device)
        self._one_skipped = torch.tensor([0, 1], device=device)
        self._nothing = torch.tensor(0, device=device)
        distinct = list({id(curve): curve for curve in self.curves}.values())
        self._table = tensors(stack(distinct), device)
        places = [next(i for i, one in enumerate(distinct) if one is curve) for curve in self.curves]
        self._places = torch.tensor(places, device=device)
        self._device_peaks = torch.zeros_like(self.rates)
        self.set(Counts(0, 0, 0, 0), self.peaks)

    def set_peaks(self, peaks: Sequence[float]) -> None:
        for own, peak in zip(self._device_peaks.unbind(), peaks, strict=True):
            own.fill_(peak)  # unlike a copy from the host, nothing waits
        super().set_peaks(peaks)

    def fill_rates(self) -> None:
        self._used.copy_(self.now)
        values = multiplier(self._table, self.now)
        torch.mul(values.index_select(0, self._places), self._device_peaks, out=self.rates)

    def count_update(self, skip: Tensor, loss: Tensor, consumed: Any) -> None:
        self._applied_and_skipped.add_(torch.where(skip, self._one_skipped, self._one_applied))
        self._consumed.add_(torch.where(skip, self._nothing, consumed)).clamp_(max=MOST_CONSUMED)
        torch.div(self._consumed, self._unit, rounding_mode="floor", out=self.now)
