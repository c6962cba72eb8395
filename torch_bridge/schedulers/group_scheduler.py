"""Curves for one option of an optimizer's parameter groups, as a torch scheduler.

    group[option] = float32(float32(base) · curve(step))

When the scheduler meets a group, it reads the base once: `initial_<option>` if the group has it,
else the value. It keeps the base in `base_lrs`, as torch does, and in the group, where the next
scheduler finds it. Removed groups are forgotten.

Groups are met when the scheduler is built or stepped, when its state is loaded or a base set, and
before an update. Reading changes nothing.
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
from plateau_jax.curves.curve import AnyCurve, Curve
from plateau_jax.curves.several_curves import as_curves
from plateau_jax.runs.comparison import StateOwner, one_if_equal
from plateau_jax.runs.group_values import GroupValues
from plateau_jax.runs.record import dump_records, records_of
from plateau_jax.runs.resume import resume
from plateau_jax.saved_states.formats import check_bool, reading_state_of
from torch_bridge.advice.step_advice import StepAdvice, seems_loaded
from torch_bridge.advice.value_advice import message_at_build, value_message, warn_of_scales
from torch_bridge.groups.curves_and_peaks import (
    check_peaks_are_known,
    curves_of,
    curves_of_groups_with,
)
from torch_bridge.groups.optimizers import groups_of
from torch_bridge.groups.options import (
    GroupOption,
    as_number,
    bases_per_group,
    is_same,
    written_values,
)
from torch_bridge.schedulers.members import Members
from torch_bridge.schedulers.update_hook import call_before_updates


class GroupScheduler(LRScheduler):
    """The base class of `lambda_lr` and `follow`."""

    _owner: ClassVar[StateOwner]
    """How messages about a state name this scheduler."""

    base_lrs: list[Any]
    """The base of each group, in float32. Programs may change it."""

    lr_lambdas: list[Any]
    """The curve of each group, under torch's name."""

    _get_lr_called_within_step = True
    """Keeps torch from warning about a derived class whose `get_lr` follows torch's own pattern."""

    def __init__(
        self,
        optimizer: Optimizer,
        option: GroupOption,
        curve: AnyCurve | Sequence[AnyCurve | None],
        clock: AnyClock | None,
        last_epoch: int,
        *,
        advise: bool,
    ) -> None:
        last_epoch = checks.at_least("last_epoch", last_epoch, -1)
        groups = groups_of(optimizer)
        self._optimizer = optimizer
        self._option = option
        self._written = written_values(optimizer)
        given = as_curves("curve", curve)
        self._curve: Curve | None = None
        """The curve of all groups; None if each group has its own."""
        self._skips_groups = False
        """True if groups without the option are ignored."""
        if isinstance(given, Curve):
            self._curve = given
        elif option.name != "lr" and isinstance(given, Sequence) and None in given:
            self._skips_groups = True
            given = curves_of_groups_with(option, groups, given)
        followed = self._followed()
        curves = curves_of(followed, given)
        distinct = curves
        if self._curve is not None:
            distinct = [self._curve]
        self._clock = check_clock(clock, distinct)
        self._position = self._first_position(last_epoch)
        self._position_of_update: Position | None = None
        """Where the scheduler was at the last update, to notice that nobody steps it any more."""
        self._peak_was_set = False
        """True if the program has set the bases, in this run or before. The saved ones may then
        differ from the program's without a warning."""

        pairs = zip(self._indices(), followed, strict=True)
        bases = [option.base_of(index, group) for index, group in pairs]
        warn_of_scales(option, followed)
        message = ""
        if advise:
            # The step of the first update: torch's constructor makes a step.
            first_step = self._position.step + (self._clock.unit is None)
            message = message_at_build(optimizer, option, first_step, followed, curves, bases)
        was_loaded = not message and last_epoch < 0 and seems_loaded(optimizer)
        self._advice: StepAdvice | None = None
        self._last_lr: list[Any] = []
        self._members = Members([], GroupValues([], []))
        self._set_members(Members([*followed], GroupValues(curves, bases)), writes=False)
        if option.name == "lr" and _has_plain_step(optimizer):
            LRScheduler.__init__(self, optimizer, last_epoch)
        else:
            # Torch's constructor would write `initial_lr` for another option, and mistake a
            # function for a method of the class.
            self._initial_step()
        if advise:
            self._advice = StepAdvice(
                self._position,
                value_message=message,
                was_loaded=was_loaded,
                counts_steps=option.name == "lr",
            )
        call_before_updates(self._optimizer, self._before_update)

    def _first_position(self, last_epoch: int) -> Position:
        """Return the position before the step that torch's constructor makes."""
        clock = self._clock
        if last_epoch < 0:
            step = -1
            if clock.unit is not None:
                step = 0
            return start_position(clock, -1, step)
        alternative = "; or leave out last_epoch, and call scheduler.load_state_dict(state)"
        argument = f"last_epoch = {last_epoch}"
        check_peaks_are_known(self._optimizer, argument, alternative)
        position = position_after(clock, last_epoch + 1, argument, alternative)
        if clock.unit is None:
            position = position._replace(step=position.step - 1)
        return position._replace(updates=last_epoch)

    # The groups.

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose groups follow the curve."""
        return self._optimizer

    # In torch's class, a plain attribute.
    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if optimizer is not self._optimizer:  # torch's constructor sets it
            raise ValueError(
                "the optimizer of a scheduler can't be replaced: build a scheduler for the new "
                "optimizer, and call new.load_state_dict(old.state_dict())"
            )

    def _followed(self) -> list[dict[str, Any]]:
        """Return the groups that follow the curves: all, or those with the option."""
        groups = self._optimizer.param_groups
        if self._skips_groups:
            return [groups[index] for index in self._indices()]
        return groups

    def _indices(self) -> list[int]:
        """Return the places of these groups in `optimizer.param_groups`."""
        groups = self._optimizer.param_groups
        if self._skips_groups:
            return [index for index, group in enumerate(groups) if self._option.is_in(group)]
        return [*range(len(groups))]

    def _current_members(self) -> Members:
        """Return the members as they are now. Changes nothing."""
        return self._members.updated(
            self._followed(),
            self._indices(),
            self._option,
            self._curve,
            self.base_lrs,
            self.lr_lambdas,
        )

    def _sync_groups(self, *, warns: bool = True) -> None:
        """Match the groups and the lists, which a program may have changed; write into new groups.

        Args:
            warns: False if the values of all groups are about to be replaced on purpose.

        Raises:
            TypeError, ValueError: A new group has no base or curve, or a list is wrong. Nothing was
                changed.
        """
        values = self._members.values
        are_same = self._members.same_groups(self._followed())
        if are_same and self.base_lrs == values.bases and self.lr_lambdas == values.curves:
            return
        present = self._current_members()
        new = self._members.new_among(present.groups)
        writes = bool(new) and self._is_in_charge()
        # Warnings first, since they may be errors.
        if self._advice is not None:
            if writes and warns:
                self._warn_of_values(present)
            if self._has_loaded_other_values(present.groups):
                self._advice.note_load()
        warn_of_scales(self._option, new)
        self._set_members(present, writes=writes)

    def _set_members(self, members: Members, *, writes: bool) -> None:
        """Follow these groups from now on; if `writes`, write the values into the new ones."""
        option = self._option
        values = members.values
        last: list[Any] = values.at(self.curve_step)[:]
        for index, (group, base) in enumerate(zip(members.groups, values.bases, strict=True)):
            place = self._members.place_of(group)
            if place is None or group is not self._members.groups[place]:
                option.separate_tensor(group)
            if place is not None:
                group.setdefault(option.base_key, base)
                last[index] = self._last_lr[place]
                continue
            has_base = option.base_key in group
            group[option.base_key] = base
            if writes and not has_base:
                last[index] = option.write(group, last[index])
            elif writes:  # a different scheduler, or the program, has met it
                last[index] = as_number(option.read(group))
        if self._written.get(option.base_key) is self._last_lr:
            self._written[option.base_key] = last
        self.base_lrs, self.lr_lambdas = [*values.bases], [*values.curves]
        self._members, self._last_lr = members, last

    def _warn_of_values(self, present: Members) -> None:
        """Warn of a new group with a value that will be overwritten."""
        curves, bases = present.values.curves, present.values.bases
        for group, curve, base in zip(present.groups, curves, bases, strict=True):
            if self._members.place_of(group) is None:
                message = value_message(
                    self._optimizer, self._option, self.curve_step, group, curve, base
                )
                if message:
                    warn(message)

    def _has_loaded_other_values(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Return True if the optimizer has loaded a state with different bases or values."""
        option = self._option
        for group in groups:
            place = self._members.place_of(group)
            if place is None or group is self._members.groups[place]:
                continue
            base, last = self._members.values.bases[place], self._last_lr[place]
            if option.base_key not in group:  # saved before a scheduler was built
                last = base
            saved_base = as_number(group.get(option.base_key, base))
            value = as_number(option.read(group))
            if not (is_same(value, as_number(last)) and is_same(saved_base, base)):
                return True
        return False

    def _is_in_charge(self) -> bool:
        """Return True if the groups have what this scheduler wrote, and no later one has written.

        May wait for the device.
        """
        if self._written.get(self._option.base_key) is not self._last_lr:
            return False
        present = {id(group) for group in self._followed()}
        # Not strict, because programs append to `_last_lr`.
        for group, last in zip(self._members.groups, self._last_lr, strict=False):
            if id(group) not in present:
                continue
            if not is_same(as_number(self._option.read(group)), as_number(last)):
                return False
        return True

    def _before_update(self) -> None:
        """Give groups that were added their values, before the update of the optimizer."""
        groups = self._followed()
        if not self._members.same_groups(groups):
            self._sync_before_update(groups)
        self._position_of_update = self._position
        # DeepSpeed calls `step` for each group alone, or with the others emptied: these calls are
        # one update.
        if self._advice is None or not groups or not groups[0]["params"]:
            return
        if self._members.place_of(groups[0]) == 0 and self._advice.count_update():
            self._advice.warn_if_due(self, self._members.values, self._is_in_charge)

    def _sync_before_update(self, groups: Sequence[dict[str, Any]]) -> None:
        """Write the values of new groups, if this is the scheduler that the program steps."""
        option = self._option
        # Torch's `get_optimizer_state_dict` makes an update in which every learning rate is 0.
        new = self._members.new_among(groups)
        if not any(not option.is_in(group) or as_number(option.read(group)) for group in new):
            return
        if self.last_epoch < 0:
            # It waits for its turn: the base has to be kept before the scheduler in charge, perhaps
            # one of torch's, changes the value.
            for index, group in zip(self._indices(), groups, strict=True):
                with suppress(TypeError, ValueError):  # raised by the next step
                    group.setdefault(option.base_key, option.base_of(index, group))
        elif self._position is not self._position_of_update and self._is_in_charge():
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
            self._position = start_position(self._clock, updates, updates)
            self._restart_advice()

    @property
    def curve_step(self) -> int:
        """The step of the curve that gives the values of the next update."""
        return max(self._position.step, 0)

    @property
    def consumed(self) -> int:
        """The sum of the counts of all updates; without a `DataClock`, the number of updates."""
        return self._position.consumed(self._clock)

    @property
    def unit(self) -> int | None:
        """The number of samples or tokens in one step of the curve; None if a step is an update."""
        return self._clock.unit

    def __repr__(self) -> str:
        values = [as_number(self._option.read(group)) for group in self._followed()]
        curve = self._curve or self.lr_lambdas
        unit = "" if self.unit is None else f", unit={self.unit}"
        return (
            f"{type(self).__name__}({curve!r}, curve_step={self.curve_step}{unit}, "
            f"{self._option}={one_if_equal(values)!r})"
        )

    def get_lr(self) -> list[Any]:
        """Return each group's value at `curve_step`, a float32 number as a Python float.

        A group that was added is not among them until the next update or step.
        """
        return self._members.values.at(self.curve_step)[:]

    def get_last_lr(self) -> list[Any]:
        """Return the values that this scheduler wrote last, in the order of the groups."""
        return [*self._last_lr]

    # Steps.

    def _position_after(self, count: Any, metric: Any) -> Position:
        """Return the position after one more update."""
        before = self._position
        is_initial = self._step_count == 0 or before.updates < 0
        if is_initial and count is None and metric is None:
            # Torch's constructors step a scheduler before the first update.
            step = before.step + (self._clock.unit is None)
            return before._replace(updates=before.updates + 1, step=step)
        return advance_on_host(self._clock, before, count, metric)

    # Torch's `SequentialLR` calls this instead of `step` when this scheduler's turn comes.
    def _update_lr(self, epoch: Any = 0) -> None:
        self._move_to(start_position(self._clock, epoch, epoch))
        self._restart_advice()

    def _move_to(self, position: Position) -> None:
        """Write the values of a position into the groups."""
        self._sync_groups()
        self._position = position
        values = self.get_lr()
        option = self._option
        name = option.name
        for index, group in enumerate(self._members.groups):
            if type(group[name]) is float:
                group[name] = values[index]
            else:
                values[index] = option.write(group, values[index])
        self._last_lr = self._written[option.base_key] = values

    def _restart_advice(self) -> None:
        if self._advice is not None:
            self._advice.restart(self._position)

    def _set_bases(self, name: str, bases: Any) -> None:
        checked = bases_per_group(name, bases, len(self._followed()))
        self._sync_groups(warns=False)
        self.base_lrs = checked
        for group, base in zip(self._members.groups, checked, strict=True):
            group[self._option.base_key] = base
        self._sync_groups()
        self._peak_was_set = True
        self._restart_advice()
        if self.last_epoch >= 0:  # not while it waits for its turn in a SequentialLR
            self._move_to(self._position)

    # States.

    def _written_state(self) -> dict[str, Any]:
        values = self._members.values
        # What is wrong, such as an added group without a curve, is an error of the next step.
        with suppress(TypeError, ValueError):
            values = self._current_members().values
        return {
            "last_epoch": self.last_epoch,
            **dump_position(self._clock, self._position),
            "records": dump_records(values.curves, values.bases, self._clock),
            "peak_was_set": self._peak_was_set,
            "in_charge": self.last_epoch >= 0 and self._is_in_charge(),
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
        present = self._current_members()
        with reading_state_of(what, state_dict):
            state = read(state_dict)
            for name in ("in_charge", "peak_was_set"):
                check_bool(name, state[name])
            now = records_of(present.values.curves, present.values.bases, self._clock)
            # A rollback to before `set_peak`.
            is_rollback = self._peak_was_set and self.last_epoch > 0
            for index, group in enumerate(present.groups):
                # FinetuningScheduler adds groups again, with a momentary value, before a load.
                is_added = self.last_epoch > 0 and self._members.place_of(group) is None
                if state["peak_was_set"] or is_rollback or is_added:
                    now[index] = now[index]._replace(peak_value=None)
            resumed = resume(state, now, self._clock, self._owner, strict=strict)
        for message in resumed.warnings:
            warn(message)
        self._sync_groups(warns=False)
        # A different scheduler may have been in charge when the state was saved, for example in a
        # `SequentialLR`. Then the state of the optimizer has its values. A new scheduler in charge
        # takes over from the one that was saved.
        is_new = self.last_epoch <= 0 and self._is_in_charge()
        key = self._option.base_key
        for index, base in enumerate(resumed.peaks):
            group, before = self._members.groups[index], self.base_lrs[index]
            if is_same(as_number(group.get(key, before)), before):  # else a different scheduler's
                group[key] = base
            self.base_lrs[index] = base
        # Also while it waits for its turn: the bases belong to the groups.
        self._sync_groups(warns=False)
        if resumed.position.updates >= 0 and (state["in_charge"] or is_new):
            self._move_to(resumed.position)
        else:
            self._position = resumed.position
        self._peak_was_set = state["peak_was_set"]
        self._step_count = self.last_epoch + 1
        self._restart_advice()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._advice = copy(self._advice)
        # A copied optimizer has lost its attributes and its hooks.
        self._written = written_values(self._optimizer, self._written)
        self.base_lrs = [*self.base_lrs]
        self.lr_lambdas = [*self.lr_lambdas]
        call_before_updates(self._optimizer, self._before_update)


def _has_plain_step(optimizer: Optimizer) -> bool:
    """Return True if `optimizer.step` is this object's own method, or torch's replacement of it."""
    step = optimizer.step
    if hasattr(step, "_wrapped_by_lr_sched"):
        return True
    return getattr(step, "__self__", None) is optimizer
