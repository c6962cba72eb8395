"""Warnings about the calls of a scheduler or follower that do not fit the updates of its optimizer.

    seen                                                        means                          said

    step() of schedulers and followers:
    R1  no step in 20 updates, all at learning rate 0 *         forgotten                      call it
    R2  no step in the first 500 (1000, 2000, …) updates **     forgotten                      call it
    R3  a step after 10 or more updates, all at learning        once per epoch                 each update
        rate 0 *
    R4  after 50 or more, twice in a row;                       once per epoch                 each update
        after 10 or more, three times in a row **
    R5  two or more steps after one update, three times         once per process               once
    R6  two curves are stepped in turn, and neither is at its   one curve wins in              curve=[…]
        end                                                     all groups

    the clock:
    R7  20 updates do not fill a unit, at learning rate 0 *     unit too large                 smaller unit
    R8  more than 10 steps and 1 % past the end, at learning    curve too short                more steps
        rate 0
    R9  past 10 times the steps, and 1000 updates past the      it counts epochs, or the       more steps,
        end, unless that is the highest level                   unit is too small              larger unit

    the first step of a scheduler from step 0, unless it has loaded its state or its peak was set:
    R10 lr is neither initial_lr nor what a scheduler wrote     the old peak is used, not      both numbers
    R11 a loaded initial_lr is not the optimizer's own lr       the new learning rate
    R12 a loaded optimizer has made updates                     state not loaded               load it
    R13 no update so far                                        wrong order                    as torch

    a compiled optimizer step:
    R14 Adam, not fused, learning rate 0, a second moment       0 · ∞ = NaN                    start above 0
        still 0

*  Further steps would raise the learning rate.
** A step for each of these updates would have changed a value, and the groups hold the values that this
   scheduler or follower wrote last. Otherwise somebody else is in charge: another scheduler, a range test.

R1–R5 and R7 together warn once, also over a resume; each other row warns once. Consecutive steps count as one
repetition, so plotting by calling `step()` does not warn, nor fast-forwarding a run, nor stepping after an
update that fp16 occasionally skips. A step that a sequence or a load makes begins the count anew. In R6 each
of the steps must be the only one since an update. Compiled optimizer steps are not counted, nor those of an
optimizer without hooks. A learning rate on a device is read only if all else calls for a warning.

`update_counter` has what an optimizer shows, `curve_end` has R8 and R9, `earlier_run` has R10–R13.
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
from torch_bridge.schedulers.group_curves import map_curves
from torch_bridge.schedulers.update_counter import STUCK_UPDATES, UpdateCounter, innermost

LATE_UPDATES, EPOCH_UPDATES = 10, 50
"""A step after this many updates, three times in a row or twice, looks like one per epoch."""

NEVER_UPDATES = 500
"""After this many updates without a first step, it seems forgotten."""


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
        self._name = ""
        self._counter = UpdateCounter()
        self._unstepped: Any = None
        """The owner, kept alive until its first step after an update. Otherwise one that nobody else keeps
        would vanish before the warning that it is never stepped."""
        self._has_checked_moments = False
        self.begin(0, 0)

    def attach(self, owner: Any, counter: UpdateCounter) -> None:
        """Watch a scheduler or follower, in place of those that no longer exist."""
        # A weak reference, since the optimizer holds its hooks, and must not keep old schedulers alive.
        self._owner, self._counter, self._unstepped = weakref.ref(owner), counter, owner
        self._name = "follower" if owner._builder == "follow" else "scheduler"
        for watch in counter.watches:
            if (other := watch._owner()) is not None and other._option == owner._option:
                watch._unstepped = other = None  # replaced by this one
        # A watch can't be removed when its owner is collected: the counter may be iterating over them then.
        counter.watches = [*(watch for watch in counter.watches if watch._owner() is not None), self]
        self.begin(owner.clock, owner.last_epoch)

    def begin(self, clock: int, updates: int, *, is_loaded: bool = False) -> None:
        """Forget the steps so far, and count from this clock, after this number of updates.

        `is_loaded` says that a saved run ended there.
        """
        counter, owner = self._counter, self._owner()
        self._updates = counter.updates
        """The optimizer's updates at the latest step."""
        self._is_single = False
        """True if the latest step is the only one since an update."""
        self._repeats = 0
        """R5: how many updates in a row were each followed by two or more steps."""
        self._late: tuple[int, ...] = ()
        """R4: the numbers of updates before the latest steps in a row that came late, at most three."""
        self._late_from: tuple[int, int] = (0, 0)
        """The updates and the clock at the step before the first of all these."""
        self._unfilled: tuple[int, int] = (-1, 0)
        """R7: the clock after the latest step that did not move it, and the number of such steps."""
        self._patience: float = NEVER_UPDATES
        """R2: the updates after which to ask again if there was no step; infinity once there was one."""
        self._end: CurveEnd | None = None
        counter.look_at = min(counter.look_at, self._updates + NEVER_UPDATES)
        if owner is not None and self._name == "scheduler":
            counter.stepped_at = self._updates
            if counter.latest is self:
                counter.latest = None
            self._end = CurveEnd(owner.curves, owner.unit)
            if is_loaded or not self._end.is_at_0:  # somebody who moves it to a final 0 means to
                self._end.resume(clock, updates)

    def before_step(self, clock: int, consumed: int | None = None) -> None:
        """Count a step that is about to move the curve to this clock.

        A scheduler with a unit also gives the sum `consumed`.
        """
        counter, updates = self._counter, self._counter.updates
        missed = updates - self._updates
        if missed == 0:
            self._check_repeat()
            return
        if consumed is not None:
            self._check_unit(clock, consumed)
        self._updates = updates
        if (end := self._end) is not None:
            counter.stepped_at = updates
            if counter.latest is not self:
                self._check_turn()
            if clock > end.last_silent_step:
                self._check_end(end, clock)
        if missed > 1 or self._is_single:
            self._repeats = 0
        self._is_single = True
        self._patience, self._unstepped = math.inf, None
        if missed < LATE_UPDATES:
            self._late = ()
        elif not self.warned:
            self._check_late(missed, clock)

    def look(self) -> float:
        """Check R1 and R2 after an update; return the number of updates at which to look again."""
        counter, owner = self._counter, self._owner()
        missed = self.count_missed()
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return counter.updates + 1  # a learning rate on the device can't be read now
        if self.warned or owner is None:
            return math.inf
        if self._end is not None and counter.updates_at_0 == STUCK_UPDATES <= missed and _is_stuck(owner):
            self._warn(messages.forgotten_at_0(missed, owner.unit))
        if missed >= self._patience:
            self._patience *= 2
            other = None if self._end is None else counter.latest
            is_another_stepped = other not in (None, self) and other._owner() is not None
            if not is_another_stepped and _matters(owner, owner.clock, missed):
                self._warn(messages.forgotten(self._name, missed, str(owner._option), owner.unit))
        return self._updates + self._patience

    def _check_late(self, missed: int, clock: int) -> None:
        """R3 and R4."""
        owner = self._owner()
        if not self._late:
            self._late_from = self._updates - missed, owner.clock
        self._late = (*self._late, missed)[-3:]
        updates, first = self._late_from
        at_0 = 0 if self._end is None else min(missed, self._counter.updates_at_0)
        is_third = len(self._late) == 3
        if is_third or (len(self._late) == 2 and min(self._late) >= EPOCH_UPDATES):
            moved = clock - owner.clock  # with a hold or a unit, perhaps 0
            if _matters(owner, first, (self._updates - updates) * moved):
                least, times = (LATE_UPDATES, "three times") if is_third else (EPOCH_UPDATES, "twice")
                self._warn(messages.once_per_epoch(self._name, least, times, owner.unit))
        elif at_0 >= LATE_UPDATES and _is_stuck(owner):
            self._warn(messages.once_per_epoch_at_0(at_0, owner.unit))

    def _check_repeat(self) -> None:
        """R5; or R14, since compiled optimizer steps are not counted."""
        self._late = ()
        if self._counter.is_compiled:
            self._check_moments()
        elif self._is_single:
            self._is_single = False
            self._repeats += 1
            if self._repeats == 3:
                self._warn(messages.too_often(self._name, self._owner().unit))

    def _check_turn(self) -> None:
        """R6."""
        counter, other = self._counter, self._counter.latest
        counter.latest = self
        if counter.has_warned_of_turns or other is None or not (other._is_single and self._is_single):
            return
        owners = [watch._owner() for watch in (other, self)]
        if all(owner is not None and _is_before_the_end(owner) for owner in owners):
            counter.has_warned_of_turns = True
            warn(messages.TURNS)

    def _check_unit(self, clock: int, consumed: int) -> None:
        """R7."""
        owner = self._owner()
        if clock != owner.clock:
            return
        stuck_at, steps = self._unfilled
        steps = steps + 1 if stuck_at == clock else 1
        self._unfilled = clock, steps
        if steps == STUCK_UPDATES and not self.warned and _is_stuck(owner):
            self._warn(messages.unfilled(clock, STUCK_UPDATES, consumed, owner.unit))

    def _check_end(self, end: CurveEnd, clock: int) -> None:
        """R8 and R9."""
        owner = self._owner()
        if (
            end.is_far(clock, owner.last_epoch + 1)
            and owner.clock >= end.total_steps
            and any(owner.base_lrs)
            and owner.is_in_charge()
        ):
            end.warn(clock)

    def _check_moments(self) -> None:
        """R14."""
        owner = self._owner()
        if self._has_checked_moments or self._end is None:
            return
        optimizer = innermost(owner.optimizer)
        groups = [group for group, lr in zip(optimizer.param_groups, owner.get_lr(), strict=False) if lr == 0]
        if not groups or not owner.is_in_charge():
            return
        self._has_checked_moments = True
        # Others, and a fused Adam, don't divide by the learning rate when they are compiled.
        if isinstance(optimizer, torch.optim.Adam) and any(_has_moment_at_0(optimizer, g) for g in groups):
            warn(messages.COMPILED)

    def count_missed(self) -> int:
        """Return the number of updates since the latest step."""
        return self._counter.updates - self._updates

    def _warn(self, message: str) -> None:
        if not self.warned:
            # Other schedulers on the optimizer, as in a SequentialLR, would say the same.
            for watch in [self, *self._counter.watches]:
                watch.warned = watch.warned or watch._name == self._name
            warn(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return StepWatch, ()


def _matters(owner: Any, first: int, steps: int) -> bool:
    """Return True if this many steps from a clock on change a value, and nobody else has written one."""
    if owner.last_epoch < 0:  # it waits for its turn in a SequentialLR
        return False
    ranges = map_curves(owner.curves, lambda curve: value_range(curve, first, first + steps))
    changes = (
        base * (highest - lowest) for base, (lowest, highest) in zip(owner._bases, ranges, strict=True)
    )
    return any(changes) and owner.is_in_charge()


def _is_stuck(owner: Any) -> bool:
    """Return True if all of a scheduler's learning rates are 0 and further steps would change that."""
    return (
        owner.last_epoch >= 0
        and any(owner.base_lrs)
        and _is_before_the_end(owner)
        and not any(owner.get_lr())
        and owner.is_in_charge()
    )


def _is_before_the_end(owner: Any) -> bool:
    return any(owner.clock < curve.total_steps for curve in owner.curves)


def _has_moment_at_0(optimizer: torch.optim.Adam, group: dict[str, Any]) -> bool:
    if group.get("fused"):
        return False
    states = [optimizer.state.get(parameter, {}) for parameter in group["params"]]
    moments = [state.get("max_exp_avg_sq", state.get("exp_avg_sq")) for state in states]
    return any(isinstance(moment, Tensor) and bool((moment == 0).any()) for moment in moments)
