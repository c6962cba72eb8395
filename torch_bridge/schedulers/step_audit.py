"""Warnings about a scheduler or follower whose steps do not fit the updates of its optimizer.

A hook counts the optimizer's updates. It looks at a scheduler or follower after 21 of them, 42, 84 and so on
until 1344, and then after every 1024; from one look to the next is a window. At a scheduler that starts at
step 0 it looks after 2 updates too.

    seen in two windows in a row, each of n updates:                 said
    a clock that stands, and all learning rates 0 *                  every update; or a smaller unit
    at most n/10 steps, though more would have changed a value       step() after every update
    3n/2 steps or more                                               step() once after an update
    3n/4 steps or more, and as many of another scheduler *           one curve wins: curve=[...]

    seen once:
    no step in 500 updates, though they would have changed a value   step() after every update
    a clock far past the end (`curve_end` has the rule)              more steps

    seen at the second update after a start at step 0, if no state was loaded and no peak set:
    a loaded optimizer that has made updates                         load the state, or set the peak
    a learning rate set after our last scheduler, and an old peak    set the peak

* Before the end of the curve.

All rules of steps warn once together, also over a resume; each of the others warns once. They are silent if
the groups hold other values than were written here last, since then somebody else is in charge: another
scheduler, or a range test. A burst of steps, as for a plot, falls into one window. Compiled optimizer steps
are not counted, nor those of an optimizer without hooks.
"""

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, warn
from torch_bridge.schedulers.curve_end import end_message, value_range
from torch_bridge.schedulers.group_curves import map_curves
from torch_bridge.schedulers.param_groups import as_number, is_same, updates_made

_FIRST_WINDOW, _LONGEST_WINDOW = 21, 1024
_LONG_ENOUGH, _NEVER = 84, 500


class StepAudit:
    """The hook of an optimizer that counts its updates and looks at its schedulers and followers."""

    def __init__(self) -> None:
        self.updates = self.loads = 0
        self.loaded_updates: int | None = 0
        """The updates in the state that the optimizer loaded last, as `updates_made` returns them."""
        self.is_driven = False
        """True once the steps of a scheduler or follower were seen."""
        self.has_warned_of_start = False
        self.watches: list[StepWatch] = []
        self.look_at: float = math.inf

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():  # the count would be compiled in
            return
        self.updates += 1
        if self.updates >= self.look_at:
            self._look()

    def note_load(self, optimizer: Optimizer) -> None:
        self.loads, self.loaded_updates = self.loads + 1, updates_made(optimizer)

    def _look(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # a learning rate on the device can't be read now
        self.watches = [watch for watch in self.watches if watch.owner() is not None]
        messages = [watch.look() for watch in self.watches if watch.look_at <= self.updates]
        self.look_at = min((watch.look_at for watch in self.watches), default=math.inf)
        for message in filter(None, messages):
            warn(message)


def audit_of(optimizer: Optimizer) -> StepAudit:
    """Return the optimizer's audit; for an optimizer without hooks, one that sees no update."""
    while "_optimizer_step_post_hooks" not in vars(optimizer):  # a trainer's wrapper, such as accelerate's
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            return StepAudit()
        optimizer = inner
    hooks: dict[int, Any] = vars(optimizer)["_optimizer_step_post_hooks"]
    for hook in hooks.values():
        if isinstance(hook, StepAudit):
            return hook
    audit = StepAudit()
    optimizer.register_step_post_hook(audit)
    optimizer.register_load_state_dict_post_hook(audit.note_load)
    return audit


class EarlierRun(NamedTuple):
    """What an optimizer shows of an earlier run before a scheduler writes into its groups."""

    made: int | None
    """The updates that a loaded optimizer has made, as `updates_made` returns them; otherwise 0."""
    loads: int | None
    """How often the optimizer has loaded a state; None if a later load tells of no other run."""
    new_lrs: tuple[float, ...]
    """The learning rates, if the user has changed them since our last scheduler wrote them."""

    @classmethod
    def of(cls, optimizer: Optimizer, curves: Sequence[Curve]) -> "EarlierRun":
        """Read the groups; `curves` are empty if updates do not tell the step of the curves."""
        audit = audit_of(optimizer)
        # Torch sets `_opt_called` at a step of an optimizer with a scheduler. If there was one in this
        # process, the new scheduler is for another part of the run.
        is_driven = audit.is_driven or getattr(optimizer, "_opt_called", False)
        made = updates_made(optimizer) if not is_driven and was_loaded(optimizer) else 0
        groups = optimizer.param_groups
        lrs = [as_number(group["lr"]) for group in groups]
        peaks = [as_number(group.get("initial_lr", group["lr"])) for group in groups]
        is_at_peaks = all(map(is_same, lrs, peaks))
        if is_at_peaks and not audit.watches and curves:
            # The user has set the groups, if these curves would have left the peaks.
            made = 0 if made is None or all(curve(made) < 1 for curve in curves) else made
        is_changed = (
            not audit.loads and not is_at_peaks and any(watch.was_driving() for watch in audit.watches)
        )
        return cls(made, None if is_driven else audit.loads, tuple(lrs) if is_changed else ())


class StepWatch:
    """Compares the steps of a scheduler or follower with the updates of its optimizer, by the rules above.

    Args:
        owner: The scheduler or follower. A copy has a watch without an owner, which sees nothing.
        earlier: What the optimizer shows; None for a follower, or a scheduler that starts at a later step.
    """

    def __init__(self, owner: Any = None, earlier: EarlierRun | None = None) -> None:
        self.warned = False
        """True after a warning about steps."""
        self._earlier = earlier
        self._audit = StepAudit()
        # Kept alive until its steps are seen, since the user may have dropped it by mistake. From then on a
        # weak reference: the optimizer holds its hooks, and must not keep old schedulers alive.
        self.owner: Any = lambda: owner
        if owner is None:
            return
        self._audit, self._key = audit_of(owner.optimizer), str(owner._option)
        self._name = "follower" if owner._builder == "follow" else "scheduler"
        for watch in self._rivals():
            watch.owner = weakref.ref(watch.owner())
        self._audit.watches = [*self._audit.watches, self]
        self.begin()

    def begin(self) -> None:
        """Count again from here: the clock was moved."""
        owner = self.owner()
        if owner is None:
            return
        self._is_past_end = bool(self._end_message(owner))
        self._verdict = ""
        self._first = self._audit.updates, owner.last_epoch, owner.clock
        self._begin_window(owner, self._audit.updates)
        self.look_at = self._audit.updates + (2 if self._earlier else _FIRST_WINDOW)
        self._audit.look_at = min(self._audit.look_at, self.look_at)

    def resume(self, warned: bool = False) -> None:
        """Count again from here, after a state was loaded or the user has set the step."""
        self.close()
        self.begin()
        self.warned = self.warned or warned

    def close(self) -> None:
        """Ignore an earlier run: the user has loaded the state, or set the peak or the step."""
        self._earlier = None

    def look(self) -> str:
        """Judge the window that ends now; return the warning that is due, if any."""
        owner, audit = self.owner(), self._audit
        total = audit.updates - self._first[0]
        if total < _FIRST_WINDOW:
            self.look_at = self._first[0] + _FIRST_WINDOW
            earlier = self._earlier
            if earlier is None or owner.last_epoch < 0:  # it waits for its turn in a SequentialLR
                return ""
            self._earlier = None
            return self._start_message(owner, earlier)
        updates, steps = audit.updates - self._start[0], owner.last_epoch - self._start[1]
        if steps > 0:
            self.owner, audit.is_driven = weakref.ref(owner), True
        verdict, before = self._judge(owner, updates, steps), self._verdict
        if verdict and not owner.is_in_charge():  # may read from the device, so it comes last
            verdict = ""
        message = self._end_message(owner) if steps > 0 and not self._is_past_end else ""
        if message and any(owner._bases) and owner.is_in_charge():
            self._is_past_end = True
        else:
            message = ""
        self._verdict = verdict
        self.look_at = audit.updates + min(total, _LONGEST_WINDOW)
        if total < _NEVER and owner.last_epoch == self._first[1]:
            self.look_at = min(self.look_at, self._first[0] + _NEVER)
        if verdict and verdict in (before, "never"):
            message = self._steps_message(owner, updates, steps, verdict)
            # Other schedulers on the optimizer, as in a SequentialLR, would say the same.
            for watch in audit.watches:
                watch.warned = watch.warned or watch._name == self._name
        self._begin_window(owner, audit.updates)
        return message

    def was_driving(self) -> bool:
        """Return True if a scheduler was stepped up to now, and somebody has changed what it wrote."""
        owner = self.owner()
        if owner is None or self._name == "follower":
            return False
        updates, steps = self._audit.updates - self._start[0], owner.last_epoch - self._start[1]
        return owner.last_epoch > self._first[1] and steps >= updates - 1 and not owner.is_in_charge()

    def _begin_window(self, owner: Any, updates: int) -> None:
        self._start = updates, owner.last_epoch, owner.clock
        self._others = [(watch, watch.owner().last_epoch) for watch in self._rivals()]

    def _rivals(self) -> "list[StepWatch]":
        """Return the watches of others that write the same option."""
        return [
            watch
            for watch in self._audit.watches
            if watch is not self and watch._key == self._key and watch.owner() is not None
        ]

    def _judge(self, owner: Any, updates: int, steps: int) -> str:
        """Return what the window shows, or an empty string."""
        if self.warned or owner.last_epoch < 0:
            return ""
        # The ends of a window cut the steps: in a short one, one in nine updates can look like one in ten.
        is_rare = (9.5 if updates >= _LONG_ENOUGH else 20) * steps <= updates
        is_scheduler = self._name == "scheduler"
        if is_scheduler and owner.clock == self._start[2] and (is_rare or owner.unit) and _is_at_0(owner):
            return "at 0"
        others = [(watch.owner(), before) for watch, before in self._others]
        others = [(other, other.last_epoch - before) for other, before in others if other is not None]
        if 2 * steps >= 3 * (updates - 1):  # the first or last one may be seen without its steps
            return "often"
        if is_scheduler and 4 * steps >= 3 * updates and _is_before_the_end(owner):
            in_turn = (4 * made >= 3 * updates and _is_before_the_end(other) for other, made in others)
            return "turns" if any(in_turn) else ""
        if not is_rare or any(made > 0 for _, made in others):
            return ""
        first_updates, first_steps, first_clock = self._first
        updates, steps = self._audit.updates - first_updates, owner.last_epoch - first_steps
        if steps == 0 and updates < _NEVER:
            return ""
        # What a step for each update would have done; with a hold or a unit, the clock moves more slowly.
        clock = first_clock + (updates if steps == 0 else updates * (owner.clock - first_clock) // steps)
        ranges = map_curves(owner.curves, lambda curve: value_range(curve, first_clock, clock))
        changes = any(base * (high - low) for base, (low, high) in zip(owner._bases, ranges, strict=False))
        return ("rarely" if steps else "never") if changes else ""

    def _end_message(self, owner: Any) -> str:
        if self._name == "follower":
            return ""
        return end_message(owner.curves, owner.unit, owner.clock, owner.last_epoch)

    def _steps_message(self, owner: Any, updates: int, steps: int, verdict: str) -> str:
        name, unit = self._name, owner.unit
        if verdict == "turns":
            return (
                "two schedulers with curves take turns on one optimizer, and each writes the learning rates "
                "of all groups, so the last one wins. Build one scheduler with a curve for each group: "
                "lambda_lr(optimizer, curve=[...])"
            )
        seen = f"{name}.step() was called {steps} times in the last {updates} optimizer steps"
        if verdict == "at 0":
            seen += f", and the curve stays at step {owner.clock}, where every learning rate is 0"
            if 10 * steps > updates:
                return (
                    f"{seen}: all updates consumed {owner.consumed} in units of {unit}. Choose a unit of at "
                    "most what an update consumes, and check the counts"
                )
        call = f"{name}.step()" if unit is None else f"{name}.step(count=n)"
        advice = f"Call {call} once after every optimizer.step()"
        if name == "scheduler":
            advice += ' (in Lightning "interval": "step")'
        if unit is not None:
            advice += ", where n is what that update consumed"
        elif verdict != "often":
            advice += ", with total_steps = count_updates(loader, epochs)"
        if verdict == "often" and name == "scheduler":
            advice += (
                ". Most often the reason is accelerate, which steps a prepared scheduler once for each "
                "process: don't prepare it; write if accelerator.sync_gradients and not "
                "accelerator.optimizer_step_was_skipped: scheduler.step()"
            )
        return (
            f"{seen}. {advice}. If the curve is meant to count something else, turn this warning off: "
            f'warnings.filterwarnings("ignore", "{name}.step")'
        )

    def _start_message(self, owner: Any, earlier: EarlierRun) -> str:
        audit, made = self._audit, earlier.made
        if earlier.loads is not None and audit.loads > earlier.loads:
            made = audit.loaded_updates
        # After the second update. A larger one was set by the user, or reached in a fast-forward.
        if owner.last_epoch > 1 or audit.has_warned_of_start or not (made != 0 or earlier.new_lrs):
            return ""
        audit.has_warned_of_start = True
        peaks = list(dict.fromkeys(float(f"{peak:.7g}") for peak in owner.base_lrs))
        peak = peaks[0] if len(peaks) == 1 else peaks
        if made == 0:
            lrs = [float(f"{lr:.7g}") for lr in earlier.new_lrs]
            return (
                f"the learning rates were set to {lrs} after the last scheduler, but the peak is still the "
                f"groups' initial_lr, {peak!r}: choose it, scheduler.set_peak({lrs[0]!r})"
            )
        number = "updates" if made is None else f"{made} update{'s' * (made > 1)}"
        last_epoch = "" if owner.unit or made is None else f"; or pass last_epoch={made - 1}"
        return (
            f"the optimizer has made {number}, but the curve started at step 0: load the scheduler's state, "
            f"scheduler.load_state_dict(state){last_epoch}. To start at step 0, set the peak, which is "
            f"{peak!r} now: scheduler.set_peak({peak!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return StepWatch, ()


def was_loaded(optimizer: Optimizer) -> bool:
    """Return True if `load_state_dict` has replaced the groups, or copied groups that it had replaced."""
    # It writes the saved options into each group and then the parameters; the constructor begins with these.
    defaults: dict[str, Any] = getattr(optimizer, "defaults", {})
    keys = list(optimizer.param_groups[0])
    # A group that the user wrote may begin with a single option too.
    return len(defaults) > 1 and keys.index("params") > max(
        keys.index(key) for key in defaults if key in keys
    )


def _is_at_0(owner: Any) -> bool:
    """Return True if all of a scheduler's learning rates are 0, and it is not at the end of its curves."""
    return any(owner.base_lrs) and _is_before_the_end(owner) and not any(owner.get_lr())


def _is_before_the_end(owner: Any) -> bool:
    return any(owner.clock < curve.total_steps for curve in owner.curves)
