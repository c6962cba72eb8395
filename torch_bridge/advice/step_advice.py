"""Warnings about a scheduler whose steps do not fit the updates of its optimizer.

`lambda_lr` lists them under `Warns`. A hook on the optimizer counts updates. The count begins again
when the scheduler is copied, moved or loaded, or its peaks are set, but not after update 168, when
the next step removes the hook. While a different scheduler has written the groups, no warning is
given. Updates of a compiled optimizer, or of one without hooks, are not counted.
"""

import weakref
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from plateau_jax.arguments import checks
from plateau_jax.clocks.clock import CheckedClock
from plateau_jax.clocks.position import Position
from plateau_jax.runs.record import shortest_decimal
from plateau_jax.runs.schedules import Schedules
from torch_bridge.advice.position_advice import advise_hint, describe_updates, start_message
from torch_bridge.groups.optimizers import groups_of, unwrap, updates_made
from torch_bridge.groups.options import one_if_equal

_TOO_MANY_CHECK = 57
"""Before this update, a check for too many steps."""
_TOO_FEW_CHECK = 168
"""Before this update, a check for too few steps, the last one."""

_STEPS_REMEDY = (
    'Call it once after every optimizer.step() (in Lightning "interval": "step"), with total_steps '
    "= count_updates(loader, epochs); or, with a DataClock, step(count=n), where n is what the "
    "update consumed, and a unit of at most n. Under gradient accumulation, do not call it after "
    "each micro-batch. accelerate by default steps a prepared scheduler once for each process: "
    "build the scheduler with clock=DataClock(accelerator.num_processes, count=1). A step of the "
    "curve may be something else, such as an epoch or an iteration of PPO. "
    f"{advise_hint('lambda_lr')}"
)


class StepAdvice:
    """The warnings before the updates of one scheduler's optimizer, from the position `began` on.

    `value_message` is the warning before update 0, or "". Without `counts_steps`, it is the only
    one. `was_loaded` says that the optimizer seems to have been loaded before the scheduler was
    built.
    """

    def __init__(
        self,
        clock: CheckedClock,
        began: Position,
        value_message: str,
        *,
        was_loaded: bool,
        counts_steps: bool,
    ) -> None:
        self._clock = clock
        self._began = began
        self._value_message = value_message
        self._was_loaded = was_loaded
        self._last_check = _TOO_FEW_CHECK if counts_steps else 0
        self._updates = 0

    @property
    def has_counted_all(self) -> bool:
        """True after the last check."""
        return self._updates > self._last_check

    def count_update(
        self,
        optimizer: Optimizer,
        position: Position,
        schedules: Schedules,
        has_loaded: Callable[[], bool],
    ) -> str:
        """Count an update, and return the warning that is due before it, or "".

        `schedules` are those of the last step, without later changes by the program. `has_loaded`
        returns True if the optimizer has loaded values that the scheduler did not write.
        """
        if position.updates < 0:  # it waits for its turn in a `SequentialLR`
            return ""
        updates = self._updates
        self._updates += 1
        if updates == 0:
            self._was_loaded |= self._began.updates <= 0 and has_loaded()
            return self._value_message if position.updates == self._began.updates else ""
        if updates == 1 and self._was_loaded and position.updates <= 1:
            return self._load_message(optimizer, schedules.bases)
        if updates in (_TOO_MANY_CHECK, _TOO_FEW_CHECK) and any(schedules.bases):
            return self._steps_message(position, schedules, updates)
        return ""

    def _steps_message(self, position: Position, schedules: Schedules, updates: int) -> str:
        steps = position.updates - self._began.updates
        moved = steps  # also those that a hold rule has held
        if self._clock.unit is not None:
            moved = position.step - self._began.step
        if updates == _TOO_MANY_CHECK:
            is_wrong = min(steps, moved) >= 1.5 * (updates - 1)
        elif 0 == moved < steps:  # the unit is large, which is right if there is a learning rate
            is_wrong = not any(schedules.values_at(position.step))
        else:
            is_wrong = 10 * steps <= updates and self._would_change(schedules, position)
        if not is_wrong:
            return ""
        calls = checks.plural(steps, "time")
        return (
            f"scheduler.step() was called {calls} in {updates} optimizer steps, and moved to step "
            f"{position.step} of the curve. {_STEPS_REMEDY}"
        )

    def _would_change(self, schedules: Schedules, position: Position) -> bool:
        """Return True if a step for each update would have changed a value.

        If they would have passed the end, a step may be meant to be an epoch of many updates. But
        updates before the first step change nothing if their learning rates are 0.
        """
        step, last = position.step, self._began.step + _TOO_FEW_CHECK
        end = max(curve.total_steps for curve in schedules.curves)
        if last > end and (step > self._began.step or any(schedules.values_at(step))):
            return False
        ahead = range(step, min(last, end) + 1)
        return len(ahead) > 0 and any(np.ptp(curve(ahead)) for curve in schedules.curves)

    def _load_message(self, optimizer: Optimizer, bases: Sequence[float]) -> str:
        """Return the warning about an optimizer that was loaded without its scheduler's state."""
        made = updates_made(optimizer)
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


def call_before_updates(optimizer: Optimizer, method: MethodType) -> Callable[[], None] | None:
    """Call a method of a scheduler before each update of its optimizer.

    The reference to the scheduler is weak: an optimizer keeps its hooks, and must not keep a
    scheduler that nobody uses any more. Return a function that removes the hook; None if the
    optimizer runs no hooks.
    """
    for inner in unwrap(optimizer):
        hooks = getattr(inner, "_optimizer_step_pre_hooks", None)
        # Torch marks the `step` of a class that runs hooks, in the constructor of its first
        # instance. A wrapper may run none.
        if hooks is not None and hasattr(inner.__class__.step, "hooked"):
            break
    else:
        return None
    reference = weakref.WeakMethod(method)

    def hook(*_: Any) -> None:
        before_update = reference()
        # Not in an update that is only compiled or captured.
        if before_update is not None and not is_dynamo_compiling() and not _is_capturing():
            before_update()

    remove = weakref.finalize(method.__self__, inner.register_step_pre_hook(hook).remove)
    remove.atexit = False

    def stop() -> None:
        # While a hook of the program runs, torch iterates over the hooks, and they cannot be
        # changed. So next to other hooks this one stays.
        if len(hooks) == 1:
            remove()

    return stop


def seems_loaded(optimizer: Optimizer) -> bool:
    """Return True if an optimizer that was not stepped yet has the state of an earlier run."""
    if getattr(optimizer, "_opt_called", False):
        return False
    has_peak = any("initial_lr" in group for group in groups_of(optimizer))
    return has_peak and updates_made(optimizer) not in (0, 1)  # a single one may be torch's


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
