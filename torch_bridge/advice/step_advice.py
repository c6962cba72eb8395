"""Warnings about a scheduler whose steps do not fit the updates of its optimizer.

Each is given before an update:

    update 0      a value is neither the base nor what a scheduler wrote last
    update 1      the optimizer was loaded, and the scheduler starts at step 0 without its state
    update 57     the scheduler has made at least 1.5 times as many steps
    update 168    it has made at most a tenth as many, although more would have changed a value; or
                  the unit is so large that the curve stays where all learning rates are 0
    every 32nd    the step is far past the end (`end_message` has the rule), once; never if it was
                  past the end when the count began

Updates are counted from when the scheduler was built, moved or loaded, or its peaks were set.
While a different scheduler has written the groups, no warning is given. Updates of a compiled
optimizer, or of one without hooks, are not counted.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.optim import Optimizer

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.clock import CheckedClock
from plateau_jax.clocks.position import Position
from plateau_jax.curves.curve import Curve
from plateau_jax.runs.record import shortest_decimal
from plateau_jax.runs.schedules import Schedules
from torch_bridge.advice.position_advice import (
    advise_hint,
    describe_updates,
    end_message,
    is_past_end,
    start_message,
    stuck_message,
)
from torch_bridge.groups.optimizers import updates_made
from torch_bridge.groups.options import one_if_equal

_TOO_MANY_CHECK = 57
"""Before this update, a check for too many steps."""
_TOO_FEW_CHECK = 168
"""Before this update, a check for too few steps."""
_PAST_END_INTERVAL = 32
"""Every 32 updates, a check for a run past the end of its curve."""


class StepAdvice:
    """The warnings of one scheduler.

    Args:
        optimizer: Its optimizer.
        clock: Its clock.
        position: Where it starts.
        value_message: The warning before update 0, or "".
        was_loaded: True if the optimizer seems to have been loaded before the scheduler was built.
        counts_steps: False to give only the warning before update 0.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        clock: CheckedClock,
        position: Position,
        *,
        value_message: str,
        was_loaded: bool,
        counts_steps: bool,
    ) -> None:
        self._optimizer = optimizer
        self._clock = clock
        self.restart(position)
        self._value_message = value_message
        self._was_loaded = was_loaded
        self._counts_steps = counts_steps
        self._has_warned_of_end = False

    def restart(self, position: Position) -> None:
        """Count from here: the scheduler has moved, its state was loaded, or its base was set."""
        self._began = position
        self._value_message = ""
        self._was_loaded = False
        self._updates = 0

    def note_load(self) -> None:
        """Note that the optimizer loaded values that the scheduler did not write."""
        self._was_loaded = self._began.updates <= 0

    def before_update(
        self, position: Position, schedules: Schedules, is_in_charge: Callable[[], bool]
    ) -> None:
        """Count an update, and give the warning that is due before it.

        Args:
            position: Where the scheduler is.
            schedules: Its schedules as of its last step, without later changes by the program.
            is_in_charge: Returns True if no other scheduler has written the groups since.
        """
        updates = self._updates
        self._updates += 1
        checks_end = updates > 0 and updates % _PAST_END_INTERVAL == 0
        if not checks_end and updates not in (0, 1, _TOO_MANY_CHECK, _TOO_FEW_CHECK):
            return
        if _is_capturing():
            return
        message = self._message(position, schedules, updates)
        if message and is_in_charge():
            self._has_warned_of_end |= checks_end
            warn(message)

    def _message(self, position: Position, schedules: Schedules, updates: int) -> str:
        """Return the warning that is due before an update, or ""."""
        if updates == 0 and position.updates == self._began.updates:
            return self._value_message
        if not self._counts_steps or position.updates < 0:
            return ""
        if updates == 1 and self._was_loaded and position.updates <= 1:
            return self._load_message(schedules.bases)
        if updates <= 1 or not any(schedules.bases):
            return ""
        if updates == _TOO_MANY_CHECK:
            return self._too_many_steps_message(position, updates)
        if updates == _TOO_FEW_CHECK:
            return self._too_few_steps_message(position, schedules, updates)
        if self._has_warned_of_end or is_past_end(schedules.curves, self._began.step):
            return ""
        return end_message(
            schedules.curves, self._clock.unit, position.step, position.updates, "lambda_lr"
        )

    def _too_many_steps_message(self, position: Position, updates: int) -> str:
        steps, moved = self._steps_until(position)
        if 2 * min(steps, moved) < 3 * (updates - 1):
            return ""
        remedy = (
            ". Under gradient accumulation, do not call it after each micro-batch. accelerate by "
            "default steps a prepared scheduler once for each process: build the scheduler with "
            "clock=DataClock(accelerator.num_processes, count=1)"
        )
        return _steps_message(self._clock.unit, steps, updates, remedy)

    def _too_few_steps_message(self, position: Position, schedules: Schedules, updates: int) -> str:
        steps, moved = self._steps_until(position)
        step, unit = position.step, self._clock.unit
        if unit is not None and steps and moved == 0:
            if any(schedules.values_at(step)):
                return ""
            consumed = position.consumed(self._clock) - self._began.consumed(self._clock)
            return f"{_describe_calls(steps, updates)}, and {stuck_message(step, unit, consumed)}"
        last = self._began.step + updates
        if 10 * steps > updates or not _would_change(schedules.curves, step, last):
            return ""
        remedy = ", with total_steps = count_updates(loader, epochs)"
        return _steps_message(unit, steps, updates, remedy)

    def _steps_until(self, position: Position) -> tuple[int, int]:
        """Return how often `step` was called since the count began, and the steps it moved."""
        steps = position.updates - self._began.updates
        if self._clock.unit is None:
            return steps, steps  # also those that a hold rule has held
        return steps, position.step - self._began.step

    def _load_message(self, bases: Sequence[float]) -> str:
        """Return the warning about an optimizer that was loaded without its scheduler's state."""
        made = updates_made(self._optimizer)
        peak = one_if_equal([shortest_decimal(base) for base in bases])
        advice = "load the scheduler's state, scheduler.load_state_dict(state)"
        seen = "the optimizer was loaded"
        if made is not None and made > 1:  # one was made since the scheduler was built
            seen = describe_updates(made - 1)
            if self._clock.unit is None:
                advice += f"; or pass last_epoch={made - 2}"
        set_peak = f"scheduler.set_peak({peak})"
        advice += f". To start at step 0, set the peak, which is {peak} now: {set_peak}"
        return start_message(seen, advice)


def _describe_calls(steps: int, updates: int) -> str:
    calls = checks.plural(steps, "time")
    return f"scheduler.step() was called {calls} in {updates} optimizer steps"


def _steps_message(unit: int | None, steps: int, updates: int, remedy: str) -> str:
    call = "step()"
    if unit is not None:
        call, remedy = "step(count=n)", ", where n is what it consumed"
    return (
        f"{_describe_calls(steps, updates)}. Call scheduler.{call} once after every "
        f'optimizer.step() (in Lightning "interval": "step"){remedy}. A step of the curve may be '
        f"something else, such as an epoch or an iteration of PPO. {advise_hint('lambda_lr')}"
    )


def _would_change(curves: Sequence[Curve], step: int, last: int) -> bool:
    """Return True if a step for each update would have changed a value, before the curve's end."""
    if not step <= last <= max(curve.total_steps for curve in curves):
        return False
    return any(np.ptp(curve(range(step, last + 1))) for curve in curves)


def seems_loaded(optimizer: Optimizer) -> bool:
    """Return True if an optimizer that was not stepped yet has the state of an earlier run."""
    if getattr(optimizer, "_opt_called", False):
        return False
    has_peak = any("initial_lr" in group for group in optimizer.param_groups)
    return has_peak and updates_made(optimizer) != 0


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
