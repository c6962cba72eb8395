"""Curves for one option of an optimizer's parameter groups, as a torch scheduler.

    group[option] = float32(float32(base) · curve(step))

`ScheduledGroups` says which groups these are. A scheduler looks for new ones when it is stepped,
when its state is loaded or a base set, and before an update. Reading changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, ClassVar

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.clock import AnyClock, check_clock
from plateau_jax.clocks.position import (
    Position,
    advance_on_host,
    dump_position,
    position_after,
    start_position,
)
from plateau_jax.curves.curve import Curve
from plateau_jax.runs.comparison import StateOwner
from plateau_jax.runs.record import dump_records, records_of
from plateau_jax.runs.resume import resume
from plateau_jax.runs.schedules import Schedules
from plateau_jax.saved_states.formats import check_bool, reading_state_of
from torch_bridge.advice.step_advice import StepAdvice, seems_loaded
from torch_bridge.advice.value_advice import message_at_build, value_message, warn_of_factors
from torch_bridge.groups.curves_and_peaks import check_peaks_are_known
from torch_bridge.groups.options import GroupOption, bases_per_group, one_if_equal
from torch_bridge.schedulers.scheduled_groups import Members, ScheduledGroups
from torch_bridge.schedulers.update_hook import call_before_updates


class GroupScheduler(LRScheduler):
    """The base class of `lambda_lr` and `follow`."""

    _owner: ClassVar[StateOwner]
    """How messages about a state name this scheduler."""

    _get_lr_called_within_step = True
    """Keeps torch from warning about a derived class whose `get_lr` follows torch's own pattern."""

    def __init__(
        self,
        optimizer: Optimizer,
        option: GroupOption,
        curve: Curve | Mapping[str, Any] | Sequence[Curve | None],
        clock: AnyClock | None,
        last_epoch: int,
        *,
        advise: bool,
    ) -> None:
        last_epoch = checks.at_least("last_epoch", last_epoch, -1)
        groups = ScheduledGroups(optimizer, option, curve)
        self._groups = groups
        found = Members([*groups.present()], Schedules(groups.curves, groups.bases))
        curves = groups.curves
        if groups.curve is not None:  # also if there are no groups
            curves = [groups.curve]
        self._clock = check_clock(clock, curves)
        self._position = self._first_position(last_epoch)
        self._position_of_update: Position | None = None
        """Where the scheduler was at the last update, to notice that nobody steps it any more."""
        self._peak_was_set = False
        """True if the program has set the bases, in this run or before. The saved ones may then
        differ from the program's without a warning."""
        self._advice: StepAdvice | None = None

        warn_of_factors(option, found.groups)
        message, was_loaded = "", False
        if advise:
            message = message_at_build(
                optimizer, option, self.curve_step, found.groups, groups.curves, groups.bases
            )
            was_loaded = not message and last_epoch < 0 and seems_loaded(optimizer)
        groups.accept(found, self.curve_step, writes=False)
        if option.name == "lr" and _has_plain_step(optimizer):
            LRScheduler.__init__(self, optimizer, last_epoch)
        else:
            # Torch's constructor would write `initial_lr` for another option, and mistake a
            # function for a method of the class.
            self._initial_step()
        if advise:
            self._advice = StepAdvice(
                optimizer,
                self._clock,
                self._position,
                value_message=message,
                was_loaded=was_loaded,
                counts_steps=option.name == "lr",
            )
        call_before_updates(optimizer, self._before_update)

    def _first_position(self, last_epoch: int) -> Position:
        """Return the position before the step that torch's constructor makes, which only counts."""
        clock = self._clock
        if last_epoch < 0:
            return start_position(clock, -1, 0)
        alternative = "; or leave out last_epoch, and call scheduler.load_state_dict(state)"
        argument = f"last_epoch = {last_epoch}"
        check_peaks_are_known(self.optimizer, argument, alternative)
        position = position_after(clock, last_epoch + 1, argument, alternative)
        return position._replace(updates=last_epoch)

    # The groups. In torch's classes, the next four properties are plain attributes.

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose groups follow the curve."""
        return self._groups.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if optimizer is not self._groups.optimizer:  # torch's constructor sets it
            raise ValueError(
                "the optimizer of a scheduler can't be replaced: build a scheduler for the new "
                "optimizer, and call new.load_state_dict(old.state_dict())"
            )

    @property
    def base_lrs(self) -> list[Any]:
        """The base of each group, in float32. Programs may change it."""
        return self._groups.bases

    @base_lrs.setter
    def base_lrs(self, bases: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._groups.bases = [*bases]

    @property
    def lr_lambdas(self) -> list[Any]:
        """The curve of each group, under torch's name."""
        return self._groups.curves

    @lr_lambdas.setter
    def lr_lambdas(self, curves: Any) -> None:  # a different one is an error of the next step
        self._groups.curves = [*curves]

    @property
    def _last_lr(self) -> list[Any]:  # a copy: programs delete items of removed groups
        return [*self._groups.last]

    @_last_lr.setter
    def _last_lr(self, values: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        last = self._groups.last
        if len(values) == len(last):  # not after a change of the groups
            last[:] = values  # the same list, which shows who has written last

    def _sync_groups(self, *, warns: bool = True) -> None:
        """Match the groups and the lists, which a program may have changed; write into new groups.

        Args:
            warns: False if the values of all groups are about to be replaced on purpose.

        Raises:
            TypeError, ValueError: A new group has no base or curve, or a list is wrong. Nothing was
                changed.
        """
        groups = self._groups
        if groups.are_unchanged():
            return
        members = groups.read_members()
        new = groups.new_among(members.groups)
        writes = bool(new) and groups.is_in_charge()
        # Warnings first, since they may be errors.
        if self._advice is not None:
            if writes and warns:
                self._warn_of_values(members)
            if groups.has_loaded_other_values():
                self._advice.note_load()
        warn_of_factors(groups.option, new)
        groups.accept(members, self.curve_step, writes=writes)

    def _warn_of_values(self, members: Members) -> None:
        """Warn of a new group with a value that will be overwritten."""
        groups, step = self._groups, self.curve_step
        schedules = members.schedules
        for group, curve, base in zip(
            members.groups, schedules.curves, schedules.bases, strict=True
        ):
            if groups.place_of(group) is None:
                message = value_message(self.optimizer, groups.option, step, group, curve, base)
                if message:
                    warn(message)

    def _before_update(self) -> None:
        """Give groups that were added their values, before the update of the optimizer."""
        groups = self._groups
        present = groups.present()
        if not groups.are_known(present):
            self._sync_before_update(groups.new_among(present))
        self._position_of_update = self._position
        # DeepSpeed calls `step` for each group alone, or with the others emptied: these calls are
        # one update.
        if self._advice is None or not present or not present[0]["params"]:
            return
        if groups.place_of(present[0]) == 0:
            self._advice.before_update(
                self._position, groups.members.schedules, groups.is_in_charge
            )

    def _sync_before_update(self, new: Sequence[dict[str, Any]]) -> None:
        """Write the values of new groups, if this is the scheduler that the program steps."""
        if not new:  # groups were removed or reordered, or DeepSpeed shows only some of them
            return
        option = self._groups.option
        # Torch's `get_optimizer_state_dict` makes an update in which every learning rate is 0.
        if all(option.is_in(group) and not option.number_in(group) for group in new):
            return
        if self.last_epoch < 0:  # it waits for its turn
            self._groups.keep_missing_bases()
        elif self._position is not self._position_of_update and self._groups.is_in_charge():
            self._sync_groups()

    # What programs and the advice read.

    @property
    def curves(self) -> list[Curve]:
        """The curve of each group."""
        return self.lr_lambdas

    @property
    def last_epoch(self) -> int:
        """The number of steps so far; -1 while it waits for its turn in a `SequentialLR`."""
        return self._position.updates

    # In torch's class, a plain attribute.
    @last_epoch.setter
    def last_epoch(self, updates: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        before = self._position
        if updates == before.updates:
            return
        if updates < 0 and before.updates <= 0:  # torch's `SequentialLR` takes back first steps
            self._position = self._first_position(-1)
        elif self._clock.unit is not None or self._clock.rules:
            raise ValueError(
                f"last_epoch = {updates}, but this scheduler is at {before.updates}, and with "
                "clock= the number of updates does not say where it is on the curve: to go to "
                "another step, call scheduler.load_state_dict(state)"
            )
        else:
            self._position = start_position(self._clock, max(updates, -1), max(updates, 0))
            self._restart_advice()

    @property
    def curve_step(self) -> int:
        """The step of the curve that gives the values of the next update."""
        return self._position.step

    @property
    def consumed(self) -> int:
        """The sum of the counts of all updates; without a `DataClock`, the number of updates."""
        return self._position.consumed(self._clock)

    @property
    def unit(self) -> int | None:
        """The number of samples or tokens in one step of the curve; None if a step is an update."""
        return self._clock.unit

    def __repr__(self) -> str:
        option = self._groups.option
        values = [option.number_in(group) for group in self._groups.present()]
        curve = self._groups.curve or self.lr_lambdas
        unit = "" if self.unit is None else f", unit={self.unit}"
        return (
            f"{type(self).__name__}({curve!r}, curve_step={self.curve_step}{unit}, "
            f"{option}={one_if_equal(values)!r})"
        )

    def get_lr(self) -> list[Any]:
        """Return each group's value at `curve_step`, a float32 number as a Python float.

        A group that was added is not among them until the next update or step.
        """
        return self._groups.members.schedules.values_at(self.curve_step)[:]

    def get_last_lr(self) -> list[Any]:
        """Return what this scheduler wrote last, in the order that the groups had then."""
        return self._last_lr

    # Steps.

    def _position_after(self, count: Any, metric: Any) -> Position:
        """Return the position after one more update."""
        before = self._position
        is_initial = self._step_count == 0 or before.updates < 0
        if is_initial and count is None and metric is None:
            # Torch's constructors step a scheduler before the first update.
            return before._replace(updates=before.updates + 1)
        return advance_on_host(self._clock, before, count, metric)

    # Torch's `SequentialLR` calls this instead of `step` when this scheduler's turn comes.
    def _update_lr(self, epoch: Any = 0) -> None:
        self._move_to(start_position(self._clock, epoch, epoch))
        self._restart_advice()

    def _move_to(self, position: Position) -> None:
        """Write the values of a position into the groups."""
        self._sync_groups()
        self._position = position
        self._groups.write_values(self.get_lr())

    def _restart_advice(self) -> None:
        if self._advice is not None:
            self._advice.restart(self._position)

    def _set_bases(self, name: str, bases: Any) -> None:
        checked = bases_per_group(name, bases, len(self._groups.present()))
        self._sync_groups(warns=False)
        self._groups.set_bases(checked, keeps_others=False)
        self._peak_was_set = True
        self._restart_advice()
        if self.last_epoch >= 0:  # not while it waits for its turn in a SequentialLR
            self._move_to(self._position)

    # States.

    def _state_entries(self) -> dict[str, Any]:
        schedules = self._groups.members.schedules
        # What is wrong, such as an added group without a curve, is an error of the next step.
        with suppress(TypeError, ValueError):
            schedules = self._groups.read_members().schedules
        return {
            "last_epoch": self.last_epoch,
            **dump_position(self._clock, self._position),
            "records": dump_records(records_of(schedules.curves, schedules.bases, self._clock)),
            "peak_was_set": self._peak_was_set,
            "in_charge": self.last_epoch >= 0 and self._groups.is_in_charge(),
        }

    def _load(
        self,
        what: str,
        read: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        state_dict: Mapping[str, Any],
        *,
        strict: bool,
    ) -> None:
        """Resume from a state.

        Args:
            what: What the state should be the state of, for messages.
            read: Checks the entries of the state, and returns them.
            state_dict: The state.
            strict: As in `resume`.
        """
        groups = self._groups
        members = groups.read_members()
        with reading_state_of(what, state_dict):
            state = read(state_dict)
            for name in ("in_charge", "peak_was_set"):
                check_bool(name, state[name])
            now = records_of(members.schedules.curves, members.schedules.bases, self._clock)
            # A rollback to before `set_peak`.
            is_rollback = self._peak_was_set and self.last_epoch > 0
            for index, group in enumerate(members.groups):
                # FinetuningScheduler adds groups again, with a momentary value, before a load.
                is_added = self.last_epoch > 0 and groups.place_of(group) is None
                if state["peak_was_set"] or is_rollback or is_added:
                    now[index] = now[index]._replace(peak_value=None)
            updates = checks.at_least("last_epoch", state["last_epoch"], -1)
            resumed = resume(state, updates, now, self._clock, self._owner, strict=strict)
        for message in resumed.warnings:
            warn(message)
        self._sync_groups(warns=False)
        # A different scheduler may have been in charge when the state was saved, for example in a
        # `SequentialLR`. Then the state of the optimizer has its values. A new scheduler in charge
        # takes over from the one that was saved.
        is_new = self.last_epoch <= 0 and groups.is_in_charge()
        # Also while it waits for its turn: the bases belong to the groups.
        groups.set_bases(resumed.bases, keeps_others=True)
        if resumed.position.updates >= 0 and (state["in_charge"] or is_new):
            self._move_to(resumed.position)
        else:
            self._position = resumed.position
        self._peak_was_set = state["peak_was_set"]
        self._step_count = max(self.last_epoch, 0) + 1
        self._restart_advice()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._advice = copy(self._advice)
        self._groups = self._groups.copied()
        # A copied optimizer has lost its hooks.
        call_before_updates(self.optimizer, self._before_update)


def _has_plain_step(optimizer: Optimizer) -> bool:
    """Return True if `optimizer.step` is this object's own method, or torch's replacement of it."""
    step = optimizer.step
    if hasattr(step, "_wrapped_by_lr_sched"):
        return True
    return getattr(step, "__self__", None) is optimizer
