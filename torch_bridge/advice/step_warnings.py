"""Warnings about schedulers whose steps do not fit the updates of their optimizer.

The schedulers of an optimizer are checked before its first update and its second one, then after 21
updates, 42, 84 and so on until 1344, and then after every 1344. The n updates between two of the
later checks are a window. A check judges the scheduler with the most steps in the window, since
several may take turns, as in a `SequentialLR`. It warns once for each kind of mistake:

    an lr that is neither the peak nor what a scheduler wrote              before the first update
    a loaded optimizer, whose scheduler starts at step 0 without a state   before the second update
    at most n/10 steps, though more would have changed a learning rate     twice in a row, n >= 42
    3n/2 steps or more                                                     twice in a row
    one step for each update, where the clock expects one per process      twice in a row
    a unit so large that the curve stays where all learning rates are 0    twice in a row
    a step far past the end (`end_message` has the rule)                   at once

A curve that would be over if its steps were updates counts something else, such as the iterations
of PPO, and may be stepped rarely, though not never. A check of a window is silent if the groups do
not have the values that the scheduler wrote last: then a different scheduler, or a range test, is
in charge. A burst of steps, as for a plot, falls into one window. Steps of a compiled optimizer, or
of one without hooks, are not counted. Copies of a scheduler are not checked.

Nothing here changes a value, and a scheduler with `advise=False` is unknown here.
"""

import math
import weakref
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from torch_bridge.advice.position_warnings import (
    advise_hint,
    describe_updates,
    end_message,
    start_message,
    stuck_message,
    value_range,
)
from torch_bridge.curve_api import (
    UpdateClock,
    one_if_equal,
    shortest_decimal,
    shortest_decimals,
    warn,
)
from torch_bridge.distributed.processes import world_size
from torch_bridge.groups.group_curves import GroupCurves
from torch_bridge.groups.options import as_number, is_same
from torch_bridge.optimizer_traits import updates_made

_FIRST_WINDOW = 21
_LONGEST_WINDOW = 1344
_LONG_ENOUGH = 42
"""In a shorter window, one step in nine updates can look like one in ten."""

Event = Literal["built", "started", "stepped", "matched", "moved", "peak set"]
"""What a scheduler has done. "started": torch's first step, which may repeat. "matched": the groups
had changed. "moved": a jump, a load, or a different optimizer."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class WatchedScheduler:
    """A scheduler's position, and its steps since it was built or moved.

    The scheduler keeps this alive, and notes each event. Build it before the scheduler writes.
    """

    warnings: "StepWarnings"
    """Those of the optimizer."""
    group_curves: GroupCurves
    clock: UpdateClock
    """The clock after the last event."""
    last_epoch: int = -1
    """The `last_epoch` of the scheduler after the last event. A program may have changed it since,
    or torch's `SequentialLR`, which takes back the first steps of schedulers that wait."""
    may_lack_state: bool = False
    """True for a scheduler that starts at step 0, until its state is loaded or its peak set."""
    peak_message: str = field(init=False)
    """The warning that is due about the peak, or ""."""
    first_update: int = 0
    """The number of the optimizer's updates when counting began."""
    first_step: int = 0
    """The step of the curve when counting began."""
    was_past_end: bool = False
    """True if it was far past the end of the curve when counting began."""
    total: int = 0
    """The number of steps since."""
    before_window: int = 0
    """The number of them before the present window."""
    window_step: int = 0
    """The step of the curve at the beginning of the present window."""

    def __post_init__(self) -> None:
        self.peak_message = self.warnings.describe_changed_lr(self.group_curves)

    @property
    def unit(self) -> int | None:
        return self.clock.checked.unit

    @property
    def curve_step(self) -> int:
        return self.clock.step(self.last_epoch)

    @property
    def in_window(self) -> int:
        return self.total - self.before_window

    def note(self, event: Event, last_epoch: int, clock: UpdateClock) -> None:
        """Note what the scheduler has done, and where it is now."""
        self.last_epoch = last_epoch
        self.clock = clock
        if event == "stepped":
            self.total += 1
            return
        group_curves = self.group_curves
        self.warnings.last_write = group_curves.groups, group_curves.written
        if event == "started":
            self.warnings.begin_turn(self)
        if event in ("started", "matched"):
            return
        is_new = event == "built" and last_epoch <= 0
        self.may_lack_state = is_new and not self.warnings.was_stepped(group_curves.optimizer)
        if not is_new:
            self.peak_message = ""
        if event != "peak set":
            self._begin()

    def _begin(self) -> None:
        """Begin to count steps here."""
        self.first_update = self.warnings.updates
        self.first_step = self.curve_step
        self.was_past_end = bool(self.end_message())
        self.total = 0
        self.warnings.watch(self)

    def end_message(self) -> str:
        """Return the warning that is due if the run is far past the end of the curve, or ""."""
        curves = self.group_curves.curves
        return end_message(curves, self.unit, self.curve_step, self.last_epoch, "lambda_lr")


class StepWarnings:
    """Counts the updates of one optimizer, and checks its schedulers after some of them."""

    def __init__(self) -> None:
        self.updates = 0
        """The number of updates so far."""
        self.last_write: tuple[list[dict[str, Any]], list[Any]] = [], []
        """The groups into which a scheduler has written last, and their learning rates. These are
        its own lists, which it keeps up to date, and which outlive it."""
        self._next_check: float = math.inf
        """The number of updates before the next check."""
        self._schedulers = weakref.WeakKeyDictionary[WatchedScheduler, None]()
        """The schedulers of the optimizer; the last one was built or moved last."""
        self._start = 0
        """The number of updates when a scheduler was last built or moved."""
        self._window_start = 0
        self._loaded_updates: int | None = 0
        """The updates of the run that the optimizer has loaded; None if they are not known."""
        self._last_mistake: tuple[weakref.ref[WatchedScheduler] | None, str] = None, ""
        """The scheduler that the last check judged, and its mistake, if any."""
        self._warned: set[str] = set()
        self._stepped_groups = set[int]()
        """The groups that the present update has stepped, by identity."""
        self._scheduler_steps = -1
        """The steps of all schedulers before the present update."""

    # Events of the optimizer.

    def begin(self, optimizer: Optimizer) -> None:
        """Look at an optimizer that has no scheduler of this library yet."""
        groups = optimizer.param_groups
        if groups and "initial_lr" in groups[0]:  # a scheduler wrote it, maybe before a load
            self._loaded_updates = updates_made(optimizer)

    def before_update(self, optimizer: Optimizer) -> None:
        """Count an update that begins; check the schedulers if a check is due."""
        if not self._begins_update(optimizer.param_groups):
            return
        # While a graph is captured, nothing can be read from the device.
        if self.updates >= self._next_check and not _is_capturing():
            self._check()
        self.updates += 1

    def _begins_update(self, groups: list[dict[str, Any]]) -> bool:
        """Return False if this call belongs to the same update as the previous call.

        DeepSpeed calls the optimizer's step once per group, and shows that group alone, or empties
        the other groups.
        """
        stepped = {id(group) for group in groups if group["params"]}
        scheduler_steps = sum(scheduler.total for scheduler in list(self._schedulers))
        no_scheduler_stepped = scheduler_steps == self._scheduler_steps
        if no_scheduler_stepped and self._stepped_groups.isdisjoint(stepped):
            self._stepped_groups |= stepped
            return False
        self._stepped_groups = stepped
        self._scheduler_steps = scheduler_steps
        return True

    def after_load(self, optimizer: Optimizer) -> None:
        """Note how many updates a loaded optimizer has made."""
        self._scheduler_steps = -1  # the next call begins an update, although its groups are new
        if self.last_write[0]:  # the loaded learning rates are those of a scheduler too
            groups = list(optimizer.param_groups)
            self.last_write = groups, [as_number(group["lr"]) for group in groups]
        schedulers = list(self._schedulers)
        made = updates_made(optimizer)
        if not schedulers:
            self.begin(optimizer)
        elif made != 0 or not all(map(_has_saved_values, schedulers)):
            self._loaded_updates = made or None
        # Otherwise the optimizer has reloaded its current state, as under accelerate.

    # Events of the schedulers.

    def watch(self, scheduler: WatchedScheduler) -> None:
        """Check a scheduler from now on, which was built or has moved."""
        self.begin_turn(scheduler)
        self._start = self.updates
        self._next_check = self.updates
        self._begin_window()

    def begin_turn(self, scheduler: WatchedScheduler) -> None:
        """Judge this scheduler rather than others that have made as many steps."""
        self._schedulers.pop(scheduler, None)
        self._schedulers[scheduler] = None

    def was_stepped(self, optimizer: Optimizer) -> bool:
        """Return True if the optimizer was stepped here, so that its run is under way."""
        # Torch sets `_opt_called` at a step under one of its schedulers.
        return self.updates > 0 or bool(getattr(optimizer, "_opt_called", False))

    def describe_changed_lr(self, group_curves: GroupCurves) -> str:
        """Return the warning about a learning rate that is not the peak and of unknown origin.

        It is due for a scheduler that is built after an earlier one has written the groups.
        """
        written = {id(group): lr for group, lr in zip(*self.last_write, strict=False)}
        changed: dict[int, float] = {}
        peaks: list[float] = []
        for index, group in enumerate(group_curves.groups):
            lr = as_number(group["lr"])
            peak = group_curves.bases[index]
            peaks.append(shortest_decimal(peak))
            expected = [peak, as_number(written.get(id(group), lr))]
            if not any(is_same(lr, number) for number in expected):
                changed[index] = peaks[index] = shortest_decimal(lr)
        if not changed:
            return ""
        index, lr = next(iter(changed.items()))
        peak = shortest_decimal(group_curves.bases[index])
        return (
            f"param_groups[{index}] had lr = {lr} and, from an earlier scheduler, initial_lr = "
            f"{peak}, which is the peak now. To use lr as the peak, call "
            f'scheduler.set_peak({one_if_equal(peaks)}), or write del group["initial_lr"] before '
            "you build the scheduler. To use initial_lr without this warning, write "
            'group["lr"] = group["initial_lr"] before. If one of torch\'s schedulers wrote lr, '
            f"nothing is wrong. {advise_hint('lambda_lr')}"
        )

    # Checks.

    def _begin_window(self) -> None:
        self._window_start = self.updates
        for scheduler in list(self._schedulers):
            scheduler.before_window = scheduler.total
            scheduler.window_step = scheduler.curve_step

    def _check(self) -> None:
        """Check the schedulers before the next update, and warn."""
        since_start = self.updates - self._start
        if since_start == 0:
            self._next_check = self._start + 1
            message = self._peak_message()
        elif since_start == 1:
            self._next_check = self._start + _FIRST_WINDOW
            message = self._missing_state_message()
        else:
            self._next_check = self.updates + min(since_start, _LONGEST_WINDOW)
            message = self._window_message()
            self._begin_window()
        if message:
            warn(message)

    def _peak_message(self) -> str:
        """Return the warning about a group of which `lr` and `initial_lr` disagree, or ""."""
        message = ""
        for scheduler in list(self._schedulers):
            message = scheduler.peak_message or message
            scheduler.peak_message = ""
        return message

    def _missing_state_message(self) -> str:
        """Return the warning about an optimizer that was loaded without its scheduler, or ""."""
        made = self._loaded_updates
        schedulers = list(self._schedulers)
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
        peak = one_if_equal(shortest_decimals(scheduler.group_curves.bases))
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

    def _window_message(self) -> str:
        """Return the warning that is due after the window that ends now, or ""."""
        schedulers = list(self._schedulers)
        in_turn = [scheduler for scheduler in schedulers if scheduler.last_epoch >= 0]
        if not in_turn:
            return ""
        scheduler = max(reversed(in_turn), key=lambda item: item.in_window)
        size = self.updates - self._window_start
        before = self._last_mistake
        mistake = _mistake_in_window(scheduler, size, self.updates)
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


def _is_capturing() -> bool:
    """Return True while a CUDA graph is captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


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

    It is "past the end", "often", "not by each process", "stuck" or "rarely": see the top of this
    file.
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
    if _expects_each_process(scheduler) and 0 < 2 * scheduler.in_window <= 3 * (size + 1):
        return "not by each process"
    has_not_moved = scheduler.unit is not None and scheduler.curve_step == scheduler.first_step
    if has_not_moved and scheduler.in_window > 0 and not any(scheduler.group_curves.written):
        return "stuck"
    is_rare = size >= _LONG_ENOUGH and 9.5 * scheduler.in_window <= size
    if not is_rare or _counts_something_else(scheduler, size, updates):
        return ""
    if _would_change(scheduler, updates):
        return "rarely"
    return ""


def _expects_each_process(scheduler: WatchedScheduler) -> bool:
    """Return True if a step of the curve is a call of each process, as accelerate makes them."""
    ranks = world_size()
    return ranks > 1 and scheduler.unit == ranks and scheduler.clock.checked.count == 1


def _counts_something_else(scheduler: WatchedScheduler, size: int, updates: int) -> bool:
    """Return True if the curve would be over by now with a step for each update.

    False for a scheduler without a step in the longest window: the program has forgotten it.
    """
    if scheduler.unit is not None or (scheduler.total == 0 and size >= _LONGEST_WINDOW):
        return False
    total = max(curve.total_steps for curve in scheduler.group_curves.curves)
    return scheduler.first_step + updates - scheduler.first_update > total


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


_FURTHER_ADVICE = {
    "rarely": ", with total_steps = count_updates(loader, epochs)",
    "often": (
        ". Under gradient accumulation, do not call it after each micro-batch. accelerate by "
        "default steps a prepared scheduler once for each process: build the scheduler with "
        "clock=DataClock(accelerator.num_processes, count=1). With "
        "step_scheduler_with_optimizer=False it steps at each call: call scheduler.step() only "
        "if accelerator.sync_gradients, without this clock"
    ),
}
"""How to correct each mistake, if a step of the curve is an update."""


def _steps_message(scheduler: WatchedScheduler, mistake: str, size: int) -> str:
    unit = scheduler.unit
    calls = scheduler.in_window
    seen = f"scheduler.step() was called {calls} times in the last {size} optimizer steps"
    if mistake == "stuck" and unit is not None:
        consumed = scheduler.clock.consumed(scheduler.last_epoch)
        return f"{seen}, and {stuck_message(scheduler.curve_step, unit, consumed)}"
    if mistake == "not by each process":
        return (
            f"{seen}, but DataClock({unit}, count=1) needs {unit} calls for a step of the curve. "
            "With split_batches=True, or step_scheduler_with_optimizer=False, accelerate steps a "
            f"scheduler once per update: leave out the clock. {advise_hint('lambda_lr')}"
        )
    when = 'once after every optimizer.step() (in Lightning "interval": "step")'
    if unit is not None:
        advice = f"Call scheduler.step(count=n) {when}, where n is what that update consumed"
    else:
        advice = f"Call scheduler.step() {when}{_FURTHER_ADVICE[mistake]}"
    return (
        f"{seen}. {advice}. A step of the curve may be something else, such as an epoch or an "
        f"iteration of PPO. {advise_hint('lambda_lr')}"
    )
