"""A clock of samples or tokens: the sum of what updates consumed, in steps of a unit."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torch_bridge.curve_api import checks
from torch_bridge.schedulers.resume import how_to_override

MAX_CONSUMED = 2**62
"""The greatest unit, and the greatest sum: TrainStep counts in int64 on the device."""


class UnitClock:
    """Counts what updates consume: clock = consumed // unit."""

    def __init__(self, unit: int, count: Callable[[], int] | None) -> None:
        self.unit, self.count = unit, count
        self.consumed = 0

    @property
    def clock(self) -> int:
        return self.consumed // self.unit

    def after(self, count: Any) -> int:
        """The sum after an update with this count; without a count the user's function is called."""
        name = "count"
        if count is None:
            if self.count is None:
                raise TypeError(
                    f"with unit = {self.unit}, step() needs what the update consumed: write step(count=n); "
                    "or, where a trainer calls step() bare, pass count=, a function without arguments that "
                    "returns n"
                )
            name, count = "count()", self.count()
        if isinstance(count, Tensor) and count.dtype is torch.bool:  # which counts as an index
            raise TypeError(f"{name} = {count!r} must be an integer")
        consumed = self.consumed + checks.at_least(name, count, 0)
        if consumed > MAX_CONSUMED:
            raise ValueError(f"{name} = {count!r} after consumed = {self.consumed} is more than 2**62 in all")
        return consumed


def unit_clock(unit: Any, count: Any) -> UnitClock | None:
    """The clock for a user's `unit` and `count`; None if the curve counts updates."""
    if count is not None and not callable(count):
        raise TypeError(f"count = {count!r} must be a function without arguments")
    if unit is None:
        if count is not None:
            raise TypeError(
                f"count = {count!r} needs unit=: how many samples or tokens make one step of the curve"
            )
        return None
    return UnitClock(checked_unit(unit), cast("Callable[[], int] | None", count))


def checked_unit(unit: Any) -> int:
    """The unit as a Python int."""
    checked = checks.integer("unit", unit)
    if not 1 <= checked <= MAX_CONSUMED:
        raise ValueError(f"unit = {checked} must lie in 1 … 2**62")
    return checked


def refuse_count(count: Any, builder: str) -> TypeError:
    """The error for `step(count=...)` on a clock that counts updates."""
    return TypeError(
        f"step(count={count!r}), and the curve counts updates: write step(), or build it with unit=, as "
        f"{builder}(..., unit=n)"
    )


def read_saved_clock(
    state_dict: Mapping[str, Any], updates: int, own_unit: int | None, strict: bool, builder: str
) -> tuple[int | None, int, int]:
    """The unit, the clock and what was consumed (0 without a unit), in a state saved after `updates` updates.

    With `strict` a unit other than `own_unit` is refused; the message names `builder`, which takes `strict`.
    """
    unit = state_dict.get("unit")
    if unit is None:
        # Only a rule can hold the clock. Without one, a state of 0.1.0 lacks it: it is the number of updates.
        clock = state_dict["clock"] if state_dict.get("hold") else state_dict.get("clock", updates)
        clock, consumed = checks.at_least("clock", clock, min(updates, 0)), 0
        if clock > max(updates, 0):
            raise ValueError(
                f"state_dict has clock = {clock} after {updates} updates, which move it one each"
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
    if strict and unit != own_unit:
        raise ValueError(
            f"state_dict was saved with unit = {unit}, and here it is {own_unit}; to go on at its clock, "
            f"{clock}, {how_to_override(builder)}"
        )
    return unit, clock, consumed


def consumed_at(clock: int, unit: int) -> int:
    """The sum at which this clock begins its present step."""
    if clock * unit > MAX_CONSUMED:
        raise ValueError(f"unit = {unit} at clock = {clock} is more than 2**62 consumed in all")
    return clock * unit


class Position(NamedTuple):
    """The position to resume from."""

    last_epoch: int
    clock: int
    consumed: int


def read_position(
    state_dict: Mapping[str, Any], own: UnitClock | None, counts_updates: bool, strict: bool, builder: str
) -> Position:
    """The position in a state, on the clock of the run that loads it.

    Without `strict` the saved step of the curve stays, whatever the saved clock counted. `own` is None if the
    run counts updates; `counts_updates` says that its clock is that number, since no rule can hold it.
    """
    last_epoch = checks.at_least("last_epoch", state_dict["last_epoch"], -1)
    own_unit = None if own is None else own.unit
    unit, clock, consumed = read_saved_clock(state_dict, last_epoch, own_unit, strict, builder)
    if own is None:
        moved = last_epoch >= 0 and (counts_updates or unit is not None)
        return Position(clock if moved else last_epoch, clock, 0)
    if unit != own.unit:
        clock = max(clock, 0)
        consumed = consumed_at(clock, own.unit)
    return Position(last_epoch, clock, consumed)
