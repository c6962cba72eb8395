"""The hook that runs before each update of an optimizer, for all its schedulers and followers."""

import weakref
from operator import is_
from typing import Any, cast

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from torch_bridge.schedulers.step_warnings import StepWarnings


class UpdateHook:
    """Gives added groups their values before an update, and looks for steps that do not fit the updates.

    It holds weak references, since an optimizer holds its hooks, and must not keep old schedulers alive.
    """

    def __init__(self) -> None:
        self.updates = 0
        """The number of updates so far."""
        self.warnings = StepWarnings()
        self._curves: list[weakref.ref[Any]] = []
        self._groups: list[Any] = []
        """The groups that the optimizer had when its schedulers and followers followed them last."""

    def add(self, group_curves: Any) -> None:
        """Let this `GroupCurves` follow the groups."""
        self._curves = [reference for reference in self._curves if reference() is not None]
        self._curves.append(weakref.ref(group_curves))
        self._groups = list(group_curves.optimizer.param_groups)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():  # the count would be compiled in
            return
        groups = optimizer.param_groups
        if len(groups) != len(self._groups) or not all(map(is_, groups, self._groups)):
            self._follow_groups()
            self._groups = list(groups)
        if self.updates >= self.warnings.next_look and not _is_capturing():
            self.warnings.look(optimizer, self.updates)
        self.updates += 1

    def _follow_groups(self) -> None:
        """Follow the groups. Of several curves for one option, those follow that are the newest in charge."""
        options: set[Any] = set()
        for reference in reversed(self._curves):
            curves = reference()
            if curves is None or curves.option in options:
                continue
            curves.forget_missing()
            if curves.is_in_charge():
                options.add(curves.option)
                curves.follow()


def _is_capturing() -> bool:
    """Return True while a CUDA graph is captured: a learning rate on the device can't be read then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def hook_of(optimizer: Any) -> UpdateHook:
    """Return the hook of an optimizer; if its steps run no hooks, one that is never called."""
    # Torch marks the `step` of a class that runs hooks, in the constructor of its first instance. Others
    # are wrappers, those of trainers or such as Lookahead, whose own optimizer may run them.
    while not hasattr(cast("Any", type(optimizer)).step, "hooked"):
        optimizer = getattr(optimizer, "optimizer", None)
        if not isinstance(optimizer, Optimizer):
            return UpdateHook()
    hooks: dict[int, Any] = optimizer._optimizer_step_pre_hooks
    for hook in hooks.values():
        if isinstance(hook, UpdateHook):
            return hook
    hook = UpdateHook()
    optimizer.register_step_pre_hook(hook)
    return hook
