"""Notices a scheduler that is not stepped once an update, which is what its curve counts."""

import weakref
from collections.abc import Callable
from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_bridge.core import warn
from torch_bridge.schedulers.param_groups import number_of

MANY = 10
"""So many optimizer steps before one scheduler step are not taken for one update."""

NEVER = 20
"""After so many optimizer steps at rate 0 without a scheduler step it is taken for forgotten."""

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


class Watch:
    """Counts an optimizer's steps and its scheduler's, and warns once where they clearly differ.

    Where every rate is 0, so that no weight moves, that is where `NEVER` optimizer steps came and no
    scheduler step, or where one scheduler step comes after `MANY` or more. Else it is where, three times in a
    row,

    - a scheduler step comes after `MANY` or more optimizer steps; or
    - an optimizer step is followed by two or more scheduler steps before the next optimizer step.

    Scheduler steps that follow each other without a step of the optimizer count as one time, however many
    they are. So a picture that is drawn by stepping brings no warning, nor does a run that is stepped forward
    to its place, nor an update now and then that fp16 skips while its scheduler is stepped. (Three such
    updates, each right after a single good one, do.) Before the first optimizer step nothing counts.

    The steps of a compiled optimizer are not counted, since the count would be compiled in; nor are those of
    an optimizer without hooks. A copy of a watch counts nothing, and so repeats no warning.
    """

    def __init__(self) -> None:
        self.warned = False
        self._updates = 0
        """The optimizer's steps."""
        self._started = 0
        """How many of them came before the scheduler was built, was moved, or got a saved state."""
        self._seen = 0
        """How many of them came before the last scheduler step."""
        self._late = 0
        """The last scheduler steps in a row that came after `MANY` or more of the optimizer."""
        self._repeated, self._repeated_at = 0, 0
        """The last optimizer steps in a row that two scheduler steps followed, and the number of the last."""
        self._scheduler: Callable[[], LRScheduler | None] = lambda: None

    def start(self, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        """Count from now on, in place of the watches of schedulers that are gone.

        A watch is not removed when its scheduler goes: the optimizer may be walking through its hooks then.
        """
        while "_optimizer_step_post_hooks" not in vars(optimizer):
            # A trainer's wrapper, such as accelerate's, has no hooks; the optimizer in it has.
            optimizer = getattr(optimizer, "optimizer", None)  # pyright: ignore[reportAssignmentType]
            if not isinstance(optimizer, Optimizer):
                return
        hooks = optimizer._optimizer_step_post_hooks
        for key, hook in list(hooks.items()):
            if isinstance(hook, Watch) and hook._scheduler() is None:
                del hooks[key]
        self._scheduler = weakref.ref(scheduler)
        optimizer.register_step_post_hook(self)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """After a step of the optimizer."""
        if not is_dynamo_compiling():
            self._updates += 1
            if self._updates - self._seen == NEVER and self._seen == self._started and self._stands_still():
                self._warn(
                    f"scheduler.step() was not called in {NEVER} optimizer steps, and every rate is 0, so "
                    f"no weight changes: {self._advice()}"
                )

    @property
    def has_trained(self) -> bool:
        """Whether the optimizer has made a step since the last scheduler step."""
        return self._updates > self._seen

    def _stands_still(self) -> bool:
        """Whether every rate is 0, and further steps of the scheduler would change that."""
        scheduler: Any = self._scheduler()
        return (
            scheduler is not None
            and any(scheduler.clock < curve.total_steps for curve in scheduler.curves)
            and stands_still(scheduler)
        )

    def _counts_updates(self) -> bool:
        return getattr(self._scheduler(), "unit", None) is None

    def _advice(self) -> str:
        return _ADVICE if self._counts_updates() else _ADVICE_WITH_UNIT

    def before_step(self) -> None:
        """Before a scheduler step that moves the curve one on."""
        updates = self._updates
        since, self._seen = updates - self._seen, updates
        if since >= MANY:
            self._late += 1
            if self._late == 3:
                self._warn(
                    f"scheduler.step() came after {MANY} or more optimizer steps, three times in a row: it "
                    f"seems to be called once an epoch, but {self._advice()}"
                )
            elif not self.warned and self._stands_still():
                self._warn(
                    f"scheduler.step() came after {since} optimizer steps, all at rate 0, so no weight "
                    f"changed: it seems to be called once an epoch, but {self._advice()}"
                )
            return
        self._late = 0
        if not since and updates != self._repeated_at:  # the second scheduler step after this update
            self._repeated = self._repeated + 1 if updates == self._repeated_at + 1 else 1
            self._repeated_at = updates
            if self._repeated == 3:
                counts = "the curve counts updates" if self._counts_updates() else "each call adds a count"
                self._warn(
                    "scheduler.step() came twice or more after one optimizer step, three times in a row, "
                    f"but {counts}. Most often accelerate does this: it steps a prepared "
                    "scheduler once for each process. Don't prepare it; write "
                    "if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped: "
                    "scheduler.step(). Without accelerate, call it once after every optimizer.step()"
                )

    def restart(self) -> None:
        """Forget the steps so far: the scheduler was moved to another step, or got a saved state."""
        self._seen = self._started = self._repeated_at = self._updates
        self._late = self._repeated = 0

    def _warn(self, message: str) -> None:
        if not self.warned:
            self.warned = True
            warn(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return Watch, ()


def stands_still(scheduler: LRScheduler) -> bool:
    """Whether every rate is 0, of a scheduler that has its turn and a peak above 0.

    The groups' rates are read only where the scheduler's own are 0: one on a device synchronizes with it.
    """
    return (
        scheduler.last_epoch >= 0
        and any(scheduler.base_lrs)
        and not any(scheduler.get_lr())
        and not any(number_of(group["lr"]) for group in scheduler.optimizer.param_groups)
    )
