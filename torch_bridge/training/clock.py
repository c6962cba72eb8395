"""The schedule's clock, on the device: how many updates took place, the step of the curve, its rates."""

import operator
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from torch_bridge.core import Curve, Rule
from torch_bridge.schedulers.hold_state import States, starts
from torch_bridge.schedulers.multipliers import Multipliers, of_each
from torch_bridge.training.hold import Hold

INTERVAL = 1024
"""Updates between two moves of the window."""


class Clock:
    """Counts updates on the device and finds their rates there, without synchronizing with it.

    An update that took place moves the clock on by one, unless a rule holds it.

    The device has a window of rates: those of the `2·INTERVAL + 1` steps from `low` on. The host moves it
    every `INTERVAL` updates, and starts a copy of the clock to the host then. It does not wait for the copy:
    at the next move the copy has arrived, and its number becomes `low`. So `low` is where the clock stood
    `INTERVAL` updates before the move, and the window is used for `INTERVAL` updates more. An update moves
    the clock by one step at most, and never back: all rates that are needed lie in the window.

    All tensors stay the same as long as the clock lives, so that a captured graph can use them.

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
        self.curves = list(curves)
        self.peaks = list(peaks)
        self.rules = rules
        self._hold = Hold(rules, curves[0], device) if rules else None
        # In one tensor, for one operator that moves them and one that copies them. Views of its memory:
        #
        #     index       0       1         2         3      4
        #     _numbers  [ now  | applied | skipped | used | position ]
        #     now         ───
        #     counts             ──────────────────────────
        #     _used                                  ────
        #     _position                                     ────────
        #     _used_and_position                     ───────────────
        #
        # `used` is the step of the curve that `rates` are of, and `position` its column in the window.
        self._numbers = torch.zeros(5, dtype=torch.int64, device=device)
        self.now = self._numbers[0]
        """The step of the curve where the clock stands, a scalar."""
        self.counts = self._numbers[1:4]
        """Updates applied, updates skipped, and the step of the curve that the rates are of."""
        self._used = self._numbers[3]
        self._position = self._numbers[4:]  # torch.index_select takes no scalar
        self._used_and_position = self._numbers[3:]
        self._one_applied = torch.tensor([1, 1, 0, 0, 0], device=device)
        self._one_skipped = torch.tensor([0, 0, 1, 0, 0], device=device)
        # A column, the shape that torch.index_select writes.
        self._column = torch.zeros(len(self.curves), 1, dtype=torch.float32, device=device)
        self.rates = self._column.view(-1)
        """The rate of each parameter group at the present step: float32, of shape (groups,)."""
        self.group_rates = self.rates.unbind()
        """The same memory, as one scalar for each group."""
        self._window = torch.zeros(len(self.curves), 2 * INTERVAL + 1, dtype=torch.float32, device=device)
        self._zero_and_low = torch.zeros(2, dtype=torch.int64, device=device)
        self._low = self._zero_and_low[1]
        self._multipliers = Multipliers(self.curves)
        # Page-locked, so that no copy from or to the device has to be waited for. The device is named, since
        # the user may have set another default device.
        on_cuda = device.type == "cuda"
        self._copied = torch.cuda.Event() if on_cuda else None
        self._next_window, self._seen_numbers = (
            torch.zeros(like.shape, dtype=like.dtype, device="cpu", pin_memory=on_cuda)
            for like in (self._window, self._numbers)
        )
        # The same memory as NumPy arrays: the host writes the curve's values there, and reads counts.
        self._rows, self._seen = self._next_window.numpy(), self._seen_numbers.numpy()
        self._tell = seen
        self.set(applied, 0, applied, self.peaks, starts(rules))

    def set(
        self,
        applied: int,
        skipped: int,
        clock: int,
        peaks: Sequence[float],
        states: States = (),
    ) -> None:
        """Start from these counts, this step of the curve, these peaks, and what the rules remember."""
        self.peaks = list(peaks)
        self._wait_for_copies()
        self._seen[:] = clock, applied, skipped, clock, 0
        self._numbers.copy_(self._seen_numbers)
        if self._hold is not None:
            self._hold.set(states)
        self._move_window()
        self._updates = 0

    def set_peaks(self, peaks: Sequence[float]) -> None:
        """Take other peaks from the next update on, in the same tensors."""
        self.peaks = list(peaks)
        self._move_window()
        self._updates = 0

    def read_counts(self) -> tuple[int, int, int]:
        """Updates applied, updates skipped, and where the clock stands. Synchronizes with the device."""
        now, applied, skipped, *_ = cast("list[int]", self._numbers.tolist())
        self._tell(now)
        return applied, skipped, now

    def read_states(self) -> States:
        """What the rules remember. Synchronizes with the device."""
        return () if self._hold is None else self._hold.read_states()

    def rates_at(self, step: int) -> list[float]:
        """The rate of each parameter group at a step of the curve, computed on the host."""
        return list(map(operator.mul, self.peaks, self._multipliers[step]))

    def move_window_if_due(self) -> None:
        """Called before each update, outside any captured graph."""
        if self._updates == INTERVAL:
            self._move_window()
            self._updates = 0  # last, so that a move that was interrupted is made again
            self._tell(self._lowest)
        self._updates += 1

    def fill_rates(self) -> None:
        """Write the rates of where the clock stands into `rates`."""
        torch.sub(self.now, self._zero_and_low, out=self._used_and_position)
        torch.index_select(self._window, 1, self._position, out=self._column)

    def count_update(self, skip: Tensor, loss: Tensor) -> None:
        """Count an update as applied, or as skipped where `skip`, a bool scalar, is True; move the clock."""
        self._numbers.add_(torch.where(skip, self._one_skipped, self._one_applied))
        if self._hold is not None:
            held = self._hold.holds(self._used, loss, skip)
            self.now.copy_(torch.where(held, self._used, self.now))

    def _wait_for_copies(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # made INTERVAL updates ago: they have long arrived

    def _move_window(self) -> None:
        self._wait_for_copies()
        low = int(self._seen[0])
        steps = np.arange(low, low + self._window.shape[1])
        multipliers = of_each(self.curves, lambda curve: curve(steps))
        for row, values, peak in zip(self._rows, multipliers, self.peaks, strict=True):
            np.multiply(values, np.float32(peak), out=row)
        self._window.copy_(self._next_window, non_blocking=True)
        self._low.fill_(low)
        self._lowest = low
        self._seen_numbers.copy_(self._numbers, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._window.device))
