"""Warnings about a scheduler whose steps do not fit the updates of its optimizer.

Each is given before an update:

    update 0      a value is neither the base nor what a scheduler wrote last
    update 1      the optimizer was loaded, and the scheduler starts at step 0 without its state
    update 57     the scheduler has made at least 1.5 times as many steps
    update 168    it has made at most a tenth as many, although more would have changed a value; or
                  the unit is so large that the curve stays where all learning rates are 0
    every 32nd    the step is far past the end (`end_message` has the rule), once

Updates are counted from when the scheduler was built, moved or loaded, or its peaks were set.
While a different scheduler has written the groups, no warning is given. Updates of a compiled
optimizer, or of one without hooks, are not counted.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.position import Position
from plateau_jax.curves.curve import Curve
from plateau_jax.runs.comparison import one_if_equal
from plateau_jax.runs.group_values import GroupValues
from plateau_jax.runs.record import shortest_decimal
from torch_bridge.advice.position_warnings import (
    advise_hint,
    describe_updates,
    end_message,
    is_past_end,
    start_message,
    stuck_message,
)
from torch_bridge.groups.optimizers import updates_made

_OFTEN = 57
"""Before this update, a check for too many steps."""
_RARE = 168
"""Before this update, a check for too few steps."""
_END = 32
"""Every 32 updates, a check for a run past the end of its curve."""


class StepAdvice:
    """The warnings of one scheduler.

    Args:
        position: Where the scheduler starts.
        value_message: The warning before update 0, or "".
        was_loaded: True if the optimizer seems to have been loaded before the scheduler was built.
        counts_steps: False to give only the warning before update 0.
    """

    def __init__(
        self,
        position: Position,
        *,
        value_message: str,
        was_loaded: bool,
        counts_steps: bool,
    ) -> None:
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

    def count_update(self) -> bool:
        """Count an update before it is made; return True if a warning may be due."""
        updates = self._updates
        self._updates = updates + 1
        return updates in (0, 1, _OFTEN, _RARE) or updates % _END == 0

    def warn_if_due(
        self, scheduler: Any, values: GroupValues, is_in_charge: Callable[[], bool]
    ) -> None:
        """Give the warning that is due before the update that was counted.

        Args:
            scheduler: A `lambda_lr` or a `follow`.
            values: Its curves and bases as of its last step, without later changes by the program.
            is_in_charge: Returns True if no other scheduler has written the groups since.
        """
        if _is_capturing():
            return
        updates = self._updates - 1
        message = self._message(scheduler, values, updates)
        if message and is_in_charge():
            self._has_warned_of_end |= updates > 0 and updates % _END == 0
            warn(message)

    def _message(self, scheduler: Any, values: GroupValues, updates: int) -> str:
        """Return the warning that is due before an update, or ""."""
        if updates == 0 and scheduler.last_epoch == self._began.updates:
            return self._value_message
        if not self._counts_steps or scheduler.last_epoch < 0:
            return ""
        if updates == 1 and self._was_loaded and scheduler.last_epoch <= 1:
            return _load_message(scheduler, values.bases)
        if updates <= 1 or not any(values.bases):
            return ""
        if updates in (_OFTEN, _RARE):
            return self._steps_message(scheduler, values.curves, updates)
        return self._end_message(scheduler, values.curves)

    def _end_message(self, scheduler: Any, curves: Sequence[Curve]) -> str:
        step = scheduler.curve_step
        was_built_past_end = is_past_end(curves, self._began.step)
        if self._has_warned_of_end or was_built_past_end:
            return ""
        return end_message(curves, scheduler.unit, step, scheduler.last_epoch, "lambda_lr")

    def _steps_message(self, scheduler: Any, curves: Sequence[Curve], updates: int) -> str:
        """Return the warning about the number of steps in these updates, or ""."""
        step, unit = scheduler.curve_step, scheduler.unit
        begin = max(self._began.step, 0)
        steps = scheduler.last_epoch - self._began.updates
        moved = steps  # a hold rule may have held some
        if unit is not None:
            moved = step - begin
        calls = checks.plural(steps, "time")
        seen = f"scheduler.step() was called {calls} in {updates} optimizer steps"
        if updates == _OFTEN:
            if 2 * min(steps, moved) < 3 * (updates - 1):
                return ""
            remedy = (
                ". Under gradient accumulation, do not call it after each micro-batch. accelerate "
                "by default steps a prepared scheduler once for each process: build the scheduler "
                "with clock=DataClock(accelerator.num_processes, count=1)"
            )
        elif unit is not None and steps and moved == 0:
            if any(scheduler.get_last_lr()):
                return ""
            consumed = scheduler.consumed - begin * unit - self._began.rest
            return f"{seen}, and {stuck_message(step, unit, consumed)}"
        else:
            last = begin + updates
            if 10 * steps > updates or not _would_change(curves, step, last):
                return ""
            remedy = ", with total_steps = count_updates(loader, epochs)"
        call = "step()"
        if unit is not None:
            call, remedy = "step(count=n)", ", where n is what it consumed"
        return (
            f"{seen}. Call scheduler.{call} once after every optimizer.step() (in Lightning "
            f'"interval": "step"){remedy}. A step of the curve may be something else, such as an '
            f"epoch or an iteration of PPO. {advise_hint('lambda_lr')}"
        )


def _would_change(curves: Sequence[Curve], step: int, last: int) -> bool:
    """Return True if a step for each update would have changed a value, before the curve's end."""
    if not step <= last <= max(curve.total_steps for curve in curves):
        return False
    return any(np.ptp(curve(range(step, last + 1))) for curve in curves)


def _load_message(scheduler: Any, bases: Sequence[float]) -> str:
    """Return the warning about an optimizer that was loaded without its scheduler's state."""
    made = updates_made(scheduler.optimizer)
    peak = one_if_equal([shortest_decimal(base) for base in bases])
    advice = "load the scheduler's state, scheduler.load_state_dict(state)"
    seen = "the optimizer was loaded"
    if made is not None and made > 1:  # one was made since the scheduler was built
        seen = describe_updates(made - 1)
        if scheduler.unit is None:
            advice += f"; or pass last_epoch={made - 2}"
    advice += f". To start at step 0, set the peak, which is {peak} now: scheduler.set_peak({peak})"
    return start_message(seen, advice)


def seems_loaded(optimizer: Optimizer) -> bool:
    """Return True if an optimizer that was not stepped yet has the state of an earlier run."""
    if getattr(optimizer, "_opt_called", False):
        return False
    has_peak = any("initial_lr" in group for group in optimizer.param_groups)
    return has_peak and updates_made(optimizer) != 0


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
