"""The clock of samples or tokens: so many make one step of the curve."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_bridge.core import Curve, stack
from torch_bridge.schedulers.unit_clocks import MOST_CONSUMED
from torch_bridge.table import multiplier, tensors
from torch_bridge.training.clock import Clock, Counts

MOST_VALUES = 2**20
"""Of curves with fewer values in all these are kept on the device: 4 MiB, for a lookup in two operators."""


class CountedClock(Clock):
    """With `consumed` the sum of the counts of all updates that took place, it stands at `consumed // unit`.

    An update may move the clock on by any number of steps. So the device has all values of the curves; or,
    where these are many, their table, from which `multiplier` computes the same bits in some 200 operators.

    Args:
        curves: The curve of each parameter group.
        peaks: The peak of each group.
        device: Where the counts and the rates are.
        unit: How many samples or tokens make one step.
        seen: Is told where the clock stood, whenever the host learns it.
    """

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
        # By identity, since a curve of a derived class may have no hash.
        by_id = {id(curve): curve for curve in self.curves}
        distinct, ids = list(by_id.values()), list(by_id)
        self._places = torch.tensor([ids.index(id(curve)) for curve in self.curves], device=device)
        self._last = max(curve.total_steps for curve in distinct)
        self._values: Tensor | None = None
        if len(distinct) * (self._last + 1) <= MOST_VALUES:
            steps = np.arange(self._last + 1)
            self._values = torch.from_numpy(np.stack([curve(steps) for curve in distinct])).to(device)
        else:
            self._table = tensors(stack(distinct), device)
        self._device_peaks = torch.zeros_like(self.rates)
        self.set(Counts(0, 0, 0, 0), self.peaks)

    def set_peaks(self, peaks: Sequence[float]) -> None:
        for own, peak in zip(self._device_peaks.unbind(), peaks, strict=True):
            own.fill_(peak)  # unlike a copy from the host, nothing waits
        super().set_peaks(peaks)

    def fill_rates(self) -> None:
        self._used.copy_(self.now)
        if self._values is not None:
            values = self._values.index_select(1, self.now.clamp(max=self._last).view(1)).view(-1)
        else:
            values = multiplier(self._table, self.now)
        if len(values) > 1:
            values = values.index_select(0, self._places)
        torch.mul(values, self._device_peaks, out=self.rates)

    def count_update(self, skip: Tensor, loss: Tensor, consumed: Any) -> None:
        self._applied_and_skipped.add_(torch.where(skip, self._one_skipped, self._one_applied))
        self._consumed.add_(torch.where(skip, self._nothing, consumed)).clamp_(max=MOST_CONSUMED)
        torch.div(self._consumed, self._unit, rounding_mode="floor", out=self.now)
