"""The clock on the device: it counts updates, samples or tokens, and has the step of the curve."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from plateau_jax.arguments import checks
from plateau_jax.clocks.clock import MAX_CONSUMED, CheckedClock
from plateau_jax.clocks.position import Position, position_after
from plateau_jax.curves.curve import Curve
from torch_bridge.training.device_clocks.hold import Hold

MAX_TABLE_VALUES = 2**24
"""The most learning rates that are kept on the device: 64 MiB."""

MAX_UPDATE_COUNT = 2**53
"""The most samples or tokens of an update over all ranks, which add them up in float64."""


class Counters(NamedTuple):
    """The counters on the device."""

    applied: int
    """Updates applied."""
    skipped: int
    """Updates skipped."""
    curve_step: int
    """The step of the curve for the next update."""
    consumed: int
    """Samples or tokens that the applied updates consumed; without a unit, the number of these
    updates."""


class DeviceClock:
    """Counts updates on the device, and looks up their learning rates, without synchronizing.

        without a unit   curve_step moves by one with each applied update that no rule holds
        with a unit      curve_step = consumed // unit

    Every tensor is allocated once and then written in place, because a captured graph refers to its
    memory.

    Args:
        curves: The curve of each parameter group.
        peaks: The peak learning rate of each group.
        device: The device of the counters and the learning rates.
        checked: The argument `clock` of the step.
        initial_updates: Updates already made by another training loop.
        is_compiled: True to compile the decision of the rules.
    """

    # One tensor has all counters, so that a single add_ advances them, whatever the device decides:
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
    # With a unit, 300 samples and no rules (the step of the curve is computed afterwards):
    #
    #     applied      +  [ 1, 0,  0, 300]  =  [11, 2, 10, 310]

    def __init__(
        self,
        curves: Sequence[Curve],
        peaks: Sequence[float],
        device: torch.device,
        checked: CheckedClock,
        *,
        initial_updates: int = 0,
        is_compiled: bool = False,
    ) -> None:
        self.curves = list(curves)
        self.settings = checked
        self._unit = checked.unit

        # Views of the counters in the shapes that operators need, made once because slicing is an
        # operator too.
        self._counters = torch.zeros(4, dtype=torch.int64, device=device)
        self.curve_step = self._counters[2]
        """The step of the curve for the next update, a scalar."""
        self._curve_step_row = self._counters[2:3]
        self._consumed = self._counters[3:]
        self._if_skipped = torch.tensor([0, 1, 0, 0], device=device)
        self._if_held = torch.tensor([1, 0, 0, 1], device=device)
        self._if_applied = torch.tensor([1, 0, 1, 1], device=device)
        self._all_but_step = torch.tensor([1, 1, 0, 1], device=device)
        self.count: Tensor | None = None
        """With a unit, what this update consumes on this rank, an int64 scalar. `set_count` writes
        it, and `LossNormalizer.normalize` replaces it by the sum over ranks."""
        if self._unit is not None:
            self._if_applied = torch.tensor([1, 0, 0, 0], device=device)
            self.count = self._if_applied[3]
        self._hold: Hold | None = None
        if checked.rules:
            self._hold = Hold(checked, device, is_compiled=is_compiled)

        self.lrs = torch.zeros(len(self.curves), dtype=torch.float32, device=device)
        """The learning rates of this update: float32 of shape (groups,)."""
        self.group_lrs = self.lrs.unbind()
        """The same memory, as one scalar per group: the tensors that fused optimizers read as
        `lr`."""
        self._lrs_row = self.lrs.unsqueeze(0)
        self._multipliers = _multipliers(self.curves, self._unit)
        """On the host, for each step and group: the table divided by the peaks."""
        self._table = torch.empty(self._multipliers.shape, dtype=torch.float32, device=device)
        # From the last step of the table on, all curves are constant.
        self._last_step = torch.tensor([len(self._multipliers) - 1], device=device)
        self._step_in_table = torch.zeros_like(self._last_step)

        position = position_after(checked, initial_updates, f"initial_updates = {initial_updates}")
        self.write_state(position, peaks)

    # The state.

    def write_state(self, position: Position, peaks: Sequence[float], skipped: int = 0) -> None:
        """Continue from this position with these peaks."""
        consumed = position.consumed(self.settings)
        counters = Counters(position.updates, skipped, position.step, consumed)
        self.start = counters
        """The counters from which the clock continued last."""
        if self._hold is not None:
            self._hold.write_states(position.rule_states)
        self._counters.copy_(torch.tensor(counters, device="cpu"))
        self.set_peaks(peaks)
        # The groups of fused optimizers show these.
        self.fill_lrs()

    def set_peaks(self, peaks: Sequence[float]) -> None:
        """Use different peaks from the next update on."""
        self.peaks = list(peaks)
        self._table.copy_(torch.from_numpy(self._lrs_on_host(slice(None))))

    def read_counters(self) -> Counters:
        """Read all counters. Synchronizes with the device."""
        return Counters(*cast("list[int]", self._counters.tolist()))

    def position_of(self, counters: Counters) -> Position:
        """Return the position at these counters. With rules, synchronizes with the device."""
        rule_states = () if self._hold is None else self._hold.read_states()
        rest = 0
        if self._unit is not None:
            rest = counters.consumed % self._unit
        return Position(counters.applied, counters.curve_step, rest, rule_states)

    def lrs_at(self, step: int) -> list[float]:
        """Return the learning rate of each group at a step of the curve, computed on the host."""
        return self._lrs_on_host(min(step, len(self._multipliers) - 1)).tolist()

    def _lrs_on_host(self, steps: Any) -> Any:
        return self._multipliers[steps] * np.array(self.peaks, np.float32)

    # An update, in the order of its calls. A captured graph must not contain the first one.

    def set_count(self, count: Any, rank: int, size: int) -> None:
        """Write what the next update consumes on this rank.

        Args:
            count: The argument `count` of the step.
            rank: This rank, which decides its part of the clock's `count`.
            size: The number of ranks.

        Raises:
            TypeError, ValueError: The count is wrong, or missing, or the clock takes none.
        """
        if self.count is None:
            if count is not None:
                raise TypeError(
                    f"count = {checks.short_repr(count)} needs a DataClock: leave it out, or build "
                    "the TrainStep with clock=DataClock(unit)"
                )
            return
        if count is None:
            count = self._default_count(rank, size)
        most = MAX_UPDATE_COUNT // size
        count = _check_count(count, most, self.count.device)
        if isinstance(count, Tensor):
            self.count.copy_(count).clamp_(0, most)  # it is not read, so it is not rejected
        else:
            self.count.fill_(count)

    def _default_count(self, rank: int, size: int) -> int:
        """Return this rank's part of the clock's `count`: of 11, four ranks take 3, 3, 3, 2."""
        total = self.settings.count
        if total is None:
            raise TypeError(
                f"with DataClock({self._unit}), a TrainStep needs what this update consumes: write "
                "train_step(batch, count=n); or, if all ranks always consume n, build it with "
                f"DataClock({self._unit}, count=n)"
            )
        part, rest = divmod(total, size)
        has_one_more = rank < rest
        return part + has_one_more

    def fill_lrs(self) -> None:
        """Write the learning rates of this update into `lrs`."""
        torch.minimum(self._curve_step_row, self._last_step, out=self._step_in_table)
        torch.index_select(self._table, 0, self._step_in_table, out=self._lrs_row)

    def count_update(self, skip: Tensor, loss: Tensor) -> Tensor:
        """Count an update as applied or skipped, and move along the curve.

        Args:
            skip: The decision to skip, a bool scalar.
            loss: The metric for the rules that may hold the curve.

        Returns:
            A new int64 tensor of shape (4,): updates applied and skipped so far, this one included;
            the step of the curve that this update used; the samples or tokens consumed so far, or
            without a unit the updates applied.
        """
        if self._unit is not None:
            return self._count_consumed(skip, self._unit)
        change = self._if_applied
        if self._hold is not None:
            is_held = self._hold.decide_hold(self.curve_step, loss, skip)
            change = torch.where(is_held, self._if_held, change)
        change = torch.where(skip, self._if_skipped, change)
        # The counters after this update, but the step before it, whose learning rates it used.
        counters = torch.addcmul(self._counters, change, self._all_but_step)
        self._counters.add_(change)
        return counters

    def _count_consumed(self, skip: Tensor, unit: int) -> Tensor:
        self._counters.add_(torch.where(skip, self._if_skipped, self._if_applied))
        self._consumed.clamp_(max=MAX_CONSUMED)
        counters = self._counters.clone()  # before the step moves, for the same reason
        torch.div(self._consumed, unit, rounding_mode="floor", out=self._curve_step_row)
        return counters


def _check_count(count: Any, most: int, device: torch.device) -> Tensor | int:
    """Return a count as an integer, or as a tensor if reading it would synchronize.

    Raises:
        TypeError: The count is not an integer.
        ValueError: A count on the host is negative or too large; or a tensor is not a scalar.
    """
    if isinstance(count, Tensor):
        if count.dtype.is_floating_point or count.dtype.is_complex or count.dtype == torch.bool:
            raise TypeError(f"count is a tensor of {count.dtype}; it must be an integer")
        if count.dim() != 0:
            raise ValueError(
                f"count is a tensor of shape {tuple(count.shape)}; it must be a scalar"
            )
        # Not read on a CPU either, so that both devices train alike.
        if device.type == "cpu" or not count.is_cpu:
            return count.detach()
        count = count.item()  # in host memory, so this does not synchronize
    return checks.in_range("count", count, 0, most)


def _multipliers(curves: Sequence[Curve], unit: int | None) -> Any:
    """Return the curve's value for each step and group, float32.

    Raises:
        ValueError: There would be more than `MAX_TABLE_VALUES`.
    """
    total_steps = max(curve.total_steps for curve in curves)
    most_steps = MAX_TABLE_VALUES // len(curves) - 1
    if total_steps > most_steps:
        larger_unit = ""
        if unit is not None:
            least = -(-total_steps * unit // most_steps)
            larger_unit = f"a unit of at least {least}, with a curve in steps of that unit, or "
        raise ValueError(
            f"a TrainStep takes curves of at most {most_steps} steps for {len(curves)} parameter "
            f"groups; this one has {total_steps}: use {larger_unit}lambda_lr"
        )
    steps = np.arange(total_steps + 1)
    multipliers = {curve: curve(steps) for curve in dict.fromkeys(curves)}
    return np.stack([multipliers[curve] for curve in curves], axis=1)
