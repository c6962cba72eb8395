"""The hook that runs before each update of an optimizer, for all its schedulers and followers.

    event                                      calls
    the first scheduler or follower is built   advice.begin
    a scheduler or follower is built, copied   UpdateHook.register
      or is given a different optimizer
    optimizer.step()                           GroupCurves.match_reloaded_groups and
                                               add_new_groups, advice.before_update
    optimizer.load_state_dict()                GroupCurves.match_reloaded_groups, advice.after_load

Schedulers and followers also call `GroupCurves.sync` themselves, before they write into the groups.
"""

import weakref
from contextlib import suppress
from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from torch_bridge.advice.step_warnings import StepWarnings
from torch_bridge.groups.group_curves import GroupCurves
from torch_bridge.groups.optimizers import inner_optimizer


class UpdateHook:
    """Gives added groups their values before an update.

    Its references are weak: an optimizer keeps its hooks, and a hook must not keep an old scheduler
    alive.
    """

    def __init__(self) -> None:
        self.is_registered = False
        """True if the steps of an optimizer call this."""
        self.advice = StepWarnings()
        self._group_curves = weakref.WeakKeyDictionary[GroupCurves, None]()
        """Each `GroupCurves` of the optimizer, the newest last."""

    def register(self, group_curves: GroupCurves) -> None:
        """Give added groups their values, by these curves, before each update of the optimizer."""
        self._group_curves[group_curves] = None

    def unregister(self, group_curves: GroupCurves) -> None:
        """Leave out curves that now have a different optimizer."""
        self._group_curves.pop(group_curves, None)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():  # what the hook does would be compiled in
            return
        all_group_curves = list(self._group_curves)
        changed = [item for item in all_group_curves if not item.has_current_groups()]
        for group_curves in changed:
            group_curves.match_reloaded_groups()
        if any(group_curves.unknown_groups() for group_curves in changed):
            _add_new_groups(all_group_curves)
        self.advice.before_update(optimizer)

    def after_load(self, optimizer: Optimizer) -> None:
        """Match the groups that the optimizer has loaded, before a program removes one of them.

        Nothing is written into them.
        """
        for group_curves in list(self._group_curves):
            with suppress(KeyError, TypeError, ValueError):  # the next step raises them
                group_curves.match_reloaded_groups()
        self.advice.after_load(optimizer)


def _add_new_groups(all_group_curves: list[GroupCurves]) -> None:
    """Add new groups to each `GroupCurves`; for each option, the newest in charge writes values.

    The others read the bases now, before any scheduler changes the values. What raises an error for
    them is raised when they are stepped, if they are.
    """
    for option in dict.fromkeys(group_curves.option for group_curves in all_group_curves):
        newest_first = [item for item in reversed(all_group_curves) if item.option == option]
        are_accepted = False
        for group_curves in newest_first:
            if not group_curves.unknown_groups() or group_curves.is_in_charge():
                group_curves.add_new_groups()
                are_accepted = True
                break
        for group_curves in newest_first:
            with suppress(TypeError, ValueError):
                group_curves.add_new_groups(writes=False, are_accepted=are_accepted)


def hook_of(optimizer: Optimizer) -> UpdateHook:
    """Return the hook of an optimizer; if its steps run no hooks, one that is never called."""
    # Torch marks the `step` of a class that runs hooks, in the constructor of its first instance.
    # Without the mark, the optimizer is a wrapper, a trainer's or one such as Lookahead, and the
    # optimizer inside may run hooks.
    while not hasattr(type(optimizer).step, "hooked"):
        inner = inner_optimizer(optimizer)
        if inner is None:
            return UpdateHook()
        optimizer = inner
    hooks: dict[int, Any] | None = getattr(optimizer, "_optimizer_step_pre_hooks", None)
    if hooks is None:
        return UpdateHook()
    for hook in hooks.values():
        if isinstance(hook, UpdateHook):
            return hook
    hook = UpdateHook()
    hook.advice.begin(optimizer)
    optimizer.register_step_pre_hook(hook)
    hook.is_registered = True
    if hasattr(optimizer, "_optimizer_load_state_dict_post_hooks"):  # wrappers may lack it
        optimizer.register_load_state_dict_post_hook(hook.after_load)
    return hook
