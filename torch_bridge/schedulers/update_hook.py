"""The hook through which a scheduler sees the updates of its optimizer."""

import weakref
from types import MethodType
from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from torch_bridge.groups.optimizers import inner_optimizer


def call_before_updates(optimizer: Optimizer, method: MethodType) -> None:
    """Call the method of a scheduler before each update of its optimizer.

    The reference to the scheduler is weak: an optimizer keeps its hooks, and must not keep a
    scheduler that nobody uses any more.
    """
    hooked: Any = optimizer
    # Torch marks the `step` of a class that runs hooks, in the constructor of its first instance. A
    # wrapper may run none.
    while hooked is not None and not hasattr(hooked.__class__.step, "hooked"):
        hooked = inner_optimizer(hooked)
    if hooked is None or not hasattr(hooked, "_optimizer_step_pre_hooks"):
        return
    reference = weakref.WeakMethod(method)

    def hook(*_: Any) -> None:
        before_update = reference()
        if before_update is None or is_dynamo_compiling():  # it would be compiled in
            return
        before_update()

    handle = hooked.register_step_pre_hook(hook)
    weakref.finalize(method.__self__, handle.remove).atexit = False
