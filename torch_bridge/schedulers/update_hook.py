"""The hook that runs before each update of an optimizer, for all its schedulers and followers."""

import weakref
from contextlib import suppress
from typing import Any, cast

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from torch_bridge.param_groups import loaded_updates
from torch_bridge.schedulers.step_warnings import StepWarnings


class UpdateHook:
    """Gives added groups their values before an update, and looks at the schedulers' steps.

    It holds weak references, since an optimizer holds its hooks, and must not keep old schedulers
    alive.
    """

    def __init__(self) -> None:
        self.updates = 0
        """The number of updates so far."""
        self.warnings = StepWarnings()
        self._curves: list[weakref.ref[Any]] = []
        self._stepped = set[int]()
        """The groups that the present update has stepped, by identity."""
        self._steps = -1
        """The steps of the schedulers before the present update."""

    def add(self, group_curves: Any) -> None:
        """Let this `GroupCurves` follow the groups."""
        others = [curves for curves in self._living_curves() if curves is not group_curves]
        self._curves = [weakref.ref(curves) for curves in (*others, group_curves)]

    def _living_curves(self) -> list[Any]:
        references = [reference() for reference in self._curves]
        return [curves for curves in references if curves is not None]

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():  # the count would be compiled in
            return
        living = self._living_curves()
        if not all(curves.is_current() for curves in living):
            _meet_groups(living)
        if not self._begins_update(optimizer.param_groups):
            return
        if self.updates >= self.warnings.next_look and not _is_capturing():
            self.warnings.look(self.updates)
        self.updates += 1

    def _begins_update(self, groups: list[Any]) -> bool:
        """Return False if this call belongs to the update of the call before.

        DeepSpeed steps the optimizer once for each group, and shows that group alone, or empties
        the others.
        """
        stepped = {id(group) for group in groups if group["params"]}
        steps = self.warnings.count_steps()
        if self._stepped.isdisjoint(stepped) and steps == self._steps:
            self._stepped |= stepped
            return False
        self._stepped = stepped
        self._steps = steps
        return True

    def after_load(self, optimizer: Optimizer) -> None:
        """Recognize the groups that `load_state_dict` has just replaced."""
        self.warnings.note_load(optimizer)
        self._steps = -1  # the next call begins an update, although its groups are new
        for curves in self._living_curves():
            curves.is_loaded = True
            with suppress(TypeError, ValueError):  # the next step raises them
                curves.meet()


def _meet_groups(living: list[Any]) -> None:
    """Let curves meet new groups; for each option, the newest curves in charge give the values."""
    for option in {curves.option for curves in living}:
        newest_first = [curves for curves in reversed(living) if curves.option == option]
        responsible = newest_first[0]
        for curves in newest_first:
            if not curves.unknown_groups() or curves.is_in_charge():
                responsible = curves
                break
        responsible.meet()
        # The others note the bases, before another scheduler changes the values.
        for curves in newest_first:
            with suppress(TypeError, ValueError):
                curves.meet(writes=False)


def _is_capturing() -> bool:
    """Return True while a CUDA graph is captured, when nothing can be read from the device."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def hook_of(optimizer: Any) -> UpdateHook:
    """Return the hook of an optimizer; if its steps run no hooks, one that is never called."""
    # Torch marks the `step` of a class that runs hooks, in the constructor of its first instance.
    # Others are wrappers, those of trainers or such as Lookahead, whose own optimizer may run them.
    while not hasattr(cast("Any", type(optimizer)).step, "hooked"):
        base = getattr(optimizer, "_base_optimizer", None)  # of timm's wrappers
        optimizer = getattr(optimizer, "optimizer", base)
        if not isinstance(optimizer, Optimizer):
            return UpdateHook()
    hooks: dict[int, Any] | None = getattr(optimizer, "_optimizer_step_pre_hooks", None)
    if hooks is None:
        return UpdateHook()
    for hook in hooks.values():
        if isinstance(hook, UpdateHook):
            return hook
    hook = UpdateHook()
    hook.warnings.loaded_updates = loaded_updates(optimizer)
    optimizer.register_step_pre_hook(hook)
    if hasattr(optimizer, "_optimizer_load_state_dict_post_hooks"):  # wrappers may lack it
        optimizer.register_load_state_dict_post_hook(hook.after_load)
    return hook
