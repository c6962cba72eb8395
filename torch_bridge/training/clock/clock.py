"""The clock on the device: updates so far, the step of the curve, and the learning rates there."""

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from torch_bridge.curve_api import Curve, Rule, stack
from torch_bridge.schedulers.group_curves import Multipliers, map_curves
from torch_bridge.schedulers.hold_state import States, initial_states
from torch_bridge.schedulers.step_watch import last_silent_step, warn_past_the_end
from torch_bridge.schedulers.unit_clocks import MAX_CONSUMED
from torch_bridge.table import multiplier, tensors
from torch_bridge.training.clock.hold import Hold

INTERVAL = 1024
"""Updates between two moves of the window."""

MAX_WINDOW_VALUES = 2**20
"""A clock of samples or tokens keeps up to this many learning rates on the device: 4 MiB."""

# The host also looks at the clock this many updates after a start, to notice the end of a short curve.
_FIRST_LOOKS = (16, 32, 64, 128, 256, 512)


class Counters(NamedTuple):
    """The position of a training run."""

    applied: int
    """Updates that took place."""
    skipped: int
    """Updates that were skipped."""
    clock: int
    """The step of the curve of the next update."""
    consumed: int
    """Samples or tokens that the applied updates consumed; without a unit the number of these updates."""


class Clock:
    """Counts updates on the device and finds their learning rates there, without synchronizing with it.

        clock = applied, except for updates at which a rule holds it;  with a unit  clock = consumed // unit

    **The window.** The device holds the learning rates of the 2·INTERVAL + 1 steps from `low` on, and an
    update takes those at `position = clock - low`. Every INTERVAL updates the host moves the window to the
    clock value that it had copied, asynchronously, INTERVAL updates before. That value is a lower bound, and
    at most 2·INTERVAL updates old when its window is last used. An update moves the clock by at most one
    step, so no position leaves the window, whatever is skipped or held, and nothing waits for the device.

    With a unit one update may move the clock by any number of steps. Then the window holds all steps of the
    curves and never moves; if they are too many for that, `multiplier` computes the same bits from the
    curves' tables, in some 200 operators.

    All tensors stay the same as long as the clock lives, so that a captured graph can use them.

    Args:
        curves: The curve of each parameter group.
        peaks: The peak learning rate of each group.
        device: Where the counts and the learning rates are.
        rules: Rules that may hold the clock; if there are any, the curves are all the same.
        unit: Samples or tokens that make one step of the curve; None if an update is one.
        initial_updates: Updates already made by another training loop.
    """

    def __init__(
        self,
        curves: Sequence[Curve],
        peaks: Sequence[float],
        device: torch.device,
        rules: Sequence[Rule] = (),
        unit: int | None = None,
        initial_updates: int = 0,
    ) -> None:
        self.curves, self.peaks = list(curves), list(peaks)
        self.rules, self.unit = rules, unit
        # One tensor, so that one operator advances all numbers:
        #
        #     index       0         1         2       3
        #     _counters  [ applied | skipped | clock | position in the window; with a unit: consumed ]
        self._counters = torch.zeros(4, dtype=torch.int64, device=device)
        self.now = self._counters[2]
        """The step of the curve of the next update, a scalar."""
        self._clock = self._counters[2:3]  # torch.index_select takes no scalar
        self._position = self._consumed = self._counters[3:]
        self._if_skipped = torch.tensor([0, 1, 0, 0], device=device)
        self._if_held = torch.tensor([1, 0, 0, 0], device=device)
        self._if_applied = torch.tensor([1, 0, 1, 1] if unit is None else [1, 0, 0, 0], device=device)
        self._counts = torch.tensor([1, 1, 0, 0], device=device)
        self._consumption = torch.tensor([0, 0, 0, 1], device=device)

        self.lrs = torch.zeros(len(self.curves), dtype=torch.float32, device=device)
        """The learning rate of each parameter group in this update: float32, of shape (groups,)."""
        self.group_lrs = self.lrs.unbind()
        """The same memory, as one scalar for each group."""
        self._column = self.lrs.view(-1, 1)  # the shape that torch.index_select writes

        self._interval = INTERVAL
        self._last = max(curve.total_steps for curve in self.curves)
        width = 2 * self._interval + 1 if unit is None else self._last + 1
        self._table = None
        if unit is not None and len(self.curves) * width > MAX_WINDOW_VALUES:
            self._table, width = tensors(stack(self.curves), device), 1
            self._device_peaks = torch.zeros_like(self.lrs)
        self._window = torch.zeros(len(self.curves), width, device=device, dtype=torch.float32)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._host_window = self._host_buffer(self._window)
        self._host_counters = self._host_buffer(self._counters)
        self._rows, self._seen = self._host_window.numpy(), self._host_counters.numpy()

        self._hold = Hold(rules, self.curves[0], device) if rules else None
        self._multipliers = Multipliers(self.curves)
        self._last_silent = last_silent_step(self.curves)
        self._is_copying = False
        self.write_state(
            Counters(initial_updates, 0, initial_updates, initial_updates), peaks, initial_states(rules)
        )

    def _host_buffer(self, like: Tensor) -> Tensor:
        # Page-locked, so that no copy from or to the device has to be waited for. The device is named, since
        # the user may have set another default device.
        return torch.zeros(like.shape, dtype=like.dtype, device="cpu", pin_memory=self._copied is not None)

    def write_state(self, counts: Counters, peaks: Sequence[float], states: States = ()) -> None:
        """Start from these counts, these peaks, and the states of the rules, if there are any."""
        if self._hold is not None:
            self._hold.write_states(states)
        self._wait_for_copy()
        self._seen[:3], self._seen[3] = counts[:3], 0 if self.unit is None else counts.consumed
        self._counters.copy_(self._host_counters)
        self.set_peaks(peaks)

    def set_peaks(self, peaks: Sequence[float]) -> None:
        """Take other peaks from the next update on, in the same tensors."""
        self.peaks = list(peaks)
        self._write_window()
        self._updates, self._next_look, self._looks = 0, 0, _FIRST_LOOKS

    def read_counters(self) -> Counters:
        """Synchronizes with the device."""
        applied, skipped, clock, last = cast("list[int]", self._counters.tolist())
        self._check_end(clock)
        return Counters(applied, skipped, clock, applied if self.unit is None else last)

    def read_hold_states(self) -> States:
        """The states of the rules. Synchronizes with the device."""
        return () if self._hold is None else self._hold.read_states()

    def lrs_at(self, step: int) -> list[float]:
        """The learning rate of each parameter group at a step of the curve, computed on the host."""
        return list(map(operator.mul, self.peaks, self._multipliers[step]))

    def prepare(self) -> None:
        """Called before each update, outside any captured graph."""
        if self._updates == self._next_look:
            self._look()
        self._updates += 1

    def _look(self) -> None:
        """Start a copy, with a move of the window after an interval; or see if the last copy has arrived."""
        if self._updates == self._interval:
            if self.unit is None:
                self._write_window()
            else:
                self._start_copy()
            self._updates, self._looks = 0, ()  # last, so that an interrupted move is made again
        elif self._updates in self._looks:
            self._start_copy()
        if self._is_copying and (self._copied is None or self._copied.query()):
            self._is_copying = False
            self._check_end(int(self._seen[2]))
        later = [look for look in (*self._looks, self._interval) if look > self._updates]
        self._next_look = self._updates + 1 if self._is_copying else min(later)

    def fill_lrs(self) -> None:
        """Write the learning rates of this update into `rates`."""
        if self._table is not None:
            torch.mul(multiplier(self._table, self.now), self._device_peaks, out=self.lrs)
        else:
            position = self._position if self.unit is None else self._clock.clamp(max=self._last)
            torch.index_select(self._window, 1, position, out=self._column)

    def count_update(self, skip: Tensor, loss: Tensor, consumed: Any = None) -> Tensor:
        """Count an update as applied, or as skipped if `skip`, a bool scalar, is True; move the clock.

        Args:
            skip: The decision.
            loss: The metric of the rules that may hold the clock.
            consumed: With a unit, what the update consumed, an int64 scalar.

        Returns:
            A new tensor: updates applied and skipped so far, the step of the curve of this update, and with
            a unit what was consumed so far; int64, of shape (4,).
        """
        change = self._if_applied
        if self._hold is not None:
            change = torch.where(self._hold.decide_hold(self.now, loss, skip), self._if_held, change)
        if self.unit is None:
            change = torch.where(skip, self._if_skipped, change)
            counts = torch.addcmul(self._counters, change, self._counts)  # the clock is still this update's
            self._counters.add_(change)
            return counts
        change = torch.where(skip, self._if_skipped, torch.addcmul(change, self._consumption, consumed))
        self._counters.add_(change)
        self._consumed.clamp_(max=MAX_CONSUMED)
        counts = self._counters.clone()
        torch.div(self._consumed, self.unit, rounding_mode="floor", out=self._clock)
        return counts

    def _write_window(self) -> None:
        """Write the learning rates from where the last copy saw the clock, and start the next copy."""
        self._wait_for_copy()
        if self._table is not None:
            for own, peak in zip(self._device_peaks.unbind(), self.peaks, strict=True):
                own.fill_(peak)  # unlike a copy from the host, nothing waits
        else:
            low = int(self._seen[2]) if self.unit is None else 0
            steps = np.arange(low, low + self._window.shape[1])
            multipliers = map_curves(self.curves, lambda curve: curve(steps))
            for row, values, peak in zip(self._rows, multipliers, self.peaks, strict=True):
                np.multiply(values, np.float32(peak), out=row)
            self._window.copy_(self._host_window, non_blocking=True)
            if self.unit is None:
                torch.sub(self._clock, low, out=self._position)
        self._start_copy()

    def _wait_for_copy(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # started INTERVAL/2 updates ago or more: it has long arrived

    def _start_copy(self) -> None:
        """Start a copy of the numbers to the host, which `prepare` looks at once it has arrived."""
        self._host_counters.copy_(self._counters, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._counters.device))
        self._is_copying = True

    def _check_end(self, clock: int) -> None:
        """Warn once when training continues past the end of the curves at learning rate 0."""
        if clock > self._last_silent:
            self._last_silent = math.inf
            warn_past_the_end(self.curves, clock, self.unit)
