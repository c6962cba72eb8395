"""Warnings about the calls of a scheduler or follower that do not fit the updates of its optimizer.

    seen                                                        means                          said

    step() of schedulers and followers:
    R1  no step in 20 updates, all at learning rate 0 *         forgotten                      call it
    R2  no step in the first 500 (1000, 2000, …) updates **     forgotten                      call it
    R3  a step after 10 or more updates, all at rate 0 *        once per epoch                 each update
    R4  after 50 or more, twice in a row;                       once per epoch                 each update
        after 10 or more, three times in a row **
    R5  two or more steps after one update, three times         once per process               once
    R6  a curve stepped after another one was, which was        one curve wins in              curve=[…]
        stepped after this one; neither is at its end           all groups

    the clock:
    R7  20 updates do not fill a unit, at learning rate 0 *     unit too large                 smaller unit
    R8  more than 10 steps and 1 % past the end, at rate 0      curve too short                more steps
    R9  past 10 times the steps, and 1000 updates past the      it counts epochs, or the       more steps,
        end, unless that is the highest level                   unit is too small              larger unit

    the first step of a scheduler from step 0, unless it has loaded its state or its peak was set:
    R10 lr is neither initial_lr nor what a scheduler wrote     the old peak is used, not      both numbers
    R11 a loaded initial_lr is not the optimizer's own lr       the new learning rate
    R12 a loaded optimizer has made updates                     state not loaded               load it
    R13 no update so far                                        wrong order                    as torch

    a compiled optimizer step:
    R14 Adam, learning rate 0, a second moment still 0          0 · ∞ = NaN                    start above 0

*  Further steps would raise the learning rate.
** A step for each of these updates would have changed a value, and the groups hold the values that this
   scheduler or follower wrote last. Otherwise somebody else is in charge: another scheduler, a range test.

R1–R5 and R7 together warn once, also over a resume; each other row warns once. Consecutive steps count as one
repetition, so plotting by calling `step()` does not warn, nor fast-forwarding a run, nor stepping after an
update that fp16 occasionally skips. A step that a sequence or a load makes begins the count anew. In R6 each
of the steps must be the only one since an update. Compiled optimizer steps are not counted, nor those of an
optimizer without hooks. A learning rate on a device is read only if all else calls for a warning.

`update_counter` has what an optimizer shows, `curve_end` has R8 and R9, `earlier_run` has R10–R12.
"""

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_bridge.curve_api import warn
from torch_bridge.schedulers import step_messages as messages
from torch_bridge.schedulers.curve_end import CurveEnd, value_range
from torch_bridge.schedulers.earlier_run import EarlierRun
from torch_bridge.schedulers.group_curves import map_curves
from torch_bridge.schedulers.update_counter import FORGOTTEN_STEPS, UpdateCounter, innermost

LATE_STEPS = 10
"""A step after this many updates, three times in a row, looks like one per epoch."""

EPOCH_STEPS = 50
"""A step after this many updates, twice in a row, looks like one per epoch."""

NEVER_STEPS = 500
"""After this many updates without a first step, it seems forgotten."""

STUCK_STEPS = 20
"""After this many updates at learning rate 0 that do not fill a unit, the unit seems too large."""


class StepWatch:
    """Compares the steps of a scheduler or follower with its optimizer's updates, by the rules above.

    A copy of a watch sees nothing, so it does not repeat a warning.
    """

    def __init__(self) -> None:
        self.warned = False
        """True after a warning of R1–R5 or R7."""
        self.lrs: Sequence[Any] = ()
        """The learning rates that the scheduler wrote last; empty for a follower."""
        self.peaks: Sequence[float] = ()
        """The scheduler's peaks; empty for a follower."""
        self._owner: Any = lambda: None
        self._counter = UpdateCounter()
        self._earlier: EarlierRun | None = None
        """The traces of an earlier run; None for a follower."""
        self._end: CurveEnd | None = None
        self._unstepped: Any = None
        """The owner until its first step after an update: one that nobody else keeps is not stepped."""
        self._has_checked_moments = False
        self._forget()

    def _forget(self) -> None:
        self._updates = self._counter.updates
        """The optimizer's updates at the latest step."""
        self._steps = 2
        """The steps since the latest update; 2 if a further one would not be the second after an update."""
        self._has_stepped = False
        """True once there was a step after an update."""
        self._late = self._fewest = 0
        """How many steps in a row came after `LATE_STEPS` updates, and the fewest updates before one."""
        self._late_from = (0, 0)
        """The updates and the clock at the step before the first of these steps."""
        self._repeats = 0
        """How many updates in a row were each followed by two or more steps."""
        self._stuck_at: tuple[int, int] = (-1, 0)
        """The clock after the latest step that did not move it, and the number of such steps."""
        self._patience = NEVER_STEPS
        """The number of updates after which to ask again if there was no step."""

    def attach(self, owner: Any, counter: UpdateCounter, earlier: EarlierRun | None = None) -> None:
        """Watch a follower, or with `earlier` a scheduler, in place of those that no longer exist."""
        # A weak reference, since the optimizer holds its hooks, and must not keep old schedulers alive.
        self._owner, self._counter, self._earlier = weakref.ref(owner), counter, earlier
        self._unstepped = owner
        for watch in counter.watches:
            if (other := watch._owner()) is not None and other._option == owner._option:
                watch._unstepped = other = None  # replaced by this one
        # A watch can't be removed when its owner is collected: the counter may be iterating over them then.
        counter.watches = [*(watch for watch in counter.watches if watch.is_live()), self]
        self.begin(owner.clock, owner.last_epoch)

    def is_live(self) -> bool:
        """Return True unless the scheduler or follower no longer exists."""
        return self._owner() is not None

    def begin(self, clock: int, updates: int) -> None:
        """Begin to count at this clock, after this number of updates."""
        self._forget()
        counter = self._counter
        counter.look_at = min(counter.look_at, self._updates + self._patience)
        if self._earlier is not None and (owner := self._owner()) is not None:
            counter.stepped_at = self._updates
            if counter.latest is self:
                counter.latest = None
            self._end = CurveEnd(owner.curves, owner.unit)
            if not self._end.is_at_0:  # somebody who moves it there means to
                self._end.resume(clock, updates)

    def restart(self, clock: int, updates: int) -> None:
        """Forget the steps so far, because the scheduler or follower is moved to another step."""
        self.begin(clock, updates)
        self.choose_peak()

    def resume(self, clock: int, updates: int, warned: bool) -> None:
        """Forget the steps so far, because the scheduler has loaded a state."""
        self.restart(clock, updates)
        self.warned = warned
        if self._end is not None:
            self._end.resume(clock, updates)

    def choose_peak(self) -> None:
        """Do not warn of an earlier run, because the user has set the peak."""
        if self._earlier is not None:
            self._earlier.close()

    def before_step(self, clock: int) -> None:
        """Count a step that is about to move the curve to this clock."""
        counter = self._counter
        updates = counter.updates
        missed = updates - self._updates
        if missed == 0:
            self._count_repeat()
            return
        self._updates = updates
        if (end := self._end) is not None:
            counter.stepped_at = updates
            if counter.latest is not self:
                self._check_turn()
            if clock > end.last_silent_step:
                self._check_end(end, clock)
        if missed > 1 or self._steps == 1:
            self._repeats = 0
        self._steps, self._has_stepped, self._unstepped = 1, True, None
        if missed < LATE_STEPS:
            self._late = 0
        elif not self.warned:
            self._count_late(missed, clock)

    def _count_late(self, missed: int, clock: int) -> None:
        owner = self._owner()
        if owner is None:
            return
        at_0 = 0 if self._end is None else min(missed, self._counter.updates_at_0)
        if not self._late:
            self._fewest, self._late_from = missed, (self._updates - missed, owner.clock)
        self._fewest = min(missed, self._fewest)
        self._late += 1
        if self._late > 2 or (self._late == 2 and self._fewest >= EPOCH_STEPS):
            updates, first = self._late_from
            moved = clock - owner.clock  # with a hold or a unit, perhaps 0
            if self._matters(first, (self._updates - updates) * moved):
                least, times = (LATE_STEPS, "three times") if self._late > 2 else (EPOCH_STEPS, "twice")
                self._warn(messages.once_per_epoch(self._name, least, times, self._unit()))
        elif at_0 >= LATE_STEPS and self._is_stuck():
            self._warn(messages.once_per_epoch_at_0(at_0, self._unit()))

    def look(self) -> float:
        """Check if a step was forgotten; return the number of updates at which to look again."""
        counter = self._counter
        missed = counter.updates - self._updates
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return counter.updates + 1  # a learning rate on the device can't be read now
        if self.warned or (owner := self._owner()) is None:
            return math.inf
        if self._end is not None and counter.updates_at_0 == FORGOTTEN_STEPS <= missed and self._is_stuck():
            self._warn(messages.forgotten_at_0(missed, self._unit()))
        if self._has_stepped:
            return math.inf
        if missed >= self._patience:
            self._patience *= 2
            latest = counter.latest if self._end is not None else None
            is_another_stepped = latest not in (None, self) and latest.is_live()
            if not is_another_stepped and self._matters(owner.clock, missed):
                self._warn(messages.forgotten(self._name, missed, str(owner._option), self._unit()))
        return self._updates + self._patience

    def _count_repeat(self) -> None:
        self._late = 0
        if self._counter.is_compiled:
            self._check_moments()
            return
        self._steps += 1
        if self._steps != 2:
            return
        self._repeats += 1
        if self._repeats == 3:
            self._warn(messages.too_often(self._name, self._unit()))

    def _check_turn(self) -> None:
        other, self._counter.latest = self._counter.latest, self
        if (
            other is not None
            and other._steps == self._steps == 1
            and not self._counter.has_warned_of_turns
            and other._is_before_the_end()
            and self._is_before_the_end()
        ):
            self._counter.has_warned_of_turns = True
            warn(messages.TURNS)

    def _is_before_the_end(self) -> bool:
        owner = self._owner()
        return owner is not None and any(owner.clock < curve.total_steps for curve in owner.curves)

    def unit_stays_unfilled(self, clock: int, consumed: int) -> None:
        """Count a step that is about to leave the clock as it is; call it before `before_step`.

        Warns:
            CurveWarning: The clock has stayed at a step with learning rate 0 for `STUCK_STEPS` updates.
        """
        if self._counter.updates == self._updates:  # no optimizer step, as for a plot
            return
        stuck_at, steps = self._stuck_at
        self._stuck_at = clock, steps + 1 if stuck_at == clock else 1
        if self._stuck_at[1] == STUCK_STEPS and not self.warned and self._is_stuck():
            self._warn(messages.unfilled(clock, STUCK_STEPS, consumed, self._unit()))

    def _check_end(self, end: CurveEnd, clock: int) -> None:
        owner = self._owner()
        if (
            owner is not None
            and end.is_far(clock, owner.last_epoch + 1)
            and owner.clock >= end.total_steps
            and any(owner.base_lrs)
            and owner.is_in_charge()
        ):
            end.warn(clock)

    def _check_moments(self) -> None:
        owner = self._owner()
        if self._has_checked_moments or owner is None or self._end is None:
            return
        optimizer = innermost(owner.optimizer)
        groups = [group for group, lr in zip(optimizer.param_groups, owner.get_lr(), strict=False) if lr == 0]
        if not groups or not owner.is_in_charge():
            return
        self._has_checked_moments = True
        # Others, and a fused Adam, don't divide by the learning rate when they are compiled.
        if isinstance(optimizer, torch.optim.Adam) and any(_has_moment_at_0(optimizer, g) for g in groups):
            warn(messages.COMPILED)

    def check_first_step(self) -> None:
        """Warn if the optimizer was used before; or, as torch does, if there was no optimizer step yet.

        Torch's own `step` would warn at a line of this package, not at the user's. Call it before
        `before_step`.

        Warns:
            CurveWarning: The optimizer shows an earlier run.
            UserWarning: The optimizer has made no step.
        """
        # None for a copied watch: torch does not note the steps of a copied optimizer.
        owner = self._owner()
        if owner is not None and not getattr(owner.optimizer, "_opt_called", False):
            warn(messages.BEFORE_OPTIMIZER, UserWarning)
        else:
            self.check_earlier_run()

    def check_earlier_run(self) -> None:
        """Warn if the optimizer was used before."""
        owner = self._owner()
        if owner is not None and self._earlier is not None:
            self._earlier.check(owner)

    def count_missed(self) -> int:
        """Return the number of updates since the latest step."""
        return self._counter.updates - self._updates

    def _matters(self, first: int, steps: int) -> bool:
        """Return True if this many steps from a clock on change a value, and nobody else has written one."""
        owner = self._owner()
        if owner is None or owner.last_epoch < 0:  # it waits for its turn in a SequentialLR
            return False
        ranges = map_curves(owner.curves, lambda curve: value_range(curve, first, first + steps))
        changes = (
            base * (highest - lowest) for base, (lowest, highest) in zip(owner._bases, ranges, strict=True)
        )
        return any(changes) and owner.is_in_charge()

    def _is_stuck(self) -> bool:
        """Return True if all learning rates are 0 and further steps would change that."""
        owner = self._owner()
        return (
            owner is not None
            and owner.last_epoch >= 0
            and any(owner.base_lrs)
            and self._is_before_the_end()
            and not any(owner.get_lr())
            and owner.is_in_charge()
        )

    def _unit(self) -> int | None:
        owner = self._owner()
        return None if owner is None else owner.unit

    @property
    def _name(self) -> str:
        return "follower" if self._end is None else "scheduler"

    def _warn(self, message: str) -> None:
        if not self.warned:
            # Other schedulers on the optimizer, as in a SequentialLR, would say the same.
            for watch in [self, *self._counter.watches]:
                watch.warned = watch.warned or watch._name == self._name
            warn(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return StepWatch, ()


def _has_moment_at_0(optimizer: torch.optim.Adam, group: dict[str, Any]) -> bool:
    states = (
        [] if group.get("fused") else [optimizer.state.get(parameter, {}) for parameter in group["params"]]
    )
    moments = [state.get("max_exp_avg_sq", state.get("exp_avg_sq")) for state in states]
    return any(isinstance(moment, Tensor) and bool((moment == 0).any()) for moment in moments)
