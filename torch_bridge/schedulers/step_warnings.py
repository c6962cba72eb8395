"""Warnings about schedulers whose steps do not fit the updates of their optimizer.

`UpdateHook` has the schedulers of an optimizer checked after 21 updates, 42, 84 and so on until
1344, and then after every 1344. The n updates between two checks are a window. A check judges the
scheduler with the most steps in the window, since several may take turns, as in a `SequentialLR`.
It warns once for each kind of mistake:

    at most n/10 steps, though more would have changed a learning rate     twice in a row, n >= 42
    3n/2 steps or more                                                     twice in a row
    a unit so large that the curve stays where all learning rates are 0    twice in a row
    a step far past the end (`end_message` has the rule)                   at once
    a loaded optimizer, whose scheduler starts at step 0 without a state   before the second update

After every ten of its steps, a scheduler checks that its optimizer still makes updates. It warns if
there was none during 20 steps, while optimizers without a scheduler made 20: then the program has
probably built its optimizer again. An optimizer that has never made an update is not judged, since
DeepSpeed steps one that it has built itself.

A check is silent if the groups do not hold the values that the scheduler wrote last: then a
different scheduler, or a range test, is in charge. A burst of steps, as for a plot, falls into one
window. Steps of a compiled optimizer, or of one without hooks, are not counted. Copies of a
scheduler are not checked.
"""

import math
import weakref
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from torch_bridge.clocks.curve_end import end_message, value_range
from torch_bridge.clocks.saved_states import shown_peaks
from torch_bridge.curve_api import warn
from torch_bridge.param_groups import as_number, is_same, loaded_updates, updates_made

_FIRST_WINDOW = 21
_LONGEST_WINDOW = 1344
_LONG_ENOUGH = 42
"""In a shorter window, one step in nine updates can look like one in ten."""
_LOOK_EVERY = 10
"""The number of steps of a scheduler between two such checks."""


@dataclass
class Steps:
    """The steps of a scheduler since it was built, jumped to another step, or was loaded."""

    first_update: int
    """The number of the optimizer's updates at that time."""
    first_step: int
    """The step of the curve at that time."""
    may_lack_state: bool
    """True for a scheduler that starts at step 0, until its state is loaded or its peak set."""
    was_past_end: bool
    """True if it was far past the end of the curve at that time."""
    total: int = 0
    """The number of steps since."""
    before_window: int = 0
    """The number of them before the present window."""
    window_step: int = 0
    """The step of the curve at the beginning of the present window."""
    next_look: float = 0
    """The number of steps at which the scheduler looks for updates of its optimizer."""
    last_update: int = 0
    """The number of the optimizer's updates at the look before."""
    steps_at_update: int = 0
    """The number of steps at the first look that found this number of updates."""
    unscheduled_at_update: int = 0
    """The number of updates that optimizers without a scheduler had made at that look."""

    @property
    def in_window(self) -> int:
        return self.total - self.before_window


class WeakList:
    """Weak references to objects, the newest last."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[Any]] = []

    def add(self, item: Any) -> None:
        """Add an object at the end, or move it there."""
        self.remove(item)
        self._references.append(weakref.ref(item))

    def remove(self, item: Any) -> None:
        """Remove an object if it is in the list."""
        others = [other for other in self.living() if other is not item]
        self._references = [weakref.ref(other) for other in others]

    def living(self) -> list[Any]:
        """Return the objects that still exist."""
        living: list[Any] = []
        for reference in self._references:
            item = reference()
            if item is not None:
                living.append(item)
        return living


class StepWarnings:
    """Checks the schedulers of one optimizer after some of its updates."""

    def __init__(self) -> None:
        self.next_check: float = math.inf
        """The number of updates before the next check."""
        self._schedulers = WeakList()
        """Each `lambda_lr` of the optimizer."""
        self._start = 0
        """The number of updates when a scheduler was last built, jumped or was loaded."""
        self._window_start = 0
        self.loaded_updates: int | None = 0
        """The updates of the run that the optimizer has loaded; None if they are not known."""
        self._last_mistake: tuple[Any, str] = None, ""
        """The `Steps` of the scheduler that the last check judged, and its mistake, if any."""
        self._warned: set[str] = set()

    def watch(self, scheduler: Any, updates: int, *, may_lack_state: bool = False) -> None:
        """Check a scheduler from now on; the optimizer has made this number of updates."""
        self._schedulers.add(scheduler)
        is_past_end = bool(_end_message(scheduler))
        scheduler._watched_steps = Steps(updates, scheduler.curve_step, may_lack_state, is_past_end)
        scheduler._watched_steps.last_update = updates
        self._start = updates
        self.next_check = updates + 1
        self._begin_window(updates)

    def unwatch(self, scheduler: Any) -> None:
        """Stop checking a scheduler."""
        self._schedulers.remove(scheduler)

    def look_for_updates(self, scheduler: Any, updates: int, unscheduled: int) -> None:
        """Warn once if a different optimizer is trained than that of a scheduler in charge.

        This optimizer has made `updates` updates, and optimizers without a scheduler `unscheduled`.
        """
        steps: Steps = scheduler._watched_steps
        steps.next_look = steps.total + _LOOK_EVERY
        if "no updates" in self._warned:
            steps.next_look = math.inf
            return
        if updates != steps.last_update or steps.total == 0:
            steps.last_update = updates
            steps.steps_at_update = steps.total
            steps.unscheduled_at_update = unscheduled
            return
        idle = steps.total - steps.steps_at_update
        unscheduled_since = unscheduled - steps.unscheduled_at_update
        if updates == 0 or min(idle, unscheduled_since) < 2 * _LOOK_EVERY:
            return
        if any(scheduler._group_curves.bases) and scheduler._group_curves.is_in_charge():
            self._warned.add("no updates")
            warn(
                f"scheduler.step() was called {idle} times since the last step of its optimizer, "
                "while a different optimizer was stepped, whose learning rate it does not set. If "
                "you have built the optimizer again, write scheduler.optimizer = optimizer. If "
                "both are meant to be, turn this warning off: "
                'warnings.filterwarnings("ignore", "scheduler.step")'
            )

    def count_steps(self) -> int:
        """Return the number of steps of all schedulers."""
        return sum(scheduler._watched_steps.total for scheduler in self._schedulers.living())

    def _begin_window(self, updates: int) -> None:
        self._window_start = updates
        for scheduler in self._schedulers.living():
            scheduler._watched_steps.before_window = scheduler._watched_steps.total
            scheduler._watched_steps.window_step = scheduler.curve_step

    def note_load(self, optimizer: Optimizer) -> None:
        """Note how many updates a loaded optimizer has made, before its groups are matched."""
        schedulers = self._schedulers.living()
        made = updates_made(optimizer)
        if not schedulers:
            self.loaded_updates = loaded_updates(optimizer)
        elif made != 0 or not all(map(_has_saved_values, schedulers)):
            self.loaded_updates = made or None
        # Otherwise the optimizer has reloaded its current state, as under accelerate.

    def check(self, updates: int) -> None:
        """Check the schedulers after this number of updates, and warn."""
        since_start = updates - self._start
        if since_start == 1:
            self.next_check = self._start + _FIRST_WINDOW
            message = self._missing_state_message()
        else:
            self.next_check = updates + min(since_start, _LONGEST_WINDOW)
            message = self._window_message(updates)
            self._begin_window(updates)
        if message:
            warn(message)

    def _missing_state_message(self) -> str:
        """Return the warning about an optimizer that was loaded without its scheduler, or ""."""
        made = self.loaded_updates
        schedulers = self._schedulers.living()
        without_state: list[Any] = []
        for scheduler in schedulers:
            # A scheduler past the first step was loaded, or moved by the user.
            if scheduler._watched_steps.may_lack_state and scheduler.last_epoch <= 1:
                without_state.append(scheduler)
        if made == 0 or not without_state:
            return ""
        for scheduler in schedulers:
            scheduler._watched_steps.may_lack_state = False
        scheduler = without_state[0]
        peak = shown_peaks(scheduler._group_curves.bases)
        advice = "load the scheduler's state, scheduler.load_state_dict(state)"
        if made is not None and scheduler.unit is None:
            advice += f"; or pass last_epoch={made - 1}"
        seen = "the optimizer was loaded"
        if made == 1:
            seen = "the optimizer has made 1 update"
        elif made is not None:
            seen = f"the optimizer has made {made} updates"
        return (
            f"{seen}, but the curve started at step 0: {advice}. To start at step 0, set the peak, "
            f"which is {peak} now: scheduler.set_peak({peak})"
        )

    def _window_message(self, updates: int) -> str:
        """Return the warning that is due after the window that ends now, or ""."""
        schedulers = self._schedulers.living()
        in_turn = [scheduler for scheduler in schedulers if scheduler.last_epoch >= 0]
        if not in_turn:
            return ""
        scheduler = max(reversed(in_turn), key=lambda item: item._watched_steps.in_window)
        size = updates - self._window_start
        before = self._last_mistake
        mistake = _mistake_in_window(scheduler, size, updates)
        # The groups may have to be read from the device, so that comes last.
        if not mistake or mistake in self._warned or not scheduler._group_curves.is_in_charge():
            self._last_mistake = None, ""
            return ""
        self._last_mistake = scheduler._watched_steps, mistake
        if mistake == "past the end":
            self._warned.add(mistake)
            return _end_message(scheduler)
        if before != self._last_mistake:
            return ""
        self._warned.add(mistake)
        return _steps_message(scheduler, mistake, size)


def _has_saved_values(scheduler: Any) -> bool:
    """Return True if the loaded groups have the peaks and learning rates of this scheduler."""
    curves = scheduler._group_curves
    groups = scheduler.optimizer.param_groups
    for group, peak, lr in zip(groups, curves.bases, curves.written, strict=False):
        if "initial_lr" in group:
            has_peak = is_same(as_number(group["initial_lr"]), peak)
            has_lr = is_same(as_number(group["lr"]), as_number(lr))
        else:  # the state was saved before a scheduler was built: its learning rate is the peak
            has_peak = True
            has_lr = is_same(as_number(group["lr"]), peak)
        if not (has_peak and has_lr):
            return False
    return True


def _mistake_in_window(scheduler: Any, size: int, updates: int) -> str:
    """Return the mistake in a window of `size` updates, which ends after `updates`, or "".

    It is "past the end", "often", "stuck" or "rarely": see the top of this file.
    """
    steps: Steps = scheduler._watched_steps
    if not any(scheduler._group_curves.bases):
        return ""  # it trains nothing
    if steps.in_window > 0 and not steps.was_past_end and _end_message(scheduler):
        return "past the end"
    moved = steps.in_window
    if scheduler.unit is not None:
        # Each process may step with its own count, so that calls outnumber updates.
        moved = min(moved, scheduler.curve_step - steps.window_step)
    # The ends of a window may cut a group of steps: hence the small margins here and below.
    if 2 * moved >= 3 * (size - 1):
        return "often"
    has_not_moved = scheduler.unit is not None and scheduler.curve_step == steps.first_step
    if has_not_moved and steps.in_window > 0 and not any(scheduler.get_lr()):
        return "stuck"
    is_rare = size >= _LONG_ENOUGH and 9.5 * steps.in_window <= size
    if is_rare and _would_change(scheduler, updates):
        return "rarely"
    return ""


def _would_change(scheduler: Any, updates: int) -> bool:
    """Return True if a scheduler step after each update would have changed a learning rate."""
    steps: Steps = scheduler._watched_steps
    moved = updates - steps.first_update
    if steps.total > 0:  # with a clock, the run moves along the curve at a different pace
        moved = moved * (scheduler.curve_step - steps.first_step) // steps.total
    last = max(steps.first_step + moved, scheduler.curve_step)
    for curve, base in zip(
        scheduler._group_curves.curves, scheduler._group_curves.bases, strict=True
    ):
        low, high = value_range(curve, scheduler.curve_step, last)
        if base * (high - low) > 0:
            return True
    return False


def _end_message(scheduler: Any) -> str:
    return end_message(
        scheduler._group_curves.curves, scheduler.unit, scheduler.curve_step, scheduler.last_epoch
    )


def _steps_message(scheduler: Any, mistake: str, size: int) -> str:
    unit = scheduler.unit
    calls = scheduler._watched_steps.in_window
    seen = f"scheduler.step() was called {calls} times in the last {size} optimizer steps"
    if mistake == "stuck":
        return (
            f"{seen}, and the curve stays at step {scheduler.curve_step}, where every learning "
            f"rate is 0: all updates consumed {scheduler.consumed} in units of {unit}. Choose a "
            "unit of at most what an update consumes, and check the counts"
        )
    call = "scheduler.step()"
    if unit is not None:
        call = "scheduler.step(count=n)"
    advice = f'Call {call} once after every optimizer.step() (in Lightning "interval": "step")'
    if unit is not None:
        advice += ", where n is what that update consumed"
    elif mistake == "rarely":
        advice += ", with total_steps = count_updates(loader, epochs)"
    if mistake == "often" and unit is None:
        advice += (
            ". Most often the reason is accelerate, which steps a prepared scheduler once for each "
            "process: build the scheduler with clock=DataClock(accelerator.num_processes, count=1)"
        )
    return (
        f"{seen}. {advice}. If the curve is meant to count something else, turn this warning off: "
        'warnings.filterwarnings("ignore", "scheduler.step")'
    )
