"""The hook that runs before each update of an optimizer, for all its schedulers and followers."""

import weakref
from contextlib import suppress
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

    def add(self, group_curves: Any) -> None:
        """Let this `GroupCurves` follow the groups."""
        self._curves = [weakref.ref(curves) for curves in (*self._living_curves(), group_curves)]

    def _living_curves(self) -> list[Any]:
        references = [reference() for reference in self._curves]
        return [curves for curves in references if curves is not None]

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():  # the count would be compiled in
            return
        living = self._living_curves()
        if not all(curves.is_current() for curves in living):
            _meet_groups(living)
        if living and not _is_first_call(optimizer, living[-1].groups):
            return
        if self.updates >= self.warnings.next_look and not _is_capturing():
            self.warnings.look(self.updates)
        self.updates += 1

    def after_load(self, optimizer: Optimizer) -> None:
        """Recognize the groups that `load_state_dict` has just replaced."""
        self.warnings.note_load(optimizer)
        for curves in self._living_curves():
            with suppress(TypeError, ValueError):  # the next step raises them
                curves.meet()


def _meet_groups(living: list[Any]) -> None:
    """Give new groups their values: of several curves for one option, those do so that are in charge."""
    options: set[Any] = set()
    for curves in reversed(living):  # the newest first, which may have replaced others
        if curves.option in options:
            continue
        is_complete = not curves.unknown_groups()
        if is_complete or curves.is_in_charge():
            options.add(curves.option)
            curves.meet()


def _is_first_call(optimizer: Optimizer, groups: list[dict[str, Any]]) -> bool:
    """Return False if an update has called the hook before.

    DeepSpeed steps the optimizer once for each group, and shows that group alone, or empties the others.
    """
    shown = optimizer.param_groups
    if not groups or shown[0] is not groups[0]:
        return len(shown) > 1
    return bool(shown[0]["params"]) or not any(group["params"] for group in shown)


def _is_capturing() -> bool:
    """Return True while a CUDA graph is captured: a learning rate on the device can't be read then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def hook_of(optimizer: Any) -> UpdateHook:
    """Return the hook of an optimizer; if its steps run no hooks, one that is never called."""
    # Torch marks the `step` of a class that runs hooks, in the constructor of its first instance. Others
    # are wrappers, those of trainers or such as Lookahead, whose own optimizer may run them.
    while not hasattr(cast("Any", type(optimizer)).step, "hooked"):
        optimizer = getattr(optimizer, "optimizer", getattr(optimizer, "_base_optimizer", None))  # timm's
        if not isinstance(optimizer, Optimizer):
            return UpdateHook()
    hooks: dict[int, Any] = optimizer._optimizer_step_pre_hooks
    for hook in hooks.values():
        if isinstance(hook, UpdateHook):
            return hook
    hook = UpdateHook()
    optimizer.register_step_pre_hook(hook)
    if hasattr(optimizer, "_optimizer_load_state_dict_post_hooks"):  # wrappers may lack it
        optimizer.register_load_state_dict_post_hook(hook.after_load)
    return hook
