"""The hook through which a scheduler sees the updates of its optimizer."""

import weakref
from types import MethodType
from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from torch_bridge.groups.optimizers import inner_optimizer


class UpdateHook:
    """Calls a scheduler before each update of its optimizer, so that added groups get their values.

    Its reference to the scheduler is weak: an optimizer keeps its hooks, and must not keep a
    scheduler that nobody uses any more.

    Args:
        optimizer: The optimizer of the scheduler.
        before_update: The method of the scheduler.
    """

    def __init__(self, optimizer: Optimizer, before_update: MethodType) -> None:
        self._scheduler = weakref.ref(before_update.__self__)
        self._function = before_update.__func__
        hooked = _with_hooks(optimizer)
        if hooked is not None:
            handle = hooked.register_step_pre_hook(self)
            weakref.finalize(before_update.__self__, handle.remove).atexit = False

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        scheduler = self._scheduler()
        if scheduler is None or is_dynamo_compiling():  # it would be compiled in
            return
        self._function(scheduler)


def _with_hooks(optimizer: Any) -> Optimizer | None:
    """Return the optimizer whose steps run hooks: this one, or the one in a wrapper."""
    # Torch marks the `step` of a class that runs hooks, in the constructor of its first instance.
    inner: Any = optimizer
    while inner is not None and not hasattr(inner.__class__.step, "hooked"):
        inner = inner_optimizer(inner)
    if not hasattr(inner, "_optimizer_step_pre_hooks"):
        return None
    return inner
