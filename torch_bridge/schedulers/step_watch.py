"""Warnings for a scheduler that lacks its state, or is stepped too rarely, too often, or past its end."""

import math
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_bridge.curve_api import Curve, warn
from torch_bridge.schedulers.param_groups import as_number, updates_made

LATE_STEPS = 10
"""A scheduler step after this many optimizer steps looks like one per epoch."""

FORGOTTEN_STEPS = 20
"""After this many optimizer steps at learning rate 0 without a scheduler step, it seems forgotten."""

STUCK_STEPS = 20
"""After this many updates at learning rate 0 that do not fill a unit, the unit seems too large."""

_NO_STREAK = -2
"""A streak that no optimizer step precedes: no further scheduler step is the second after one."""

_ADVICE = (
    "the curve counts updates. Call it after every optimizer.step() (in Lightning "
    '"interval": "step"), with total_steps = count_updates(loader, epochs). If the curve is meant to count '
    'epochs, or something else, turn this warning off: warnings.filterwarnings("ignore", "scheduler.step")'
)
_ADVICE_WITH_UNIT = (
    "the curve counts what each update consumes. Call scheduler.step(count=n) after every optimizer.step(), "
    "where n is the number of samples or tokens of that update. In Lightning write "
    '"interval": "step", and pass count= to lambda_lr. If you mean to call it less often, turn this warning '
    'off: warnings.filterwarnings("ignore", "scheduler.step")'
)


class StepWatch:
    """A hook that compares an optimizer's steps with its scheduler's, and warns once if they don't match.

    At learning rate 0, when no weight moves, it warns after `FORGOTTEN_STEPS` optimizer steps without a
    scheduler step, when a scheduler step comes after `LATE_STEPS` or more, or after `STUCK_STEPS` updates
    that did not fill a unit. At any learning rate it warns if, three times in a row, a scheduler step came
    after `LATE_STEPS` or more optimizer steps, or two or more scheduler steps came after a single optimizer
    step.

    Any number of consecutive scheduler steps counts as one repetition. So plotting by calling `step()`
    repeatedly does not warn, nor does fast-forwarding a run, nor stepping the scheduler after an update that
    fp16 occasionally skips.

    A compiled optimizer step is not counted, because the count would be compiled in; nor is that of an
    optimizer without hooks. A copy of a watch counts nothing, so it does not repeat a warning.
    """

    def __init__(self) -> None:
        self.warned = False
        self._streak = _NO_STREAK
        """n > 0: the last n steps were the optimizer's; n < 0: the last -n were the scheduler's."""
        self._steps_at_0 = 0
        """The latest optimizer steps of the streak in a row that had no learning rate seen above 0."""
        self._stuck_at: tuple[int, int] = (-1, 0)
        """The clock after the latest scheduler step that did not move it, and the number of such steps."""
        self._late_in_a_row = 0
        """How many scheduler steps in a row each came after at least `LATE_STEPS` optimizer steps."""
        self._repeats_in_a_row = 0
        """How many optimizer steps in a row were each followed by two or more scheduler steps."""
        self._last_silent: float = math.inf
        """The last step of the curve that does not warn about its end."""
        self._earlier_updates: int | None = 0
        """The updates of the optimizer before this scheduler was built, as `updates_made` returns them."""
        self._may_lack_state = False
        """True until the scheduler's first step, if it was built to start at step 0."""
        self._scheduler: Any = lambda: None

    def attach(self, optimizer: Optimizer, scheduler: Any, last_epoch: int) -> None:
        """Count the steps of this optimizer, in place of the watches of schedulers that no longer exist."""
        # An optimizer that another scheduler has driven in this process was not loaded: a curve for a second
        # part of the run begins here on purpose.
        self._may_lack_state = last_epoch < 0 and not getattr(optimizer, "_opt_called", False)
        if self._may_lack_state:
            self._earlier_updates = updates_made(optimizer)
        # A weak reference, since the optimizer holds its hooks, and must not keep old schedulers alive.
        self._scheduler = weakref.ref(scheduler)
        self._last_silent = last_silent_step(scheduler.curves)
        while "_optimizer_step_post_hooks" not in vars(optimizer):
            # A trainer's wrapper, such as accelerate's, has no hooks; the optimizer inside it does.
            optimizer = getattr(optimizer, "optimizer", None)  # pyright: ignore[reportAssignmentType]
            if not isinstance(optimizer, Optimizer):
                return
        # A watch can't be removed when its scheduler is collected: the optimizer may be iterating over its
        # hooks just then.
        hooks = optimizer._optimizer_step_post_hooks
        for key, hook in list(hooks.items()):
            if isinstance(hook, StepWatch) and hook._scheduler() is None:
                del hooks[key]
        optimizer.register_step_post_hook(self)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Count a step of the optimizer, which calls this after it."""
        if is_dynamo_compiling():
            return
        if self._streak > -2:  # at most one scheduler step followed the previous optimizer step
            self._repeats_in_a_row = 0
        self._streak = max(self._streak, 0) + 1
        if self._streak == 1:
            self._steps_at_0 = 1  # without a look, since most often a scheduler step comes next
        elif not self.warned:
            # The user may have set the learning rate of this step, as in a range test.
            self._steps_at_0 = 0 if _shows_lr_above_0(optimizer) else self._steps_at_0 + 1
            if self._steps_at_0 == FORGOTTEN_STEPS and self._is_stuck():
                self._warn(
                    f"scheduler.step() was not called in {FORGOTTEN_STEPS} optimizer steps, and every "
                    f"learning rate is 0, so no weight changes: {self._advice()}"
                )

    def before_step(self, clock: int) -> None:
        """Count a scheduler step that is about to move the curve to this clock."""
        streak = self._streak
        if streak > 0:
            self._streak = -1
            if clock > self._last_silent:
                self._check_end(clock)
            if streak >= LATE_STEPS:
                self._count_late_step()
            else:
                self._late_in_a_row = 0
            return
        self._streak = streak - 1
        self._late_in_a_row = 0
        if streak == -1:  # this is the second scheduler step after an optimizer step
            self._count_repeat()

    def _count_late_step(self) -> None:
        self._late_in_a_row += 1
        if self._late_in_a_row == 3:
            self._warn(
                f"scheduler.step() came after {LATE_STEPS} or more optimizer steps, three times in a row: it "
                f"seems to be called once per epoch, but {self._advice()}"
            )
        elif not self.warned and self._steps_at_0 >= LATE_STEPS and self._is_stuck():
            self._warn(
                f"scheduler.step() came after {self._steps_at_0} optimizer steps, all at learning rate 0, so "
                f"no weight changed: it seems to be called once per epoch, but {self._advice()}"
            )

    def _count_repeat(self) -> None:
        self._repeats_in_a_row += 1
        if self._repeats_in_a_row == 3:
            counts = "each call adds a count" if self._unit() else "the curve counts updates"
            self._warn(
                "scheduler.step() was called twice or more after one optimizer step, three times in a row, "
                f"but {counts}. Most often the reason is accelerate: it steps a prepared "
                "scheduler once for each process. Don't prepare it; write "
                "if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped: "
                "scheduler.step(). Without accelerate, call it once after every optimizer.step()"
            )

    def unit_stays_unfilled(self, clock: int, consumed: int) -> None:
        """Count a scheduler step that is about to leave the clock as it is; call it before `before_step`.

        Warns:
            CurveWarning: The clock has stayed at a step with learning rate 0 for `STUCK_STEPS` updates.
        """
        if self._streak < 1:  # no optimizer step, as for a plot
            return
        stuck_at, steps = self._stuck_at
        self._stuck_at = clock, steps + 1 if stuck_at == clock else 1
        if self._stuck_at[1] == STUCK_STEPS and not self.warned and self._is_stuck():
            self._warn(
                f"the curve stayed at step {clock} for {STUCK_STEPS} updates, and every learning rate is 0, "
                f"so no weight changes: all updates consumed {consumed} in units of {self._unit()}. "
                "Choose a unit of at most what an update consumes, and check the counts"
            )

    def _check_end(self, clock: int) -> None:
        scheduler = self._scheduler()
        if scheduler is not None and all_lrs_are_zero(scheduler):
            self._last_silent = math.inf
            warn_past_the_end(scheduler.curves, clock, scheduler.unit)

    def check_first_step(self) -> None:
        """Warn if the scheduler lacks its state; or, as torch does, if there was no optimizer step yet.

        Torch's own `step` would warn at a line of this package, not at the user's. Call it before
        `before_step`.

        Warns:
            CurveWarning: The optimizer's state shows updates that it did not make in this process.
            UserWarning: The optimizer has made no step.
        """
        # None for a copied watch: torch does not note the steps of a copied optimizer.
        scheduler = self._scheduler()
        if scheduler is not None and not getattr(scheduler.optimizer, "_opt_called", False):
            warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in the opposite "
                "order: `optimizer.step()` before `lr_scheduler.step()`. Otherwise the first value of the "
                "learning rate schedule is skipped. See https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
                UserWarning,
            )
        elif scheduler is not None and self._may_lack_state:
            self._may_lack_state = False
            if scheduler.last_epoch == 0:  # not if the user has set another, as some scripts resume
                self._check_state(scheduler)

    def _check_state(self, scheduler: Any) -> None:
        made = self._earlier_updates
        if made == 0 and self._streak > 0:
            # The optimizer may have been loaded after the scheduler was built. Some optimizers count two
            # updates in a step, so a few more than the hook has counted prove nothing.
            loaded = (updates_made(scheduler.optimizer) or 0) - self._streak
            made = loaded if loaded > self._streak else 0
        if made != 0:
            number = "updates" if made is None else f"{made} update{'s' * (made > 1)}"
            resumed = "" if made is None or self._unit() else f"; or pass last_epoch={made - 1}"
            warn(
                f"the optimizer has made {number}, but the curve started at step 0: load the scheduler's "
                f"state, scheduler.load_state_dict(state){resumed}. If the curve is meant to start anew, "
                'turn this warning off: warnings.filterwarnings("ignore", "the optimizer has made")'
            )

    def restart(self) -> None:
        """Forget the steps so far, because the scheduler was moved to another step."""
        self._streak = _NO_STREAK
        self._late_in_a_row = self._repeats_in_a_row = 0
        self._stuck_at = (-1, 0)
        self._may_lack_state = False

    def resume(self, clock: int, warned: bool) -> None:
        """Forget the steps so far, because the scheduler has loaded a state."""
        self.restart()
        self.warned = warned
        if (scheduler := self._scheduler()) is not None:
            last = last_silent_step(scheduler.curves)
            self._last_silent = math.inf if clock > last else last  # past it, the saved run has warned

    def _is_stuck(self) -> bool:
        """Return True if all learning rates are 0 and further scheduler steps would change that."""
        scheduler = self._scheduler()
        return (
            scheduler is not None
            and any(scheduler.clock < curve.total_steps for curve in scheduler.curves)
            and all_lrs_are_zero(scheduler)
        )

    def _unit(self) -> int | None:
        scheduler = self._scheduler()
        return None if scheduler is None else scheduler.unit

    def _advice(self) -> str:
        return _ADVICE_WITH_UNIT if self._unit() else _ADVICE

    def _warn(self, message: str) -> None:
        if not self.warned:
            self.warned = True
            warn(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return StepWatch, ()


def _shows_lr_above_0(optimizer: Optimizer) -> bool:
    """Return True if a learning rate on the host is above 0.

    One on a device is not read: that would wait for the device, and fail while a CUDA graph is captured.
    """
    lrs = [group["lr"] for group in optimizer.param_groups]
    return any(as_number(lr) for lr in lrs if not isinstance(lr, Tensor) or lr.device.type == "cpu")


def all_lrs_are_zero(scheduler: LRScheduler) -> bool:
    """Return True if all learning rates are 0, in a scheduler that is in charge and has a peak above 0."""
    # The groups come last, since a learning rate there may be a tensor, whose read waits for the device.
    return (
        scheduler.last_epoch >= 0
        and any(scheduler.base_lrs)
        and not any(scheduler.get_lr())
        and not any(as_number(group["lr"]) for group in scheduler.optimizer.param_groups)
    )


def last_silent_step(curves: Sequence[Curve]) -> float:
    """Return the last step past the end of the curves that does not warn; infinity if one ends above 0.

    A run may train a little longer on purpose, or to a round number of updates.
    """
    total = max(curve.total_steps for curve in curves)
    ends_above_0 = any(curve(curve.total_steps) for curve in curves)
    return math.inf if ends_above_0 else total + max(10, total // 100)


def warn_past_the_end(curves: Sequence[Curve], step: int, unit: int | None) -> None:
    """Warn that training continues at this step, past the end of the curves, at learning rate 0.

    Warns:
        CurveWarning: Always; the message names the end and the step.
    """
    total = max(curve.total_steps for curve in curves)
    needed = "has updates: total_steps = count_updates(loader, epochs)"
    if unit is not None:
        needed = f"consumes, in units of {unit}"
    warn(
        f"the curve has total_steps = {total}, but training continues at step {step}, with every learning "
        "rate at 0, so no weight changes. Give the curve as many steps as the training "
        f"{needed}; or end it above 0 (min_lr_ratio)"
    )
