"""The clocks of a scheduler: from the number of finished updates to a step of the curve.

A clock is a value: `after` returns the clock after one more update, and changes nothing. Torch
counts the updates in `last_epoch`, which other code writes too, so a clock does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.clocks.clock import CheckedClock, check_clock, check_consumed
from plateau_jax.clocks.decision import HOST, decide
from plateau_jax.curves.curve import Curve
from plateau_jax.runs.saved_run import Position, States, initial_states


@dataclass(frozen=True)
class UpdateClock:
    """A step of the curve is an update."""

    checked: CheckedClock
    """The argument `clock` of the scheduler."""

    @property
    def hold_states(self) -> States:
        """The states of the rules; () without rules."""
        return ()

    def step(self, updates: int) -> int:
        """Return the step of the curve after this number of updates."""
        return updates

    def consumed(self, updates: int) -> int:
        """Return the samples or tokens of this number of updates; without a unit, their number."""
        return max(updates, 0)

    def after(self, updates: int, count: Any = None, metric: Any = None) -> Self:
        """Return the clock after one more update, which follows `updates` updates."""
        if count is not None:
            _reject_count(count)
        if metric is not None:
            _reject_metric(metric)
        return self

    def restarted(self) -> Self:
        """Return the clock when the turn of its scheduler in a `SequentialLR` comes."""
        return self

    def resumed(self, position: Position) -> Self:
        """Return the clock of a run that resumes at this position."""
        return self


@dataclass(frozen=True)
class HoldClock(UpdateClock):
    """A step of the curve is an update at which no rule held the curve."""

    flat_starts: frozenset[int]
    states: States
    held: int = 0
    """The number of updates at which a rule held the curve."""

    @property
    def hold_states(self) -> States:
        return self.states

    def step(self, updates: int) -> int:
        return updates - self.held

    def after(self, updates: int, count: Any = None, metric: Any = None) -> Self:
        _reject_count(count)
        if updates < self.held:
            raise ValueError(
                f"last_epoch = {updates}, but a rule has held the curve for {self.held} updates: "
                "with a hold rule, load a state to go back"
            )
        number = _metric_number(metric)
        is_flat_start = self.step(updates) in self.flat_starts
        with np.errstate(all="ignore"):
            states, is_held = decide(HOST, self.checked.rules, self.states, is_flat_start, number)
        return replace(self, states=states, held=self.held + bool(is_held))

    def resumed(self, position: Position) -> Self:
        held = max(position.updates - position.curve_step, 0)
        return replace(self, states=position.hold_states, held=held)


@dataclass(frozen=True)
class UnitClock(UpdateClock):
    """A step of the curve is a number of samples or tokens, the unit."""

    unit: int
    total: int = 0
    """The sum of the counts of all updates."""
    updates: int = 0
    """The number of these updates."""

    def step(self, updates: int) -> int:
        return self.total // self.unit

    def consumed(self, updates: int) -> int:
        return self.total

    def after(self, updates: int, count: Any = None, metric: Any = None) -> Self:
        _reject_metric(metric)
        updates = max(updates, 0)
        if updates != self.updates:
            raise ValueError(
                f"last_epoch = {updates}, but this scheduler has counted {self.updates} updates. "
                f"With DataClock({self.unit}), the step of the curve depends on what they "
                "consumed, so setting last_epoch has no effect: to go to another step, call "
                "scheduler.load_state_dict(state)"
            )
        if count is None:
            count = self.checked.count
        if count is None:
            raise TypeError(
                f"with DataClock({self.unit}), step() needs what the update consumed: write "
                "step(count=n); if a trainer steps a lambda_lr, set scheduler.count = n before it, "
                "on the lambda_lr itself and not on its wrapper; or, if it is always n, write "
                f"DataClock({self.unit}, count=n)"
            )
        if checks.is_not_real(count):  # operator.index accepts torch's tensors of bool
            raise TypeError(f"count = {checks.short_repr(count)} must be an integer")
        total = self.total + checks.at_least("count", count, 0)
        check_consumed(total)
        # Three times as fast as `replace`:
        return type(self)(self.checked, self.unit, total, updates + 1)

    def restarted(self) -> Self:
        return replace(self, total=0, updates=0)

    def resumed(self, position: Position) -> Self:
        return replace(self, total=position.consumed, updates=max(position.updates, 0))


def new_clock(clock: Any, curves: Sequence[Curve]) -> UpdateClock:
    """Return the clock that the argument `clock` of `lambda_lr` describes."""
    checked = check_clock(clock, curves)
    if checked.unit is not None:
        return UnitClock(checked, checked.unit)
    if checked.rules:
        return HoldClock(checked, frozenset(curves[0].flat_starts), initial_states(checked.rules))
    return UpdateClock(checked)


def _reject_count(count: Any) -> None:
    if count is not None:
        raise TypeError(
            f"count = {checks.short_repr(count)} needs a DataClock: write step(), or build the "
            "scheduler with clock=DataClock(unit)"
        )


def _reject_metric(metric: Any) -> None:
    if metric is not None:
        raise TypeError(
            f"step(metric={checks.short_repr(metric)}) needs a hold rule: build the "
            "scheduler with clock=rule"
        )


def _metric_number(metric: Any) -> np.float32:
    if metric is None:
        raise TypeError(
            "with a hold rule, step() needs the metric of the update: step(metric=loss)"
        )
    # NumPy reads neither torch's bfloat16 nor a tensor that needs gradients.
    if getattr(metric, "ndim", None) == 0:
        metric = metric.item()
    elif hasattr(metric, "detach"):
        metric = metric.detach()  # `checks.metric` rejects it
    return checks.metric("metric", metric)
