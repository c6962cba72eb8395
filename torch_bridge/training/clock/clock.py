"""The clock on the device: the updates so far, the current step of the curve, and its learning rates."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from torch_bridge.curve_api import Curve, Rule, checks, stack, warn
from torch_bridge.schedulers.curve_end import CurveEnd
from torch_bridge.schedulers.group_curves import Multipliers, map_curves
from torch_bridge.schedulers.hold_state import States, initial_states
from torch_bridge.schedulers.unit_clocks import MAX_CONSUMED
from torch_bridge.schedulers.update_counter import FORGOTTEN_STEPS
from torch_bridge.table import multiplier, tensors
from torch_bridge.training.clock.hold import Hold

INTERVAL = 1024
"""Updates between two moves of the window."""

MAX_WINDOW_VALUES = 2**20
"""The most learning rates that a clock of samples or tokens keeps on the device: 4 MiB."""

# After a start the host also copies the clock at these numbers of updates. Otherwise nobody would notice the
# end of a short curve during the first INTERVAL updates.
_EARLY_COPIES = (16, 32, 64, 128, 256, 512)


class Counters(NamedTuple):
    """The position of a training run."""

    applied: int
    """Updates applied."""
    skipped: int
    """Updates skipped."""
    clock: int
    """The step of the curve for the next update."""
    consumed: int
    """Samples or tokens that the applied updates consumed; without a unit, the number of these updates."""


def checked_updates(name: str, value: Any) -> int:
    """Return a number of updates as a Python int, after a check that the device can count on from it."""
    updates = checks.at_least(name, value, 0)
    if updates > MAX_CONSUMED:
        raise ValueError(f"{name} = {updates} must be at most 2**62")
    return updates


class Clock:
    """Counts updates on the device and looks up their learning rates there, without synchronizing with it.

        clock = applied, except for updates at which a rule holds it;  with a unit  clock = consumed // unit

    **The window.** The device holds the learning rates of the 2·INTERVAL + 1 steps from `low` on, and an
    update reads those at `position = clock - low`. Every INTERVAL updates the host moves the window to the
    clock value that it had copied, asynchronously, INTERVAL updates before. That value is a lower bound, and
    at most 2·INTERVAL updates old when its window is last used. An update moves the clock by at most one
    step, so no position leaves the window, whatever is skipped or held, and nothing waits for the device.

    With INTERVAL = 4 and all updates applied, the move at clock 8 sets `low` to 4, the value copied at the
    move before. The window holds steps 4 to 12, and the next four updates read positions 4 to 7. If all
    updates since that copy were skipped, the clock is still 4, and they read position 0.

    With a unit one update may move the clock by any number of steps. Then the window holds all steps of the
    curves and never moves. If there are too many steps for that, `multiplier` computes the same bits from the
    curves' tables, in some 200 operators.

    Every tensor is allocated once and then written in place, because a captured graph refers to its memory.

    Args:
        curves: The curve of each parameter group.
        peaks: The peak learning rate of each group.
        device: The device of the counters and the learning rates.
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
        # One tensor, so that a single add_ advances all counters, whatever the device decides:
        #
        #     index           0         1         2       3
        #     _counters   [ applied | skipped | clock | position in the window; with a unit: consumed ]
        #
        # For example, with low = 7 (without a unit):
        #
        #                     [10, 2, 10, 3]  and then
        #     applied      +  [ 1, 0,  1, 1]  =  [11, 2, 11, 4]
        #     held         +  [ 1, 0,  0, 0]  =  [11, 2, 10, 3]
        #     skipped      +  [ 0, 1,  0, 0]  =  [10, 3, 10, 3]
        #
        # The attributes below are views of this memory in the shapes that operators need, made once because
        # slicing is an operator too. With a unit the clock follows from consumed, so an update adds only to
        # applied and consumed.
        self._counters = torch.zeros(4, dtype=torch.int64, device=device)
        self.now = self._counters[2]
        """The step of the curve for the next update, a scalar."""
        self._clock = self._counters[2:3]  # the 1-D index of torch.index_select
        self._position = self._consumed = self._counters[3:]
        self._if_skipped = torch.tensor([0, 1, 0, 0], device=device)
        self._if_held = torch.tensor([1, 0, 0, 0], device=device)
        self._if_applied = torch.tensor([1, 0, 1, 1] if unit is None else [1, 0, 0, 0], device=device)
        self._applied_and_skipped = torch.tensor([1, 1, 0, 0], device=device)
        self._consumed_entry = torch.tensor([0, 0, 0, 1], device=device)

        self.lrs = torch.zeros(len(self.curves), dtype=torch.float32, device=device)
        """The learning rates of this update, one per parameter group: float32 of shape (groups,)."""
        self.group_lrs = self.lrs.unbind()
        """The same memory, as one scalar per group: the tensors that fused optimizers read as `lr`."""
        self._lrs_column = self.lrs.view(-1, 1)  # the shape that index_select writes

        self._interval = INTERVAL
        self._last_step = max(curve.total_steps for curve in self.curves)
        width = 2 * self._interval + 1 if unit is None else self._last_step + 1
        self._table = None
        if unit is not None and len(self.curves) * width > MAX_WINDOW_VALUES:
            self._table, width = tensors(stack(self.curves), device), 1
            self._device_peaks = torch.zeros_like(self.lrs)
        self._window = torch.zeros(len(self.curves), width, device=device, dtype=torch.float32)
        self._copy_done = torch.cuda.Event() if device.type == "cuda" else None
        self._host_window = self._host_buffer(self._window)
        self._host_counters = self._host_buffer(self._counters)
        # The same memory for NumPy, which computes the curve.
        self._window_array, self._counters_array = self._host_window.numpy(), self._host_counters.numpy()

        self._hold = Hold(rules, self.curves[0], device) if rules else None
        self._multipliers = Multipliers(self.curves)
        self._end = CurveEnd(self.curves, unit)
        self._is_copying = self._has_warned_of_unit = False
        self.write_state(
            Counters(initial_updates, 0, initial_updates, initial_updates), peaks, initial_states(rules)
        )

    def _host_buffer(self, like: Tensor) -> Tensor:
        # Page-locked: CUDA copies pageable memory synchronously. `device` is given because the user may have
        # set another default device.
        return torch.zeros(like.shape, dtype=like.dtype, device="cpu", pin_memory=self._copy_done is not None)

    def write_state(self, counters: Counters, peaks: Sequence[float], states: States = ()) -> None:
        """Continue from these counters, peaks and states of the rules."""
        self._start = counters
        self._end.resume(counters.clock, counters.applied)  # a run that was saved past it has warned
        if self._hold is not None:
            self._hold.write_states(states)
        self._wait_for_copy()
        self._counters_array[:3], self._counters_array[3] = (
            counters[:3],
            0 if self.unit is None else counters.consumed,
        )
        self._counters.copy_(self._host_counters)
        self.set_peaks(peaks)

    def set_peaks(self, peaks: Sequence[float]) -> None:
        """Use other peaks from the next update on."""
        self.peaks = list(peaks)
        self._write_window()
        self._updates, self._next_refresh, self._early_copies = 0, 0, _EARLY_COPIES

    def read_counters(self) -> Counters:
        """Read all counters. Synchronizes with the device."""
        applied, skipped, clock, last = cast("list[int]", self._counters.tolist())
        counters = Counters(applied, skipped, clock, applied if self.unit is None else last)
        self._check_lrs(counters)
        return counters

    def read_hold_states(self) -> States:
        """Read the states of the rules. Synchronizes with the device."""
        return () if self._hold is None else self._hold.read_states()

    def lrs_at(self, step: int) -> list[float]:
        """Return the learning rate of each parameter group at a step of the curve, computed on the host."""
        return list(map(operator.mul, self.peaks, self._multipliers[step]))

    def prepare(self) -> None:
        """Prepare the next update. A captured graph must not contain this call."""
        if self._updates == self._next_refresh:
            self._refresh()
        self._updates += 1

    def _refresh(self) -> None:
        """Move the window when an interval is over, start a copy when one is due, or check if one arrived."""
        if self._updates == self._interval:
            if self.unit is None:
                self._write_window()
            else:
                self._start_copy()
            self._updates, self._early_copies = 0, ()  # last, so that an interrupted move is repeated
        elif self._updates in self._early_copies:
            self._start_copy()
        if self._is_copying and (self._copy_done is None or self._copy_done.query()):
            self._is_copying = False
            self._check_lrs(Counters(*cast("list[int]", self._counters_array.tolist())))
        due = [updates for updates in (*self._early_copies, self._interval) if updates > self._updates]
        self._next_refresh = self._updates + 1 if self._is_copying else min(due)

    def fill_lrs(self) -> None:
        """Write the learning rates of this update into `lrs`."""
        if self._table is not None:
            torch.mul(multiplier(self._table, self.now), self._device_peaks, out=self.lrs)
        else:
            position = self._position if self.unit is None else self._clock.clamp(max=self._last_step)
            torch.index_select(self._window, 1, position, out=self._lrs_column)

    def count_update(self, skip: Tensor, loss: Tensor, consumed: Any = None) -> Tensor:
        """Count an update as applied or skipped, and move the clock.

        Args:
            skip: The decision to skip, a bool scalar.
            loss: The metric for the rules that may hold the clock.
            consumed: With a unit, the samples or tokens of the update, an int64 scalar.

        Returns:
            A new int64 tensor of shape (4,): updates applied and skipped so far, this one included; the step
            of the curve that this update used; with a unit, the samples or tokens consumed so far.
        """
        change = self._if_applied
        if self._hold is not None:
            change = torch.where(self._hold.decide_hold(self.now, loss, skip), self._if_held, change)
        if self.unit is None:
            change = torch.where(skip, self._if_skipped, change)
            # Applied and skipped after this update, but the clock before it: the step whose learning rates it
            # used.
            counters = torch.addcmul(self._counters, change, self._applied_and_skipped)
            self._counters.add_(change)
            return counters
        change = torch.where(skip, self._if_skipped, torch.addcmul(change, self._consumed_entry, consumed))
        self._counters.add_(change)
        self._consumed.clamp_(max=MAX_CONSUMED)
        counters = self._counters.clone()  # before the clock moves, for the same reason
        torch.div(self._consumed, self.unit, rounding_mode="floor", out=self._clock)
        return counters

    def _write_window(self) -> None:
        """Write the learning rates from the last copied clock value on, and start the next copy."""
        self._wait_for_copy()
        if self._table is not None:
            for device_peak, peak in zip(self._device_peaks.unbind(), self.peaks, strict=True):
                device_peak.fill_(peak)  # unlike a copy from pageable memory, fill_ waits for nothing
        else:
            low = int(self._counters_array[2]) if self.unit is None else 0
            steps = np.arange(low, low + self._window.shape[1])
            multipliers = map_curves(self.curves, lambda curve: curve(steps))
            for row, values, peak in zip(self._window_array, multipliers, self.peaks, strict=True):
                np.multiply(values, np.float32(peak), out=row)
            self._window.copy_(self._host_window, non_blocking=True)
            if self.unit is None:
                torch.sub(self._clock, low, out=self._position)
        self._start_copy()

    def _wait_for_copy(self) -> None:
        if self._copy_done is not None:
            # The copy started at least INTERVAL/2 updates ago, so it has normally long arrived. Before that
            # the host must not write to the buffers, nor read a clock from them.
            self._copy_done.synchronize()

    def _start_copy(self) -> None:
        """Start a copy of the counters to the host; `prepare` notices when it has arrived."""
        self._host_counters.copy_(self._counters, non_blocking=True)
        if self._copy_done is not None:
            self._copy_done.record(torch.cuda.current_stream(self._counters.device))
        self._is_copying = True

    def _check_lrs(self, counters: Counters) -> None:
        """Warn once of training past the end of the curves, or at learning rate 0 while the clock stands."""
        clock = counters.clock
        if self._end.is_far(clock, counters.applied) and any(self.peaks):
            self._end.warn(clock)
        updates = counters.applied - self._start.applied
        if (
            self.unit is not None
            and not self._has_warned_of_unit
            and clock == self._start.clock < self._last_step
            and updates >= FORGOTTEN_STEPS
            and any(self.peaks)
            and not any(self.lrs_at(clock))
        ):
            self._has_warned_of_unit = True
            warn(
                f"{updates} updates consumed {counters.consumed - self._start.consumed} in all, which with "
                f"unit = {self.unit} leaves the curve at step {clock}, where every learning rate is 0, so no "
                "weight changes: choose a unit that is at most what an update consumes, and check the number "
                "that count(batch) returns"
            )
