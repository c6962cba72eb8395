"""Sees that a scheduler is not stepped once an update, which is what its curve counts."""

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_bridge.core import package_of, warn

MANY = 10
"""Optimizer steps before one of the scheduler that are not taken for one update."""


class Watch:
    """Counts the optimizer's steps since the scheduler's last one.

    Steps of a compiled optimizer are not counted: a count would be compiled in.

    A copy counts nothing, and so repeats no warning.
    """

    def __init__(self) -> None:
        self.since = 0
        """The optimizer's steps since the last of the scheduler, which sets it to 0."""
        self.warned = False
        self._in_a_row, self._last = 0, -1
        self._scheduler: Callable[[], LRScheduler | None] = lambda: None

    def start(self, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        """Count from now on, in place of the watches of schedulers that are gone.

        These are not removed when they go, which may be while the optimizer walks through its hooks.
        """
        while "_optimizer_step_post_hooks" not in vars(optimizer):
            # A trainer's wrapper, as accelerate's, has no hooks; what it holds has.
            optimizer = getattr(optimizer, "optimizer", None)  # pyright: ignore[reportAssignmentType]
            if not isinstance(optimizer, Optimizer):
                return
        hooks = optimizer._optimizer_step_post_hooks
        for key, hook in list(hooks.items()):
            if isinstance(hook, Watch) and hook._scheduler() is None:
                del hooks[key]
        self._scheduler = weakref.ref(scheduler)
        optimizer.register_step_post_hook(self)

    def __call__(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.since += 1

    def late(self, scheduler: LRScheduler) -> None:
        """Before a step of the scheduler that comes after `MANY` or more of the optimizer."""
        steps = scheduler._step_count
        self._in_a_row = self._in_a_row + 1 if steps == self._last + 1 else 1
        self._last = steps
        if self._in_a_row == 3:
            self._warn(
                f"scheduler.step() came after {MANY} or more optimizer steps, three times in a row: it is "
                "called once an epoch, and the curve counts updates. Call it after every optimizer.step() "
                '(in Lightning "interval": "step"), with total_steps = count_updates(loader, epochs)'
            )

    def again(self) -> None:
        """Before a step of the scheduler that follows another one, with none of the optimizer between."""
        frame = sys._getframe()
        # torch's: a scheduler that steps others, as `SequentialLR`, may be what was prepared.
        while package_of(frame) in ("torch_bridge", "torch") and frame.f_back is not None:
            frame = frame.f_back
        is_accelerate = frame.f_globals.get("__name__") == "accelerate.scheduler"
        if is_accelerate and (processes := frame.f_locals.get("num_processes", 1)) > 1:
            self._warn(
                f"accelerate steps a prepared scheduler {processes} times an update, once for each "
                "process, and the curve counts updates. Don't prepare it; write "
                "if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped: "
                "scheduler.step()"
            )

    def _warn(self, message: str) -> None:
        if not self.warned:
            self.warned = True
            warn(message)

    def load(self, warned: bool) -> None:
        """Go on from a saved state."""
        self.since, self._in_a_row, self.warned = 0, 0, warned

    def __reduce__(self) -> tuple[Any, ...]:
        return Watch, ()
