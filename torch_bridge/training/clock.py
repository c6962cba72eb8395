"""The schedule's clock: how many updates took place, and the rates at that count, on the device."""

import operator
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from torch_bridge.core import Curve
from torch_bridge.multipliers import Multipliers

INTERVAL = 1024
"""Updates between two moves of the window."""


class Clock:
    """Counts updates on the device and looks their rates up there; the host never waits for either.

    The device holds a window of the rates of `2·INTERVAL + 1` steps from `low` on. Every `INTERVAL`
    updates the host moves it to the count that it had asked for one move earlier, and that has long
    arrived: a lower bound of the count, at most `2·INTERVAL` updates old, however many were skipped.

    All tensors stay the same for the clock's life, so that a captured graph can use them.
    """

    def __init__(self, curves: Sequence[Curve], peaks: Sequence[float], device: torch.device) -> None:
        self.curves = list(curves)
        self.peaks = list(peaks)
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)
        """Updates applied, updates skipped."""
        self.applied = self.counts[0]
        self._applied = self.counts[:1]
        # A column, the shape that torch.index_select writes.
        self._column = torch.zeros(len(self.curves), 1, dtype=torch.float32, device=device)
        self.rates = self._column.view(-1)
        """The rate of each parameter group at the present count: float32, of shape (groups,)."""
        self.group_rates = self.rates.unbind()
        """The same memory, a scalar a group."""
        self._window = torch.zeros(len(self.curves), 2 * INTERVAL + 1, dtype=torch.float32, device=device)
        self._low = torch.zeros(1, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._one = torch.ones(1, dtype=torch.int64, device=device)
        self._multipliers = Multipliers(self.curves)
        # Page-locked, so that copies from and to the device need no waiting; on the CPU by name, since
        # torch may have been given another default device.
        on_cuda = device.type == "cuda"
        self._copied = torch.cuda.Event() if on_cuda else None
        self._next_window, self._seen_counts = (
            torch.zeros(like.shape, dtype=like.dtype, device="cpu", pin_memory=on_cuda)
            for like in (self._window, self.counts)
        )
        # The same memory, where the host writes the curve's values, which are NumPy's, and reads counts.
        self._rows, self._seen = self._next_window.numpy(), self._seen_counts.numpy()
        self.set(0, 0, self.peaks)

    def set(self, applied: int, skipped: int, peaks: Sequence[float]) -> None:
        """Start from these counts, with these peaks."""
        self.peaks = list(peaks)
        self._wait_for_copies()
        self._seen[:] = applied, skipped
        self.counts.copy_(self._seen_counts)
        self._move_window()
        self._updates = 0

    def counted(self) -> list[int]:
        """Updates applied and updates skipped, read from the device."""
        return cast("list[int]", self.counts.tolist())

    def rates_at(self, applied: int) -> list[float]:
        """The rate of each parameter group after so many updates, computed on the host."""
        return list(map(operator.mul, self.peaks, self._multipliers[applied]))

    def move_window_if_due(self) -> None:
        """Called before each update, outside any captured graph."""
        if self._updates == INTERVAL:
            self._move_window()
            self._updates = 0  # last, so that a move that was interrupted is made again
        self._updates += 1

    def fill_rates(self) -> None:
        """Write the rates of the present count into `rates`."""
        torch.sub(self._applied, self._low, out=self._position)
        torch.index_select(self._window, 1, self._position, out=self._column)

    def count_update(self, skip: Tensor) -> None:
        """Count an update as applied, or as skipped where `skip`, a bool scalar, is True."""
        self.counts.index_add_(0, skip.long().view(1), self._one)

    def _wait_for_copies(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # made INTERVAL updates ago: they have long arrived

    def _move_window(self) -> None:
        self._wait_for_copies()
        low = int(self._seen[0])
        steps = np.arange(low, low + self._window.shape[1])
        multipliers = {curve: curve(steps) for curve in set(self.curves)}
        for row, curve, peak in zip(self._rows, self.curves, self.peaks, strict=True):
            np.multiply(multipliers[curve], np.float32(peak), out=row)
        self._window.copy_(self._next_window, non_blocking=True)
        self._low.fill_(low)
        self._seen_counts.copy_(self.counts, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._window.device))
