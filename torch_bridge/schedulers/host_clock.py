"""The clock of a scheduler or follower: updates, samples or tokens advance it, and rules may hold it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_bridge.curve_api import HOST, Curve, Rule, check_rules, check_unit, checks, decide
from torch_bridge.saved_states import MAX_CONSUMED, States, initial_states, read_saved_clock

Counts = tuple[int, int, States]
"""Updates held by a rule; samples or tokens consumed (0 without a unit); the states of the rules."""


class HostClock:
    """Counts the steps of curves on the host.

        clock = updates - held;  with a unit  clock = consumed // unit

    It does not count the updates: torch counts them in `last_epoch`, which other code also writes.

    Args:
        curves: The curve of each parameter group.
        builder: The function that messages tell the user to call with other arguments.
        unit, count, hold: As in `lambda_lr`.
    """

    def __init__(
        self,
        curves: Sequence[Curve],
        builder: str,
        unit: int | None = None,
        count: Callable[[], int] | None = None,
        hold: Rule | Sequence[Rule] | None = None,
    ) -> None:
        if hold is not None and (unit is not None or count is not None):
            raise ValueError("hold= cannot be combined with unit= or count=")
        if count is not None and not callable(count):
            raise TypeError(f"count = {checks.short_repr(count)} must be a function without arguments")
        if count is not None and unit is None:
            raise TypeError(
                f"count = {checks.short_repr(count)} needs unit=: how many samples or tokens make one step "
                "of the curve"
            )
        self.unit = None if unit is None else checked_unit(unit)
        check_unit(curves, self.unit)
        self.rules = rules_for(hold, curves)
        self.counts: Counts = 0, 0, initial_states(self.rules)
        self._count, self._builder = count, builder
        self._flat_starts = frozenset(curves[0].flat_starts) if self.rules else frozenset[int]()
        self.is_plain = self.unit is None and not self.rules
        """True if the clock is the number of updates."""

    def step_after(self, updates: int) -> int:
        """Return the step of the curves after `updates` updates; `counts` must include the last one."""
        if self.is_plain:
            return updates
        held, consumed, _ = self.counts
        return updates - held if self.unit is None else consumed // self.unit

    def counts_after(self, updates: int, count: Any = None, metric: Any = None) -> Counts:
        """Return the counts after another update, which follows `updates` updates. Nothing is changed.

        It has consumed `count`; for None, the user's function returns the number. Rules see its `metric`.
        """
        if metric is not None and not self.rules:
            raise TypeError(f"step(metric={checks.short_repr(metric)}) needs {self._builder}(..., hold=...)")
        if self.unit is not None:
            return 0, self._consumed_after(count), ()
        if count is not None:
            raise TypeError(
                f"step(count={checks.short_repr(count)}), but the curve counts updates: write step(), or "
                f"build it with unit=, as in {self._builder}(..., unit=n)"
            )
        if not self.rules:
            return self.counts
        held, _, states = self.counts
        with np.errstate(all="ignore"):
            is_flat_start = updates - held in self._flat_starts
            states, is_held = decide(HOST, self.rules, states, is_flat_start, _metric_number(metric))
        return held + bool(is_held), 0, states

    def _consumed_after(self, count: Any) -> int:
        name = "count"
        if count is None:
            if self._count is None:
                raise TypeError(
                    f"with unit = {self.unit}, step() needs what the update consumed: write step(count=n); "
                    "or, if a trainer calls step() itself, pass count=, a function without arguments that "
                    "returns n"
                )
            name, count = "count()", self._count()
        if isinstance(count, Tensor) and count.dtype is torch.bool:  # operator.index accepts it
            raise TypeError(f"{name} = {checks.short_repr(count)} must be an integer")
        _, before, _ = self.counts
        consumed = before + checks.at_least(name, count, 0)
        if consumed > MAX_CONSUMED:
            raise ValueError(f"{name} = {count!r} after consumed = {before} is more than 2**62 in all")
        return consumed

    def read_counts(self, state_dict: Mapping[str, Any], updates: int) -> Counts:
        """Return the counts of a state that was saved after `updates` updates."""
        clock, consumed, states = read_saved_clock(state_dict, updates, self.unit, self.rules, self._builder)
        return max(updates - clock, 0) if self.unit is None else 0, consumed, states


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


def _metric_number(metric: Any) -> np.float32:
    if metric is None:
        raise TypeError("with hold, step() needs the metric of the update: step(loss)")
    if isinstance(metric, Tensor):
        if metric.dim():
            raise TypeError(f"metric is a tensor of shape {tuple(metric.shape)}; it must be a real scalar")
        metric = metric.item()
    return checks.metric("metric", metric)
