"""The clock on the device: the updates so far, the current step of the curve, and its learning rates."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from torch_bridge.curve_api import (
    MAX_CONSUMED,
    CheckedClock,
    Curve,
    Rule,
    Segments,
    check_consumed,
    checks,
    decide,
    stack,
    warn,
)
from torch_bridge.saved_states import States, initial_states
from torch_bridge.schedulers.curve_end import end_message
from torch_bridge.schedulers.group_curves import ValuesAhead
from torch_bridge.table import multiplier, tensors
from torch_bridge.training.clock.counts import write_count

MAX_TABLE_VALUES = 2**24
"""The most multipliers and learning rates that a clock keeps on the device: 64 MiB."""

# The host copies the counters after 16, 32, 64, ..., 1024 updates, and then every 1024 updates: it
# warns soon of the end of a short curve, and a long run pays next to nothing.
_FIRST_COPY, _INTERVAL = 16, 1024

_STUCK_UPDATES = 20
"""After this many updates at learning rate 0, a unit seems too large."""


class Counters(NamedTuple):
    """The position of a training run."""

    applied: int
    """Updates applied."""
    skipped: int
    """Updates skipped."""
    curve_step: int
    """The step of the curve for the next update."""
    consumed: int
    """Samples or tokens that the applied updates consumed; without a unit, the number of these
    updates."""


def checked_updates(name: str, value: Any) -> int:
    """Return a number of updates as a Python int, after a check that the device can count on from it."""
    updates = checks.at_least(name, value, 0)
    if updates > MAX_CONSUMED:
        raise ValueError(f"{name} = {updates} must be at most 2**62")
    return updates


class Clock:
    """Counts updates on the device and looks up their learning rates there, without synchronizing with it.

        curve_step moves by one with each applied update that no rule holds; with a unit consumed //
        unit lr = float32(float32(peak) · curve(curve_step)) = table[min(curve_step, last step),
        group]

    The table holds the learning rates of all steps, next to the multipliers of each distinct curve,
    from which `set_peaks` fills it. If they would be more than `MAX_TABLE_VALUES`, only the
    multipliers are kept; and if those are too many, `multiplier` computes the same bits in every
    update, in some 200 operators.

    Every tensor is allocated once and then written in place, because a captured graph refers to its
    memory.

    Args:
        curves: The curve of each parameter group.
        peaks: The peak learning rate of each group.
        device: The device of the counters and the learning rates.
        checked: The argument `clock` of the step.
        initial_updates: Updates already made by another training loop.
        is_captured: True if a graph captures an update, and replays it at any step of the curve.
    """

    def __init__(
        self,
        curves: Sequence[Curve],
        peaks: Sequence[float],
        device: torch.device,
        checked: CheckedClock,
        initial_updates: int = 0,
        is_captured: bool = False,
    ) -> None:
        self.curves, self.peaks = list(curves), list(peaks)
        self.checked, self._is_captured = checked, is_captured
        unit = checked.unit
        # One tensor, so that a single add_ advances all counters, whatever the device decides:
        #
        #     index           0         1          2           3
        #     _counters   [ applied | skipped | curve_step | consumed; without a unit: applied ]
        #
        # For example, without a unit:
        #
        #                     [10, 2, 10, 10]  and then
        #     applied      +  [ 1, 0,  1,  1]  =  [11, 2, 11, 11]
        #     held         +  [ 1, 0,  0,  1]  =  [11, 2, 10, 11]
        #     skipped      +  [ 0, 1,  0,  0]  =  [10, 3, 10, 10]
        #
        # The attributes below are views of this memory in the shapes that operators need, made once
        # because slicing is an operator too. With a unit the step follows from consumed, so an
        # update adds only to applied and consumed.
        self._counters = torch.zeros(4, dtype=torch.int64, device=device)
        self.curve_step = self._counters[2]
        """The step of the curve for the next update, a scalar."""
        self._curve_step_row = self._counters[2:3]
        self._consumed = self._counters[3:]
        self._if_skipped = torch.tensor([0, 1, 0, 0], device=device)
        self._if_held = torch.tensor([1, 0, 0, 1 if unit is None else 0], device=device)
        self._if_applied = torch.tensor(
            [1, 0, 1, 1] if unit is None else [1, 0, 0, 0], device=device
        )
        self._all_but_step = torch.tensor([1, 1, 0, 1], device=device)
        self._consumed_entry = torch.tensor([0, 0, 0, 1], device=device)
        self.count: Tensor | None = None
        """With a unit, what this update consumes, an int64 scalar; `set_count` writes it."""
        if unit is not None:
            self.count = torch.zeros((), dtype=torch.int64, device=device)

        self.lrs = torch.zeros(len(self.curves), dtype=torch.float32, device=device)
        """The learning rates of this update, one per parameter group: float32 of shape
        (groups,)."""
        self.group_lrs = self.lrs.unbind()
        """The same memory, as one scalar per group: the tensors that fused optimizers read as
        `lr`."""
        self._lrs_row = self.lrs.unsqueeze(0)
        self._device_peaks = torch.zeros_like(self.lrs)

        self._last_step = max(curve.total_steps for curve in self.curves)
        distinct = list(dict.fromkeys(self.curves))
        self._columns = torch.tensor(
            [distinct.index(curve) for curve in self.curves], device=device
        )
        shape = self._last_step + 1, len(self.curves)
        self._segments: Segments | None = None
        self._multipliers: Tensor | None = None
        self._table: Tensor | None = None
        if shape[0] * len(distinct) > MAX_TABLE_VALUES:
            self._segments = tensors(stack(self.curves), device)
        else:
            steps = np.arange(shape[0])
            multipliers = np.stack([curve(steps) for curve in distinct], axis=1)
            self._multipliers = torch.from_numpy(multipliers).to(device)
            if self._multipliers.numel() + shape[0] * shape[1] <= MAX_TABLE_VALUES:
                self._table = torch.empty(shape, dtype=torch.float32, device=device)

        # Page-locked, since CUDA copies to pageable memory synchronously. `device` is given because
        # the user may have set another default device.
        self._copy_done = torch.cuda.Event() if device.type == "cuda" else None
        self._host_counters = torch.zeros(
            4, dtype=torch.int64, device="cpu", pin_memory=self._copy_done is not None
        )
        self._hold = Hold(checked.rules, self.curves[0], device) if checked.rules else None
        self._has_warned_of_end = self._has_warned_of_unit = False
        self.write_state(
            _initial_counters(checked, initial_updates), peaks, initial_states(checked.rules)
        )

    def resume(self, counters: Counters, peaks: Sequence[float], states: States) -> None:
        """Continue a saved run, which has warned if it was past the end of its curves."""
        self._has_warned_of_end = bool(self._end_message(counters))
        self.write_state(counters, peaks, states)

    def write_state(self, counters: Counters, peaks: Sequence[float], states: States = ()) -> None:
        """Continue from these counters, peaks and states of the rules."""
        self._start = counters
        if self._hold is not None:
            self._hold.write_states(states)
        self._counters.copy_(torch.tensor(counters, device="cpu"))
        self.set_peaks(peaks)
        self._updates, self._next_look = 0, _FIRST_COPY
        # An update moves by at most one step, so at first it is certainly within the table. With a
        # unit it may leap.
        can_leap = self._is_captured or self.checked.unit is not None
        self._updates_within_table = 0 if can_leap else self._last_step - counters.curve_step + 1
        self._next_copy: int = _FIRST_COPY
        self._is_copying = False  # a copy that has not arrived has the old counters

    def set_peaks(self, peaks: Sequence[float]) -> None:
        """Use different peaks from the next update on."""
        self.peaks = list(peaks)
        self._host_lrs = ValuesAhead(self.curves, peaks)
        for device_peak, peak in zip(self._device_peaks.unbind(), self.peaks, strict=True):
            device_peak.fill_(peak)  # unlike a copy from pageable memory, fill_ waits for nothing
        if self._multipliers is not None and self._table is not None:
            torch.mul(
                self._multipliers.index_select(1, self._columns),
                self._device_peaks,
                out=self._table,
            )

    def read_counters(self) -> Counters:
        """Read all counters. Synchronizes with the device."""
        counters = Counters(*cast("list[int]", self._counters.tolist()))
        self._check_lrs(counters)
        return counters

    def read_hold_states(self) -> States:
        """Read the states of the rules. Synchronizes with the device."""
        return () if self._hold is None else self._hold.read_states()

    def lrs_at(self, step: int) -> list[float]:
        """Return the learning rate of each parameter group at a step of the curve, computed on the host."""
        return self._host_lrs.at(step)

    def set_count(self, count: Any, rank: int, size: int) -> None:
        """Write what the next update consumes on this rank. A captured graph must not contain this call.

        Args:
            count: The argument `count` of the step.
            rank: This rank, which takes its part of the clock's own `count`.
            size: The number of ranks.

        Raises:
            TypeError, ValueError: The count is wrong, or missing, or the clock takes none.
        """
        if self.count is None:
            if count is not None:
                raise TypeError(
                    f"count = {checks.short_repr(count)} needs a DataClock: leave it out, or build "
                    "the step with clock=DataClock(unit)"
                )
            return
        if count is None:
            total = self.checked.count
            if total is None:
                unit = self.checked.unit
                raise TypeError(
                    f"with DataClock({unit}), the step needs what this update consumes: write "
                    f"step(batch, count=n); or build it with DataClock({unit}, count=n), if all "
                    "ranks always consume n"
                )
            count = total // size + (rank < total % size)
        write_count(self.count, count)

    def prepare(self) -> None:
        """Prepare the next update; warn about earlier ones. A captured graph must not contain this call."""
        if self._updates == self._next_look:
            self._look()
        self._updates += 1

    def _look(self) -> None:
        """Start an asynchronous copy of the counters if one is due, and check those that have arrived."""
        if self._updates == self._next_copy:
            self._host_counters.copy_(self._counters, non_blocking=True)
            if self._copy_done is not None:
                self._copy_done.record(torch.cuda.current_stream(self._counters.device))
            self._is_copying = True
            self._next_copy += min(self._next_copy, _INTERVAL)
        if self._is_copying and (self._copy_done is None or self._copy_done.query()):
            self._is_copying = False
            self._check_lrs(Counters(*cast("list[int]", self._host_counters.tolist())))
        self._next_look = self._updates + 1 if self._is_copying else self._next_copy

    def fill_lrs(self) -> None:
        """Write the learning rates of this update into `lrs`."""
        if self._segments is not None:
            torch.mul(multiplier(self._segments, self.curve_step), self._device_peaks, out=self.lrs)
            return
        is_within = self._updates <= self._updates_within_table
        step = self._curve_step_row
        if not is_within:
            step = step.clamp(max=self._last_step)
        if self._table is not None:
            torch.index_select(self._table, 0, step, out=self._lrs_row)
        elif self._multipliers is not None:
            multipliers = (
                self._multipliers.index_select(0, step).view(-1).index_select(0, self._columns)
            )
            torch.mul(multipliers, self._device_peaks, out=self.lrs)

    def count_update(self, skip: Tensor, loss: Tensor, consumed: Any = None) -> Tensor:
        """Count an update as applied or skipped, and move along the curve.

        Args:
            skip: The decision to skip, a bool scalar.
            loss: The metric for the rules that may hold the curve.
            consumed: With a unit, the samples or tokens of the update on all ranks, an int64
                scalar.

        Returns:
            A new int64 tensor of shape (4,): updates applied and skipped so far, this one included;
                the step
            of the curve that this update used; the samples or tokens consumed so far, or without a
            unit the updates applied.
        """
        change = self._if_applied
        if self._hold is not None:
            change = torch.where(
                self._hold.decide_hold(self.curve_step, loss, skip), self._if_held, change
            )
        if self.checked.unit is None:
            change = torch.where(skip, self._if_skipped, change)
            # The counters after this update, but the step before it, whose learning rates it used.
            counters = torch.addcmul(self._counters, change, self._all_but_step)
            self._counters.add_(change)
            return counters
        change = torch.where(
            skip, self._if_skipped, torch.addcmul(change, self._consumed_entry, consumed)
        )
        self._counters.add_(change)
        self._consumed.clamp_(max=MAX_CONSUMED)
        counters = self._counters.clone()  # before the step moves, for the same reason
        torch.div(
            self._consumed, self.checked.unit, rounding_mode="floor", out=self._curve_step_row
        )
        return counters

    def _check_lrs(self, counters: Counters) -> None:
        """Warn once of training past the end of the curves, or at learning rate 0 while the unit fills."""
        curve_step = counters.curve_step
        if (
            not self._has_warned_of_end
            and any(self.peaks)
            and (message := self._end_message(counters))
        ):
            self._has_warned_of_end = True
            warn(message)
        updates = counters.applied - self._start.applied
        if (
            self.checked.unit is not None
            and not self._has_warned_of_unit
            and curve_step == self._start.curve_step < self._last_step
            and updates >= _STUCK_UPDATES
            and any(self.peaks)
            and not any(self.lrs_at(curve_step))
        ):
            self._has_warned_of_unit = True
            warn(
                f"{updates} updates consumed {counters.consumed - self._start.consumed} in all, "
                f"which with unit = {self.checked.unit} leaves the curve at step {curve_step}, "
                "where every learning rate is 0, so no weight changes: choose a unit that is at "
                "most what an update consumes, and check the counts"
            )

    def _end_message(self, counters: Counters) -> str:
        return end_message(self.curves, self.checked.unit, counters.curve_step, counters.applied)


def _initial_counters(checked: CheckedClock, updates: int) -> Counters:
    """Return the counters of a run that begins after updates of another training loop.

    Raises:
        ValueError: It is not known what these updates consumed.
    """
    if checked.unit is None:
        return Counters(updates, 0, updates, updates)
    if updates and checked.count is None:
        raise ValueError(
            f"initial_updates = {updates} with DataClock({checked.unit}): the number of updates "
            f"does not say how much they consumed. Write DataClock({checked.unit}, count=n) if "
            "each consumed n; or leave out initial_updates, and call load_state_dict"
        )
    consumed = check_consumed(updates * (checked.count or 0))
    return Counters(updates, 0, consumed // checked.unit, consumed)


class Hold:
    """The states of the rules, and their decision to hold the curve, on the device.

    Call `write_states` before the first decision.

    Args:
        rules: At least one rule.
        curve: The curve that they hold.
        device: The device of the states.
    """

    def __init__(self, rules: Sequence[Rule], curve: Curve, device: torch.device) -> None:
        self._rules = rules
        self._flat_starts = torch.tensor(curve.flat_starts, dtype=torch.int64, device=device)
        self._memory: list[tuple[Tensor, Tensor]] = []
        """The integers and the floats of each rule's state, a tensor each: an update writes it at
        once."""
        self._states: list[Any] = []
        """The same memory, as states of one scalar per field."""
        for state in initial_states(rules):
            count = sum(value.dtype == np.int32 for value in state)
            integers = torch.zeros(count, dtype=torch.int32, device=device)
            floats = torch.zeros(len(state) - count, dtype=torch.float32, device=device)
            self._memory.append((integers, floats))
            self._states.append(type(state)(*integers.unbind(), *floats.unbind()))

    def decide_hold(self, curve_step: Tensor, metric: Tensor, skip: Tensor) -> Tensor:
        """Record the metric of an update, and decide whether to hold the curve at this step: a bool scalar.

        A skipped update changes no state, and its result must be ignored.
        """
        flat = (self._flat_starts == curve_step).any()
        states, held = decide(torch, self._rules, self._states, flat, metric.float())
        for (integers, floats), state in zip(self._memory, states, strict=True):
            count = len(integers)
            for memory, values in ((integers, state[:count]), (floats, state[count:])):
                memory.copy_(torch.where(skip, memory, torch.stack(values)))
        return held

    def read_states(self) -> States:
        """Read the states. Synchronizes with the device."""
        return tuple(
            type(state)(*(value.cpu().numpy()[()] for value in state)) for state in self._states
        )

    def write_states(self, states: States) -> None:
        for device_state, state in zip(self._states, states, strict=True):
            for scalar, value in zip(device_state, state, strict=True):
                scalar.fill_(value.item())
