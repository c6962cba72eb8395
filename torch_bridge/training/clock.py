"""The schedule's clock: how many updates took place, and the rates at that count, on the device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torch_bridge.core import PlateauCurve

INTERVAL = 1024
"""Calls between two refreshes of the window."""


class Clock:
    """Counts updates on the device and looks their rates up there; the host never waits for either.

    The device holds the rates of `2·INTERVAL + 1` steps from `low` on. Every `INTERVAL` calls the host
    moves the window to the count that it had asked for one refresh earlier, and that has long arrived:
    a lower bound of the count, at most `2·INTERVAL` calls old, however many updates were skipped.

    All tensors stay the same for the clock's life, so that a captured graph can use them.
    """

    def __init__(self, curves: Sequence[PlateauCurve], peaks: Sequence[float], device: torch.device) -> None:
        self.curves = list(curves)
        self.peaks = list(peaks)
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)
        """Updates applied, updates skipped."""
        self._applied = self.counts[:1]
        self._looked_up = torch.zeros(len(self.curves), 1, dtype=torch.float32, device=device)
        self.rate = self._looked_up.view(-1)
        """The rate of each parameter group at the present count: float32, of shape (groups,)."""
        self.rates = self.rate.unbind()
        """The same memory, a scalar a group."""
        self._window = torch.zeros(len(self.curves), 2 * INTERVAL + 1, dtype=torch.float32, device=device)
        self._low = torch.zeros(1, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._one = torch.ones(1, dtype=torch.int64, device=device)
        self._arrived = torch.cuda.Event() if device.type == "cuda" else None
        # Page-locked, so that copies from and to the device need no waiting.
        pinned = device.type == "cuda"
        self._next_window = torch.zeros(self._window.shape, dtype=torch.float32, pin_memory=pinned)
        self._seen = torch.zeros(2, dtype=torch.int64, pin_memory=pinned)
        # Reading through NumPy is not an operator on a tensor: a count of host reads stays a count
        # of reads of the device.
        self._seen_on_host = self._seen.numpy()
        self._next_window_on_host = self._next_window.numpy()
        self.set(0, 0)

    def set(self, applied: int, skipped: int) -> None:
        """Start from these counts."""
        self._wait()
        self.counts.copy_(torch.tensor([applied, skipped]))
        self._seen_on_host[:] = applied, skipped
        self._calls = 0
        self._refresh()

    def tick(self) -> None:
        """Called before each update, outside any captured graph."""
        if self._calls == INTERVAL:
            self._calls = 0
            self._refresh()
        self._calls += 1

    def look_up(self) -> None:
        """Write the rates of the present count into `rate`."""
        torch.sub(self._applied, self._low, out=self._position)
        torch.index_select(self._window, 1, self._position, out=self._looked_up)

    def count(self, skip: Tensor) -> None:
        """Count an update: `skip` is a bool scalar."""
        self.counts.index_add_(0, skip.long().view(1), self._one)

    def _wait(self) -> None:
        if self._arrived is not None:
            self._arrived.synchronize()  # on copies made INTERVAL updates ago: they have long arrived

    def _refresh(self) -> None:
        self._wait()
        low = int(self._seen_on_host[0])
        steps = np.arange(low, low + self._window.shape[1])
        multipliers = {curve: curve(steps) for curve in set(self.curves)}
        for row, curve, peak in zip(self._next_window_on_host, self.curves, self.peaks, strict=True):
            np.multiply(multipliers[curve], np.float32(peak), out=row)
        self._window.copy_(self._next_window, non_blocking=True)
        self._low.fill_(low)
        self._seen.copy_(self.counts, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(self._window.device))
