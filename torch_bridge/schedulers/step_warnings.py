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

This file knows no scheduler: each one keeps a `WatchedScheduler` of itself up to date.
"""

import math
import weakref
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch.optim import Optimizer

from torch_bridge.clocks.host_clock import UpdateClock
from torch_bridge.clocks.position_warnings import (
    describe_updates,
    end_message,
    start_message,
    stuck_message,
    value_range,
)
from torch_bridge.clocks.saved_states import shown_peaks
from torch_bridge.curve_api import warn
from torch_bridge.param_groups import as_number, is_same, loaded_updates, updates_made
from torch_bridge.schedulers.group_curves import GroupCurves

_FIRST_WINDOW = 21
_LONGEST_WINDOW = 1344
_LONG_ENOUGH = 42
"""In a shorter window, one step in nine updates can look like one in ten."""
_LOOK_EVERY = 10
"""The number of steps of a scheduler between two such checks."""


_Item = TypeVar("_Item")


@dataclass(eq=False, slots=True, weakref_slot=True)
class WatchedScheduler:
    """A scheduler's position, and its steps since it was built, jumped, or was loaded.

    The scheduler keeps this alive, and updates it at every move.
    """

    group_curves: GroupCurves
    clock: UpdateClock
    """The clock after the last move."""
    last_epoch: int
    """The `last_epoch` of the scheduler after the last move. A program may have changed it since,
    or torch's `SequentialLR`, which takes back the first steps of schedulers that wait."""
    first_update: int
    """The number of the optimizer's updates at the beginning."""
    may_lack_state: bool
    """True for a scheduler that starts at step 0, until its state is loaded or its peak set."""
    first_step: int = field(init=False)
    """The step of the curve at the beginning."""
    was_past_end: bool = field(init=False)
    """True if it was far past the end of the curve at the beginning."""
    total: int = 0
    """The number of steps since."""
    before_window: int = 0
    """The number of them before the present window."""
    window_step: int = 0
    """The step of the curve at the beginning of the present window."""
    next_look: float = 0
    """The number of steps at which the scheduler looks for updates of its optimizer."""
    last_update: int = field(init=False)
    """The number of the optimizer's updates at the previous look."""
    steps_at_update: int = 0
    """The number of steps at the first look that found this number of updates."""
    unscheduled_at_update: int = 0
    """The number of updates that optimizers without a scheduler had made at that look."""

    def __post_init__(self) -> None:
        self.first_step = self.curve_step
        self.was_past_end = bool(self.end_message())
        self.last_update = self.first_update

    @property
    def unit(self) -> int | None:
        return self.clock.checked.unit

    @property
    def curve_step(self) -> int:
        return self.clock.step(self.last_epoch)

    @property
    def in_window(self) -> int:
        return self.total - self.before_window

    def end_message(self) -> str:
        """Return the warning that is due if the run is far past the end of the curve, or ""."""
        curves = self.group_curves.curves
        return end_message(curves, self.unit, self.curve_step, self.last_epoch)


class WeakList(Generic[_Item]):
    """Weak references to objects, the newest last."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[_Item]] = []

    def add(self, item: _Item) -> None:
        """Add an object at the end, or move it there."""
        self.remove(item)
        self._references.append(weakref.ref(item))

    def remove(self, item: _Item) -> None:
        """Remove an object if it is in the list."""
        others = [other for other in self.living() if other is not item]
        self._references = [weakref.ref(other) for other in others]

    def living(self) -> list[_Item]:
        """Return the objects that still exist."""
        living: list[_Item] = []
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
        self._schedulers = WeakList[WatchedScheduler]()
        """The schedulers of the optimizer; the last one was built, jumped or was loaded last."""
        self._start = 0
        """The number of updates when a scheduler was last built, jumped or was loaded."""
        self._window_start = 0
        self.loaded_updates: int | None = 0
        """The updates of the run that the optimizer has loaded; None if they are not known."""
        self._last_mistake: tuple[weakref.ref[WatchedScheduler] | None, str] = None, ""
        """The scheduler that the last check judged, and its mistake, if any."""
        self._warned: set[str] = set()

    def watch(self, scheduler: WatchedScheduler) -> None:
        """Check a scheduler from now on, which was built, has jumped or was loaded."""
        self._schedulers.add(scheduler)
        updates = scheduler.first_update
        self._start = updates
        self.next_check = updates + 1
        self._begin_window(updates)

    def unwatch(self, scheduler: WatchedScheduler) -> None:
        """Stop checking a scheduler."""
        self._schedulers.remove(scheduler)

    def begin_turn(self, scheduler: WatchedScheduler) -> None:
        """Judge this scheduler rather than others that have made as many steps."""
        self._schedulers.add(scheduler)

    def look_for_updates(self, scheduler: WatchedScheduler, updates: int, unscheduled: int) -> None:
        """Warn once if a different optimizer is trained than that of a scheduler in charge.

        This optimizer has made `updates` updates, and optimizers without a scheduler `unscheduled`.
        """
        scheduler.next_look = scheduler.total + _LOOK_EVERY
        if "no updates" in self._warned:
            scheduler.next_look = math.inf
            return
        if updates != scheduler.last_update or scheduler.total == 0:
            scheduler.last_update = updates
            scheduler.steps_at_update = scheduler.total
            scheduler.unscheduled_at_update = unscheduled
            return
        idle = scheduler.total - scheduler.steps_at_update
        unscheduled_since = unscheduled - scheduler.unscheduled_at_update
        if updates == 0 or min(idle, unscheduled_since) < 2 * _LOOK_EVERY:
            return
        if any(scheduler.group_curves.bases) and scheduler.group_curves.is_in_charge():
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
        return sum(scheduler.total for scheduler in self._schedulers.living())

    def _begin_window(self, updates: int) -> None:
        self._window_start = updates
        for scheduler in self._schedulers.living():
            scheduler.before_window = scheduler.total
            scheduler.window_step = scheduler.curve_step

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
        without_state: list[WatchedScheduler] = []
        for scheduler in schedulers:
            # A scheduler past the first step was loaded, or moved by the user.
            if scheduler.may_lack_state and scheduler.last_epoch <= 1:
                without_state.append(scheduler)
        if made == 0 or not without_state:
            return ""
        for scheduler in schedulers:
            scheduler.may_lack_state = False
        scheduler = without_state[-1]
        peak = shown_peaks(scheduler.group_curves.bases)
        advice = "load the scheduler's state, scheduler.load_state_dict(state)"
        if made is not None and scheduler.unit is None:
            advice += f"; or pass last_epoch={made - 1}"
        advice += (
            f". To start at step 0, set the peak, which is {peak} now: scheduler.set_peak({peak})"
        )
        seen = "the optimizer was loaded"
        if made is not None:
            seen = describe_updates(made)
        return start_message(seen, advice)

    def _window_message(self, updates: int) -> str:
        """Return the warning that is due after the window that ends now, or ""."""
        schedulers = self._schedulers.living()
        in_turn = [scheduler for scheduler in schedulers if scheduler.last_epoch >= 0]
        if not in_turn:
            return ""
        scheduler = max(reversed(in_turn), key=lambda item: item.in_window)
        size = updates - self._window_start
        before = self._last_mistake
        mistake = _mistake_in_window(scheduler, size, updates)
        # The groups may have to be read from the device, so that comes last.
        if not mistake or mistake in self._warned or not scheduler.group_curves.is_in_charge():
            self._last_mistake = None, ""
            return ""
        self._last_mistake = weakref.ref(scheduler), mistake
        if mistake == "past the end":
            self._warned.add(mistake)
            return scheduler.end_message()
        if before != self._last_mistake:
            return ""
        self._warned.add(mistake)
        return _steps_message(scheduler, mistake, size)


def _has_saved_values(scheduler: WatchedScheduler) -> bool:
    """Return True if the loaded groups have the peaks and learning rates of this scheduler."""
    curves = scheduler.group_curves
    groups = curves.optimizer.param_groups
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


def _mistake_in_window(scheduler: WatchedScheduler, size: int, updates: int) -> str:
    """Return the mistake in a window of `size` updates, which ends after `updates`, or "".

    It is "past the end", "often", "stuck" or "rarely": see the top of this file.
    """
    if not any(scheduler.group_curves.bases):
        return ""  # it trains nothing
    if scheduler.in_window > 0 and not scheduler.was_past_end and scheduler.end_message():
        return "past the end"
    moved = scheduler.in_window
    if scheduler.unit is not None:
        # Each process may step with its own count, so that calls outnumber updates.
        moved = min(moved, scheduler.curve_step - scheduler.window_step)
    # The ends of a window may cut a group of steps: hence the small margins here and below.
    if 2 * moved >= 3 * (size - 1):
        return "often"
    has_not_moved = scheduler.unit is not None and scheduler.curve_step == scheduler.first_step
    if has_not_moved and scheduler.in_window > 0 and not any(scheduler.group_curves.written):
        return "stuck"
    is_rare = size >= _LONG_ENOUGH and 9.5 * scheduler.in_window <= size
    if is_rare and _would_change(scheduler, updates):
        return "rarely"
    return ""


def _would_change(scheduler: WatchedScheduler, updates: int) -> bool:
    """Return True if a scheduler step after each update would have changed a learning rate."""
    moved = updates - scheduler.first_update
    if scheduler.total > 0:  # with a clock, the run moves along the curve at a different pace
        moved = moved * (scheduler.curve_step - scheduler.first_step) // scheduler.total
    last = max(scheduler.first_step + moved, scheduler.curve_step)
    group_curves = scheduler.group_curves
    for curve, base in zip(group_curves.curves, group_curves.bases, strict=True):
        low, high = value_range(curve, scheduler.curve_step, last)
        if base * (high - low) > 0:
            return True
    return False


def _steps_message(scheduler: WatchedScheduler, mistake: str, size: int) -> str:
    unit = scheduler.unit
    calls = scheduler.in_window
    seen = f"scheduler.step() was called {calls} times in the last {size} optimizer steps"
    if mistake == "stuck" and unit is not None:
        consumed = scheduler.clock.consumed(scheduler.last_epoch)
        return f"{seen}, and {stuck_message(scheduler.curve_step, unit, consumed)}"
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
