"""The clocks of a scheduler: updates, samples or tokens advance them, and rules may hold them.

A clock is a value: `after` returns the clock after another update, and changes nothing. It does not count the
updates, since torch does so in `last_epoch`, which other code writes too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from torch_bridge.curve_api import HOST, Curve, Rule, check_rules, check_unit, checks, decide
from torch_bridge.saved_states import (
    MAX_CONSUMED,
    HoldState,
    States,
    dump_hold_states,
    initial_states,
    read_saved_clock,
)


@dataclass(frozen=True)
class UpdateClock:
    """A step of the curve is an update."""

    @property
    def unit(self) -> int | None:
        """The samples or tokens in a step of the curve; None if a step is an update."""
        return None

    @property
    def is_step_used(self) -> bool:
        """True if an earlier update may have used the present step of the curve."""
        return False

    def step(self, updates: int) -> int:
        """Return the step of the curve after this number of updates."""
        return updates

    def consumed(self, updates: int) -> int:
        """Return the samples or tokens of this number of updates; without a unit, their number."""
        return max(updates, 0)

    def after(self, updates: int, count: Any = None, metric: Any = None) -> Self:
        """Return the clock after another update, which follows `updates` updates."""
        if count is not None:
            _refuse_count(count)
        if metric is not None:
            _refuse_metric(metric)
        return self

    def restarted(self) -> Self:
        """Return the clock when the turn of its scheduler in a `SequentialLR` comes."""
        return self

    def save(self) -> list[HoldState] | None:
        """Return the rules and their states as plain values for a checkpoint; None without rules."""
        return None

    def load(self, state: Mapping[str, Any], updates: int) -> Self:
        """Return the clock of a state that was saved after `updates` updates."""
        read_saved_clock(state, updates, None, (), "lambda_lr")
        return self


@dataclass(frozen=True)
class HeldClock(UpdateClock):
    """A step of the curve is an update at which no rule held the clock."""

    rules: tuple[Rule, ...]
    flat_starts: frozenset[int]
    states: States
    held: int = 0
    """The number of updates at which a rule held the clock."""

    @property
    def is_step_used(self) -> bool:
        return self.held > 0

    def step(self, updates: int) -> int:
        return updates - self.held

    def after(self, updates: int, count: Any = None, metric: Any = None) -> Self:
        _refuse_count(count)
        number = _metric_number(metric)
        is_flat_start = self.step(updates) in self.flat_starts
        with np.errstate(all="ignore"):
            states, is_held = decide(HOST, self.rules, self.states, is_flat_start, number)
        return replace(self, states=states, held=self.held + bool(is_held))

    def save(self) -> list[HoldState] | None:
        return dump_hold_states(self.rules, self.states)

    def load(self, state: Mapping[str, Any], updates: int) -> Self:
        step, _, states = read_saved_clock(state, updates, None, self.rules, "lambda_lr")
        return replace(self, states=states, held=max(updates - step, 0))


@dataclass(frozen=True)
class UnitClock(UpdateClock):
    """A step of the curve is `size` samples or tokens."""

    size: int
    count: Callable[[], int] | None
    """Returns what the last update consumed, if nobody says it to `after`."""
    total: int = 0
    """The sum of the counts of all updates."""

    @property
    def unit(self) -> int | None:
        return self.size

    @property
    def is_step_used(self) -> bool:
        return self.total % self.size > 0

    def step(self, updates: int) -> int:
        return self.total // self.size

    def consumed(self, updates: int) -> int:
        return self.total

    def after(self, updates: int, count: Any = None, metric: Any = None) -> Self:
        _refuse_metric(metric)
        name = "count"
        if count is None:
            name, count = "count()", self._call_count()
        if isinstance(count, Tensor) and count.dtype is torch.bool:  # operator.index accepts it
            raise TypeError(f"{name} = {checks.short_repr(count)} must be an integer")
        total = self.total + checks.at_least(name, count, 0)
        if total > MAX_CONSUMED:
            raise ValueError(f"{name} = {count!r} after consumed = {self.total} is more than 2**62 in all")
        return type(self)(self.size, self.count, total)  # at a third of the time that `replace` takes

    def restarted(self) -> Self:
        self._call_count()  # discards what the function has gathered until now
        return replace(self, total=0)

    def _call_count(self) -> int:
        if self.count is None:
            raise TypeError(
                f"with unit = {self.size}, step() needs what the update consumed: write step(count=n); or, "
                "if a trainer calls step() itself, pass count=, a function without arguments that returns n"
            )
        return self.count()

    def load(self, state: Mapping[str, Any], updates: int) -> Self:
        _, consumed, _ = read_saved_clock(state, updates, self.size, (), "lambda_lr")
        return replace(self, total=consumed)


def new_clock(
    curves: Sequence[Curve], unit: int | None, count: Callable[[], int] | None, hold: Any
) -> UpdateClock:
    """Return the clock that these arguments of `lambda_lr` describe."""
    if hold is not None and (unit is not None or count is not None):
        raise ValueError("hold= cannot be combined with unit= or count=")
    if count is not None and not callable(count):
        raise TypeError(f"count = {checks.short_repr(count)} must be a function without arguments")
    if count is not None and unit is None:
        raise TypeError(
            f"count = {checks.short_repr(count)} needs unit=: how many samples or tokens make one step of "
            "the curve"
        )
    unit = None if unit is None else checked_unit(unit)
    check_unit(curves, unit)
    if unit is not None:
        return UnitClock(unit, count)
    rules = rules_for(hold, curves)
    if rules:
        return HeldClock(rules, frozenset(curves[0].flat_starts), initial_states(rules))
    return UpdateClock()


def checked_unit(unit: Any) -> int:
    """Return the unit as a Python int, after a check of its range."""
    checked = checks.integer("unit", unit)
    if not 1 <= checked <= MAX_CONSUMED:
        raise ValueError(f"unit = {checked} must lie in 1 … 2**62")
    return checked


def rules_for(hold: Any, curves: Sequence[Curve]) -> tuple[Rule, ...]:
    """Return the rules in the user's `hold`; with rules, all parameter groups must have the same curve."""
    rules = check_rules(hold, curves[0])
    if rules and any(curve != curves[0] for curve in curves):
        raise ValueError("with hold, all parameter groups must follow the same curve")
    return rules


def _refuse_count(count: Any) -> None:
    if count is not None:
        raise TypeError(
            f"step(count={checks.short_repr(count)}), but the curve counts updates: write step(), or build "
            "it with unit=, as in lambda_lr(..., unit=n)"
        )


def _refuse_metric(metric: Any) -> None:
    if metric is not None:
        raise TypeError(f"step(metric={checks.short_repr(metric)}) needs lambda_lr(..., hold=...)")


def _metric_number(metric: Any) -> np.float32:
    if metric is None:
        raise TypeError("with hold, step() needs the metric of the update: step(loss)")
    if isinstance(metric, Tensor):
        if metric.dim():
            raise TypeError(f"metric is a tensor of shape {tuple(metric.shape)}; it must be a real scalar")
        metric = metric.item()
    return checks.metric("metric", metric)
