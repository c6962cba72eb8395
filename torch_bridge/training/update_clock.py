"""The clock of updates: each moves it on by one step of the curve, unless a rule holds it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_bridge.core import Curve, Rule
from torch_bridge.schedulers.group_curves import of_each
from torch_bridge.schedulers.hold_state import States, starts
from torch_bridge.training.clock import Clock, Counts
from torch_bridge.training.hold import Hold


class UpdateClock(Clock):
    """An update that took place moves the clock on by one, unless a rule holds it.

    The device has a window of rates: those of the `2·INTERVAL + 1` steps from `low` on. The host moves it
    every `INTERVAL` updates, to where it learns that the clock stood: `INTERVAL` updates before the move, or
    fewer. The window is used for `INTERVAL` updates more. An update moves the clock by one step at most, and
    never back: all rates that are needed lie in the window.

    Args:
        curves: The curve of each parameter group.
        peaks: The peak of each group.
        device: Where the counts and the rates are.
        rules: Those that may hold the clock; if there are any, the curves are all the same.
        applied: How many updates took place before.
        seen: Is told where the clock stood, whenever the host learns it.
    """

    def __init__(
        self,
        curves: Sequence[Curve],
        peaks: Sequence[float],
        device: torch.device,
        rules: Sequence[Rule] = (),
        applied: int = 0,
        seen: Callable[[int], None] = lambda clock: None,
    ) -> None:
        super().__init__(curves, peaks, device, seen, rules)
        self._hold = Hold(rules, curves[0], device) if rules else None
        # The last of the numbers is the column of the present step in the window.
        self._position = self._numbers[4:]  # torch.index_select takes no scalar
        self._used_and_position = self._numbers[3:]
        self._one_applied = torch.tensor([1, 1, 0, 0, 0], device=device)
        self._one_skipped = torch.tensor([0, 0, 1, 0, 0], device=device)
        self._column = self.rates.view(-1, 1)  # the shape that torch.index_select writes
        window = len(self.curves), 2 * self._interval + 1
        self._window = torch.zeros(window, dtype=torch.float32, device=device)
        self._zero_and_low = torch.zeros(2, dtype=torch.int64, device=device)
        self._low = self._zero_and_low[1]
        self._next_window = self._host_buffer(self._window)
        self._rows = self._next_window.numpy()
        self.set(Counts(applied, 0, applied, applied), self.peaks, starts(rules))

    def set(self, counts: Counts, peaks: Sequence[float], states: States = ()) -> None:
        if self._hold is not None:
            self._hold.set(states)
        super().set(counts, peaks)

    def read_states(self) -> States:
        return () if self._hold is None else self._hold.read_states()

    def fill_rates(self) -> None:
        torch.sub(self.now, self._zero_and_low, out=self._used_and_position)
        torch.index_select(self._window, 1, self._position, out=self._column)

    def count_update(self, skip: Tensor, loss: Tensor, consumed: Any = None) -> None:
        self._numbers.add_(torch.where(skip, self._one_skipped, self._one_applied))
        if self._hold is not None:
            held = self._hold.holds(self._used, loss, skip)
            self.now.copy_(torch.where(held, self._used, self.now))

    def _refresh(self) -> None:
        """Move the window to where the clock stood when the last copy was started."""
        self._wait_for_copy()
        low = int(self._seen[0])
        steps = np.arange(low, low + self._window.shape[1])
        multipliers = of_each(self.curves, lambda curve: curve(steps))
        for row, values, peak in zip(self._rows, multipliers, self.peaks, strict=True):
            np.multiply(values, np.float32(peak), out=row)
        self._window.copy_(self._next_window, non_blocking=True)
        self._low.fill_(low)
        self._start_copy()
