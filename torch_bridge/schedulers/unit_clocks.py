"""A clock of samples or tokens: the sum of the counts of all updates, in steps of a unit."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torch_bridge.curve_api import checks
from torch_bridge.schedulers.resume import how_to_override

MAX_CONSUMED = 2**62
"""The largest unit, and the largest sum: `TrainStep` counts in int64 on the device."""


class UnitClock:
    """A counter of the samples or tokens that updates consume: clock = consumed // unit."""

    def __init__(self, unit: int, count: Callable[[], int] | None) -> None:
        self.unit, self.count = unit, count
        self.consumed = 0

    @property
    def clock(self) -> int:
        return self.consumed // self.unit

    def consumed_after(self, count: Any) -> int:
        """Return the sum after an update with this count; for None, the user's function returns the count."""
        name = "count"
        if count is None:
            if self.count is None:
                raise TypeError(
                    f"with unit = {self.unit}, step() needs what the update consumed: write step(count=n); "
                    "or, if a trainer calls step() itself, pass count=, a function without arguments that "
                    "returns n"
                )
            name, count = "count()", self.count()
        if isinstance(count, Tensor) and count.dtype is torch.bool:  # operator.index accepts it
            raise TypeError(f"{name} = {checks.short_repr(count)} must be an integer")
        consumed = self.consumed + checks.at_least(name, count, 0)
        if consumed > MAX_CONSUMED:
            raise ValueError(f"{name} = {count!r} after consumed = {self.consumed} is more than 2**62 in all")
        return consumed


def make_unit_clock(unit: Any, count: Any) -> UnitClock | None:
    """Build the clock for the user's `unit` and `count`; None if the curve counts updates."""
    if count is not None and not callable(count):
        raise TypeError(f"count = {checks.short_repr(count)} must be a function without arguments")
    if unit is None:
        if count is not None:
            raise TypeError(
                f"count = {checks.short_repr(count)} needs unit=: how many samples or tokens make one step "
                "of the curve"
            )
        return None
    return UnitClock(checked_unit(unit), cast("Callable[[], int] | None", count))


def checked_unit(unit: Any) -> int:
    """Return the unit as a Python int, after a check of its range."""
    checked = checks.integer("unit", unit)
    if not 1 <= checked <= MAX_CONSUMED:
        raise ValueError(f"unit = {checked} must lie in 1 … 2**62")
    return checked


def reject_count(count: Any, builder: str) -> TypeError:
    """Return the error for `step(count=...)` on a clock that counts updates."""
    return TypeError(
        f"step(count={checks.short_repr(count)}), but the curve counts updates: write step(), or build it "
        f"with unit=, as in {builder}(..., unit=n)"
    )


class SavedClock(NamedTuple):
    """The clock in a saved state."""

    unit: int | None
    clock: int
    consumed: int
    """0 without a unit."""


def read_saved_clock(
    state_dict: Mapping[str, Any], updates: int, expected_unit: int | None, strict: bool, builder: str
) -> SavedClock:
    """Read the clock of a state that was saved after `updates` updates.

    With `strict`, a unit other than `expected_unit` is rejected; the message names `builder`, which takes
    `strict`.
    """
    unit = state_dict.get("unit")
    if unit is None:
        clock, consumed = checks.at_least("clock", state_dict["clock"], min(updates, 0)), 0
        if clock > max(updates, 0):
            raise ValueError(
                f"state_dict has clock = {clock} after {updates} updates, which move it by at most one each"
            )
    else:
        unit = checks.at_least("unit", unit, 1)
        consumed = checks.at_least("consumed", state_dict["consumed"], 0)
        clock = checks.integer("clock", state_dict["clock"])
        if consumed > MAX_CONSUMED or clock != consumed // unit:
            raise ValueError(
                f"state_dict has clock = {clock}, consumed = {consumed} and unit = {unit}; the clock must be "
                "consumed // unit, of at most 2**62 consumed"
            )
    if strict and unit != expected_unit:
        raise ValueError(
            f"state_dict was saved with unit = {unit}, but here it is {expected_unit}; to resume from its "
            f"clock, {clock}, {how_to_override(builder)}"
        )
    return SavedClock(unit, clock, consumed)


def consumed_at(clock: int, unit: int) -> int:
    """Return the sum at which the clock reaches this step."""
    if clock * unit > MAX_CONSUMED:
        raise ValueError(f"unit = {unit} at clock = {clock} is more than 2**62 consumed in all")
    return clock * unit


class Position(NamedTuple):
    """The position to resume from."""

    last_epoch: int
    clock: int
    consumed: int


def read_position(
    state_dict: Mapping[str, Any],
    unit_clock: UnitClock | None,
    counts_updates: bool,
    strict: bool,
    builder: str,
) -> Position:
    """Read the position in a state, on the clock of the run that loads it.

    Without `strict`, the run resumes at the saved step of the curve, whatever the saved clock counted.

    Args:
        state_dict: The saved state.
        unit_clock: The clock of the run that loads it; None if its curve counts updates.
        counts_updates: True if no rule can hold the clock of that run, so that without a unit the clock is
            the number of updates.
        strict: As in `load_state_dict`.
        builder: As in `how_to_override`.
    """
    last_epoch = checks.at_least("last_epoch", state_dict["last_epoch"], -1)
    unit = None if unit_clock is None else unit_clock.unit
    saved = read_saved_clock(state_dict, last_epoch, unit, strict, builder)
    if unit_clock is None:
        # If no rule can hold the clock here, it equals the number of updates, so the saved clock replaces the
        # saved number. So does a saved clock of samples. At -1 the scheduler waits in a SequentialLR.
        is_replaced = last_epoch >= 0 and (counts_updates or saved.unit is not None)
        return Position(saved.clock if is_replaced else last_epoch, saved.clock, 0)
    if saved.unit == unit_clock.unit:
        return Position(last_epoch, saved.clock, saved.consumed)
    clock = max(saved.clock, 0)
    return Position(last_epoch, clock, consumed_at(clock, unit_clock.unit))
