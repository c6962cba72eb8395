"""The hook that sees an optimizer's updates, and notes the schedulers that drive it and its loads."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from torch_bridge.schedulers.param_groups import as_number, updates_made

STUCK_UPDATES = 20
"""After this many updates at learning rate 0, a step seems forgotten, or a unit too large."""


class UpdateCounter:
    """A hook that counts an optimizer's updates for the watches of its schedulers and followers.

    An optimizer has one counter. A compiled optimizer step is noticed but not counted, because the count
    would be compiled in. The steps of an optimizer without hooks are not seen.
    """

    def __init__(self) -> None:
        self.updates = 0
        self.updates_at_0 = 0
        """The latest updates in a row, since a scheduler was stepped, with no learning rate seen above 0."""
        self.is_compiled = False
        """True once a compiled optimizer step ran."""
        self.has_warned_of_turns = self.has_warned_of_earlier_run = False
        self.watches: list[Any] = []
        """Each `StepWatch` on this optimizer (Any, since its file imports this one)."""
        self.latest: Any = None
        """The watch of the scheduler that was stepped last."""
        self.stepped_at: float = math.inf
        """The number of updates when a scheduler was last stepped; infinity without schedulers."""
        self.look_at: float = math.inf
        """The number of updates at which to ask the watches."""
        self.loads = 0
        """How often the optimizer has loaded a state."""
        self.loaded_lrs: Sequence[Any] = ()
        """The learning rates in the latest of these states."""
        self.loaded_peaks: Sequence[Any] = ()
        """Its `initial_lr`, or -1 in a group without one."""
        self.loaded_updates: int | None = 0
        """The updates in it, as `updates_made` returns them."""

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Count an update of the optimizer, which calls this after it."""
        if is_dynamo_compiling():
            self.is_compiled = True
            return
        self.updates = updates = self.updates + 1
        since = updates - self.stepped_at
        if since == 1:
            self.updates_at_0 = 1  # without a look, since most often a scheduler step comes next
        elif since > 1:
            # The user may have set the learning rate of this update, as in a range test.
            self.updates_at_0 = 0 if _shows_lr_above_0(optimizer) else self.updates_at_0 + 1
            if self.updates_at_0 == STUCK_UPDATES:
                self.look_at = updates
        if updates >= self.look_at:
            self.look_at = min(watch.look() for watch in self.watches)

    def note_load(self, optimizer: Optimizer) -> None:
        """Note what a loaded state shows: a scheduler has written its learning rates, perhaps elsewhere."""
        self.loads += 1
        self.loaded_lrs = [as_number(group["lr"]) for group in optimizer.param_groups]
        self.loaded_peaks = [as_number(group.get("initial_lr", -1.0)) for group in optimizer.param_groups]
        self.loaded_updates = updates_made(optimizer)


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that has hooks: a trainer's wrapper, such as accelerate's, has none."""
    while "_optimizer_step_post_hooks" not in vars(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    return optimizer


def counter_of(optimizer: Optimizer) -> UpdateCounter:
    """Return the optimizer's counter; for an optimizer without hooks, one that counts nothing."""
    optimizer = innermost(optimizer)
    hooks: dict[int, Any] = vars(optimizer).get("_optimizer_step_post_hooks", {})
    for hook in hooks.values():
        if isinstance(hook, UpdateCounter):
            return hook
    counter = UpdateCounter()
    if "_optimizer_step_post_hooks" in vars(optimizer):
        optimizer.register_step_post_hook(counter)
        optimizer.register_load_state_dict_post_hook(counter.note_load)
    return counter


def _shows_lr_above_0(optimizer: Optimizer) -> bool:
    """Return True if a learning rate on the host is above 0.

    One on a device is not read: that would wait for the device, and fail while a CUDA graph is captured.
    """
    for group in optimizer.param_groups:
        lr = group["lr"]
        # The comparison of types comes first, since isinstance(lr, Tensor) takes much longer.
        if type(lr) is float or not isinstance(lr, Tensor):
            if lr:
                return True
        elif lr.device.type == "cpu" and lr.item():
            return True
    return False
