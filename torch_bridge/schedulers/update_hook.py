"""The hook that runs before each update of an optimizer, for all its schedulers and followers.

    event                                      calls
    a scheduler or follower is built, copied   UpdateHook.add
      or is given a different optimizer
    a `lambda_lr` is built, jumps, is loaded   StepWarnings.watch
    torch starts a `lambda_lr`, maybe again    StepWarnings.begin_turn
    optimizer.step()                           GroupCurves.add_new_groups, StepWarnings.check,
                                               LastWrite.note_update
    the step of any optimizer                  UpdateCount
    optimizer.load_state_dict()                GroupCurves.before_load, StepWarnings.note_load,
                                               GroupCurves.after_load

Schedulers and followers also call `GroupCurves.sync` themselves, before they use the groups.
"""

import math
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torch_bridge.param_groups import LEARNING_RATE, has_two_steps, inner_optimizer, loaded_updates
from torch_bridge.schedulers.group_curves import GroupCurves
from torch_bridge.schedulers.peaks import LastWrite
from torch_bridge.schedulers.step_warnings import StepWarnings, WatchedScheduler, WeakList


# A scheduler cannot see an optimizer that it was not told of. Therefore this hook is global.
class UpdateCount:
    """The number of updates that optimizers without a scheduler have made in this process."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # Torch's schedulers mark the step of their optimizer.
        if not is_dynamo_compiling() and not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            self.count += 1


@cache
def unscheduled_updates() -> UpdateCount:
    """Return the count of updates without a scheduler, from the first call on."""
    count = UpdateCount()
    register_optimizer_step_pre_hook(count)
    return count


class UpdateHook:
    """Gives added groups their values before an update, and checks the schedulers' steps.

    It holds weak references: an optimizer holds its hooks, which must not keep old schedulers
    alive.
    """

    def __init__(self) -> None:
        self.updates = 0
        """The number of updates so far."""
        self.is_registered = False
        """True if the steps of an optimizer call this."""
        self.are_updates_counted = True
        """False if updates may be replayed, or run in compiled code, without calling this."""
        self.warnings = StepWarnings()
        self.last_lrs = LastWrite()
        self._group_curves = WeakList[GroupCurves]()
        """Each `GroupCurves` of the optimizer."""
        self._stepped_groups = set[int]()
        """The groups that the present update has stepped, by identity."""
        self._scheduler_steps = -1
        """The steps of all schedulers before the present update."""

    def add(self, group_curves: GroupCurves) -> None:
        """Let this `GroupCurves` follow the groups of the optimizer."""
        self._group_curves.add(group_curves)

    def remove(self, group_curves: GroupCurves) -> None:
        """Leave out a `GroupCurves` that has been given a different optimizer."""
        self._group_curves.remove(group_curves)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():  # the count would be compiled in
            self.are_updates_counted = False
            return
        all_group_curves = self._group_curves.living()
        if not all(group_curves.has_current_groups() for group_curves in all_group_curves):
            _add_new_groups(all_group_curves)
        if not self._begins_update(optimizer.param_groups):
            return
        if _is_capturing():
            self.are_updates_counted = False
        elif self.updates >= self.warnings.next_check:
            self.warnings.check(self.updates)
        self.last_lrs.note_update()
        self.updates += 1

    def restore_loaded(self) -> None:
        """Let a scheduler that joins find what the optimizer has loaded, as under torch's."""
        for group_curves in self._group_curves.living():
            if group_curves.option == LEARNING_RATE:
                group_curves.restore_loaded()

    def look_for_updates(self, scheduler: WatchedScheduler) -> None:
        """Warn if the scheduler is stepped, but a different optimizer makes the updates."""
        if self.are_updates_counted:
            unscheduled = unscheduled_updates().count
            self.warnings.look_for_updates(scheduler, self.updates, unscheduled)
        else:
            scheduler.next_look = math.inf

    def _begins_update(self, groups: list[dict[str, Any]]) -> bool:
        """Return False if this call belongs to the same update as the previous call.

        DeepSpeed calls the optimizer's step once per group, and shows that group alone, or empties
        the other groups.
        """
        stepped = {id(group) for group in groups if group["params"]}
        scheduler_steps = self.warnings.count_steps()
        no_scheduler_stepped = scheduler_steps == self._scheduler_steps
        if no_scheduler_stepped and self._stepped_groups.isdisjoint(stepped):
            self._stepped_groups |= stepped
            return False
        self._stepped_groups = stepped
        self._scheduler_steps = scheduler_steps
        return True

    def before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """Note who is in charge before `load_state_dict` replaces the groups."""
        for group_curves in self._group_curves.living():
            group_curves.before_load()

    def after_load(self, optimizer: Optimizer) -> None:
        """Match the groups that `load_state_dict` has just replaced with the known ones."""
        self.warnings.note_load(optimizer)
        self._scheduler_steps = -1  # the next call begins an update, although its groups are new
        for group_curves in self._group_curves.living():
            with suppress(TypeError, ValueError):  # the next step raises them
                group_curves.after_load()


def _add_new_groups(all_group_curves: list[GroupCurves]) -> None:
    """Add new groups to each `GroupCurves`; for each option, one of them writes the values.

    It is the newest that knows the groups already or is in charge, or else the newest.
    """
    for option in dict.fromkeys(group_curves.option for group_curves in all_group_curves):
        newest_first = [item for item in reversed(all_group_curves) if item.option == option]
        writer = newest_first[0]
        for group_curves in newest_first:
            if not group_curves.unknown_groups() or group_curves.is_in_charge():
                writer = group_curves
                break
        writer.add_new_groups()
        # The others read the bases now, before any scheduler changes the values.
        for group_curves in newest_first:
            with suppress(TypeError, ValueError):
                group_curves.add_new_groups(writes=False)


def _is_capturing() -> bool:
    """Return True while a CUDA graph is captured, when nothing can be read from the device."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


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
    hook.warnings.loaded_updates = loaded_updates(optimizer)
    optimizer.register_step_pre_hook(hook)
    hook.is_registered = True
    hook.are_updates_counted = not has_two_steps(optimizer)
    unscheduled_updates()
    if hasattr(optimizer, "_optimizer_load_state_dict_post_hooks"):  # wrappers may lack it
        optimizer.register_load_state_dict_pre_hook(hook.before_load)
        optimizer.register_load_state_dict_post_hook(hook.after_load)
    return hook
