"""A clock of samples or tokens: what updates consumed, in steps of a unit."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torch_bridge.core import checks
from torch_bridge.schedulers.resume import clock_in, way_out

MOST_CONSUMED = 2**62
"""The greatest unit, and the most that can be consumed: what TrainStep counts in int64 on the device."""


class UnitClock:
    """Counts what updates consume: clock = consumed // unit."""

    def __init__(self, unit: int, count: Callable[[], int] | None) -> None:
        self.unit, self.count = unit, count
        self.consumed = 0

    @property
    def clock(self) -> int:
        return self.consumed // self.unit

    def after(self, count: Any) -> int:
        """What is consumed after an update of this count; without one the user's function is asked.

        Raises:
            TypeError: The count is no integer, or there is neither a count nor a function.
            ValueError: The count is negative, or the sum is above 2⁶².
        """
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
        if consumed > MOST_CONSUMED:
            raise ValueError(f"{name} = {count!r} after consumed = {self.consumed} is more than 2**62 in all")
        return consumed


class Clocked:
    """What has a clock: of samples or tokens, or of updates."""

    last_epoch: int
    """The number of updates so far."""
    _units: UnitClock | None = None

    @property
    def clock(self) -> int:
        """The step of the curve.

        It is `last_epoch`, unless a rule has held the clock; with `unit` it is `consumed // unit`.
        """
        return self.last_epoch if self._units is None else self._units.clock

    @property
    def consumed(self) -> int:
        """The sum of the counts of all updates; without `unit` the number of updates."""
        return max(self.last_epoch, 0) if self._units is None else self._units.consumed

    @property
    def unit(self) -> int | None:
        """How many samples or tokens make one step of the curve; None where a step is an update."""
        return None if self._units is None else self._units.unit


def unit_clock(unit: Any, count: Any) -> UnitClock | None:
    """The clock that the user asks for; None where it is to count updates.

    Raises:
        TypeError: `unit` is no integer, `count` can't be called, or it is given without `unit`.
        ValueError: `unit` is below 1 or above 2⁶².
    """
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
    """The unit as a Python int.

    Raises:
        TypeError, ValueError: It is no integer in 1 … 2⁶².
    """
    found = checks.integer("unit", unit)
    if not 1 <= found <= MOST_CONSUMED:
        raise ValueError(f"unit = {found} must lie in 1 … 2**62")
    return found


def refuse_count(count: Any, builder: str) -> TypeError:
    """What to raise for `step(count=...)` of a clock that counts updates."""
    return TypeError(
        f"step(count={count!r}), and the curve counts updates: write step(), or build it with unit=, as "
        f"{builder}(..., unit=n)"
    )


class SavedClock(NamedTuple):
    """The clock in a state."""

    unit: int | None
    clock: int
    consumed: int
    """Without a unit it means nothing."""


def saved_clock(
    state_dict: Mapping[str, Any], updates: int, own_unit: int | None, strict: bool, builder: str
) -> SavedClock:
    """The clock in a state that was saved after so many updates.

    Args:
        state_dict: The state.
        updates: How many took place.
        own_unit: The unit of the run that it is loaded into.
        strict: Whether to refuse the state of another unit.
        builder: The function or class that `strict=False` may be given to.

    Raises:
        KeyError, TypeError, ValueError: The state is of another unit, or damaged.
    """
    unit = state_dict.get("unit")
    if unit is None:
        clock, consumed = clock_in(state_dict, updates), 0
    else:
        unit = checks.at_least("unit", unit, 1)
        consumed = checks.at_least("consumed", state_dict["consumed"], 0)
        clock = checks.integer("clock", state_dict["clock"])
        if consumed > MOST_CONSUMED or clock != consumed // unit:
            raise ValueError(
                f"state_dict has clock = {clock}, consumed = {consumed} and unit = {unit}; the clock must be "
                "consumed // unit, of at most 2**62 consumed"
            )
    if strict and unit != own_unit:
        raise ValueError(
            f"state_dict was saved with unit = {unit}, and here it is {own_unit}; to go on at its clock, "
            f"{clock}, {way_out(builder)}"
        )
    return SavedClock(unit, clock, consumed)


def consumed_at(clock: int, unit: int) -> int:
    """What was consumed when this clock began its present step.

    Raises:
        ValueError: It is more than 2⁶².
    """
    if clock * unit > MOST_CONSUMED:
        raise ValueError(f"unit = {unit} at clock = {clock} is more than 2**62 consumed in all")
    return clock * unit


class Place(NamedTuple):
    """Where a run goes on."""

    last_epoch: int
    clock: int
    consumed: int


def place_in(
    state_dict: Mapping[str, Any], own: UnitClock | None, counts_updates: bool, strict: bool, builder: str
) -> Place:
    """Where a run goes on from a state, on a clock of its own.

    Unless `strict`, the clock goes on where it was saved, whatever it counted.

    Args:
        state_dict: The state.
        own: The clock of the run; None where it counts updates.
        counts_updates: Whether the clock is the number of updates, since no rule can hold it.
        strict: Whether to refuse the state of another unit.
        builder: The function that `strict=False` may be given to.

    Raises:
        KeyError, TypeError, ValueError: The state is of another unit, or damaged.
    """
    last_epoch = checks.at_least("last_epoch", state_dict["last_epoch"], -1)
    own_unit = None if own is None else own.unit
    unit, clock, consumed = saved_clock(state_dict, last_epoch, own_unit, strict, builder)
    if own is None:
        moved = last_epoch >= 0 and (counts_updates or unit is not None)
        return Place(clock if moved else last_epoch, clock, 0)
    if unit != own.unit:
        clock = max(clock, 0)
        consumed = consumed_at(clock, own.unit)
    return Place(last_epoch, clock, consumed)
