"""Curves for one option of an optimizer's parameter groups, as a torch scheduler.

    group[option] = float32(float32(base) · curve(step))

Reading a scheduler changes nothing; a step, a load or a new base does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import is_
from typing import Any, ClassVar, cast

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
from plateau_jax.curves.serialization import curve_from_dict
from plateau_jax.runs.comparison import StateOwner
from plateau_jax.runs.record import Record, dump_records, records_of
from plateau_jax.runs.resume import resume
from plateau_jax.runs.schedules import Schedules
from plateau_jax.saved_states.formats import reading_state_of
from torch_bridge.advice.position_advice import end_message, first_step_past_end
from torch_bridge.advice.step_advice import StepAdvice, call_before_updates, seems_loaded
from torch_bridge.advice.value_advice import value_messages, warn_of_factors
from torch_bridge.groups.curves_and_peaks import (
    check_key,
    check_peaks_are_known,
    curves_of,
    curves_of_groups_with,
)
from torch_bridge.groups.optimizers import check_optimizer, groups_of
from torch_bridge.groups.options import (
    GroupOption,
    as_number,
    bases_per_group,
    one_if_equal,
    written_values,
)

_NEVER = 2**64
"""Above every step of a curve."""

_PAST_END_INTERVAL = 32
"""Past the end, only every 32nd step checks whether a warning is due."""


class GroupScheduler(LRScheduler):
    """The base class of `lambda_lr` and `follow`.

    Programs may write into the plain attributes of a `LambdaLR`: `optimizer`, `base_lrs`,
    `lr_lambdas` and `_last_lr`. A step, a load and a set base compare the first three, and the
    groups, with what was accepted.
    """

    _owner: ClassVar[StateOwner]
    """How messages about a state name this scheduler."""

    lr_lambdas: list[Curve]
    """Torch's name for `curves`."""
    base_lrs: list[Any]
    """For `lambda_lr`, the peak of each group; for `follow`, the base of its option. In float32."""

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
        check_optimizer(optimizer)
        check_key(option, groups_of(optimizer))
        self.optimizer = optimizer
        self._option = option
        given: Any = curve
        if isinstance(curve, Mapping):
            given = curve_from_dict(Curve, curve, ("curve",))
        self._curve: Curve | None = given if isinstance(given, Curve) else None
        """The curve of all groups; None if each group has its own."""
        if option.name != "lr" and isinstance(given, list | tuple):
            given = curves_of_groups_with(option, groups_of(optimizer), cast("list[Any]", given))
        present = self._present()
        schedules = Schedules(
            curves_of(present, given), list(map(option.base_of, self._indices(), present))
        )
        # Also if there are no groups.
        self._clock = check_clock(clock, [self._curve] if self._curve else schedules.curves)
        self._position = self._first_position(last_epoch)
        self._peak_was_set = False
        """True if the program has set the bases, in this run or before. The saved ones may then
        differ from the program's without a warning."""
        self._last_lr: list[Any] = []
        """A copy of `_values`, into which programs write."""
        self._written = written_values(optimizer)
        self._advise = advise
        self._advice: StepAdvice | None = None
        """Counts updates; None without advice, and after the last check."""
        self._stop_counting: Callable[[], None] | None = None
        """Removes the hook that counts them."""
        self._end_step = _NEVER
        """The step of the curve from which a warning about its end may be due."""
        self._check_step = _NEVER
        """The same, or 0 once all updates are counted: a step compares only this number."""

        message, was_loaded = "", False
        if advise:
            total = max((curve.total_steps for curve in schedules.curves), default=self.curve_step)
            if last_epoch >= 0 and self.curve_step > total:
                warn(
                    f"last_epoch = {last_epoch} lies past the end of the curve, at total_steps = "
                    f"{total}: last_epoch is the number of updates so far, minus 1"
                )
            message = next(self._value_messages(schedules), "")
            was_loaded = not message and last_epoch < 0 and seems_loaded(optimizer)
        self._groups: list[dict[str, Any]] = []
        """The groups, as of the last call of `_accept`; removed ones are forgotten."""
        self._values: list[Any] = []
        """What was written last into each of them; after a change of the groups or bases, the
        curve's values, until the next write."""
        self._schedules = Schedules([], [])
        """Their curves and bases as of then. The base of a new group is read once, and kept here,
        in `base_lrs`, and in the group, where the next scheduler finds it."""
        self._accept(schedules)
        if option.name == "lr" and _has_plain_step(optimizer):
            LRScheduler.__init__(self, optimizer, last_epoch)
        else:
            # Torch's constructor would write `initial_lr` for another option, and mistake a
            # function for a method of the class.
            self._initial_step()
        self._count_from_here(message, was_loaded=was_loaded, is_new=True)

    def _first_position(self, last_epoch: int) -> Position:
        """Return the position before the step of torch's constructor, which does not move it."""
        clock = self._clock
        if last_epoch < 0:
            return start_position(clock, -1, 0)
        alternative = "; or leave out last_epoch, and call scheduler.load_state_dict(state)"
        argument = f"last_epoch = {last_epoch}"
        check_peaks_are_known(self.optimizer, argument, alternative)
        position = position_after(clock, last_epoch + 1, argument)
        return position._replace(updates=last_epoch)

    # Torch's constructors call this: that of a `LambdaLR`, and that of a `SequentialLR`.
    def _initial_step(self) -> None:
        self._step_count = 1
        self._move_to(self._position._replace(updates=self.last_epoch + 1))

    # The groups.

    def _present(self) -> list[dict[str, Any]]:
        """Return the groups that the optimizer has now, without those that lack the option."""
        groups = groups_of(self.optimizer)
        if self._option.name == "lr":  # every group has it, and each step calls this
            return groups
        return [groups[index] for index in self._indices()]

    def _indices(self) -> list[int]:
        """Return the indices of these groups in `optimizer.param_groups`."""
        groups = groups_of(self.optimizer)
        if self._option.name == "lr":
            return [*range(len(groups))]
        return [index for index, group in enumerate(groups) if self._option.is_in(group)]

    def _place_of(self, group: dict[str, Any]) -> int | None:
        """Return the place of a group among the known ones; None for a new group.

        A group is its dictionary. A dictionary with the same list of parameters, as from
        `optimizer.load_state_dict`, takes its place.
        """
        for place, known in enumerate(self._groups):
            if group is known:
                return place
        for place, known in enumerate(self._groups):
            if group["params"] is known.get("params"):  # read now: DeepSpeed replaces the lists
                return place
        return None

    def _is_unchanged(self) -> bool:
        """Return True if the program has changed neither the groups nor the lists."""
        present, known, accepted = self._present(), self._groups, self._schedules
        if len(present) != len(known) or not all(map(is_, present, known)):
            return False
        # Copies, because programs also write tuples and arrays.
        return [*self.base_lrs] == accepted.bases and [*self.lr_lambdas] == accepted.curves

    def _read_schedules(self) -> Schedules:
        """Return the schedules of the present groups, as the program has left them.

        Raises:
            TypeError, ValueError: A new group has no base or curve, a list is wrong, or the
                optimizer is a different one.
        """
        accepted = self._schedules
        if self._is_unchanged():
            return accepted
        if written_values(self.optimizer) is not self._written:
            raise ValueError(
                "the optimizer of a scheduler can't be replaced: build a scheduler for the new "
                "optimizer, and call new.load_state_dict(old.state_dict())"
            )
        option, curves, bases = self._option, list[Any](), list[float]()
        for index, group in zip(self._indices(), self._present(), strict=True):
            place = self._place_of(group)
            if place is not None:
                curves.append(accepted.curves[place])
                bases.append(accepted.bases[place])
                continue
            if self._curve is None:
                raise ValueError(
                    f"param_groups[{index}] is new, and has no curve: build a scheduler with a "
                    "curve for each group, and call new.load_state_dict(old.state_dict())"
                )
            curves.append(self._curve)
            bases.append(option.base_of(index, group))
        if [*self.lr_lambdas] not in (accepted.curves, curves):
            raise TypeError(
                "the curves of a scheduler can't be changed: build a scheduler with the new curve, "
                "and call new.load_state_dict(old.state_dict()). StagedCurve.through(points) makes "
                "a curve of any multipliers. Torch's LambdaLR follows any function of the step"
            )
        if [*self.base_lrs] != accepted.bases:
            bases = bases_per_group("base_lrs", [*self.base_lrs], len(bases))
        return Schedules(curves, bases)

    def _accept(self, schedules: Schedules) -> None:
        """Follow the present groups from now on; give each its base, and a tensor of its own.

        A base that other code has written into a group stays there: torch's `OneCycleLR` writes and
        reads it.
        """
        option, groups, before = self._option, [*self._present()], self._schedules
        # First, because the warning may be an error.
        warn_of_factors(option, [group for group in groups if self._place_of(group) is None])
        for group, base in zip(groups, schedules.bases, strict=True):
            place = self._place_of(group)
            if place is None or group is not self._groups[place]:
                option.separate_tensor(group)
            if place is None or option.has_base(group, before.bases[place]):
                group[option.base_key] = base
        self.lr_lambdas, self.base_lrs = [*schedules.curves], [*schedules.bases]
        self._groups, self._schedules = groups, schedules
        self._values = schedules.values_at(self.curve_step)[:]

    def _known_present(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the known groups that the optimizer has now, with their places."""
        pairs = [(self._place_of(group), group) for group in self._present()]
        return [(place, group) for place, group in pairs if place is not None]

    def _has_written(self) -> bool:
        """Return True if the known groups have what was written last. May wait for the device."""
        if self.last_epoch < 0:  # it waits for its turn in a `SequentialLR`
            return False
        return all(
            self._option.has_value(group, self._values[place])
            for place, group in self._known_present()
        )

    def _has_loaded(self) -> bool:
        """Return True if the optimizer has loaded a state with different bases or values."""
        option, bases = self._option, self._schedules.bases
        for place, group in self._known_present():
            has_base = option.base_key in group  # else it was saved before a scheduler was built
            value = self._values[place] if has_base else bases[place]
            is_same_state = option.has_value(group, value) and option.has_base(group, bases[place])
            if group is not self._groups[place] and not is_same_state:
                return True
        return False

    # What programs and the advice read.

    @property
    def curves(self) -> list[Curve]:
        """The curve of each group."""
        return self.lr_lambdas

    @property
    def last_epoch(self) -> int:
        """Calls of `step` so far; -1 while it waits for its turn in a `SequentialLR`."""
        return self._position.updates

    # In torch's class, a plain attribute.
    @last_epoch.setter
    def last_epoch(self, updates: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        updates = checks.integer("last_epoch", updates)
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
            self._count_from_here()

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
        values = [self._option.number_in(group) for group in self._present()]
        unit = "" if self.unit is None else f", unit={self.unit}"
        return (
            f"{type(self).__name__}({self._curve or self.lr_lambdas!r}, "
            f"curve_step={self.curve_step}{unit}, {self._option}={one_if_equal(values)!r})"
        )

    def get_lr(self) -> list[Any]:
        """Return each group's value at `curve_step`, a float32 number as a Python float.

        A group that was added is not among them until the next step.
        """
        return self._schedules.values_at(self._position.step)[:]

    def get_last_lr(self) -> list[Any]:
        """Return the value of each group for the next update, as this scheduler wrote it last.

        To log the value that an update uses, call this before `step()`. The order is that of the
        groups at the last write.
        """
        return [*self._last_lr]

    # Steps.

    def _position_after(self, count: Any, metric: Any) -> Position:
        """Return the position after one more update."""
        before = self._position
        if before.updates < 0 and count is None and metric is None:
            # The constructor of a `SequentialLR` steps a chain before the first update.
            return before._replace(updates=before.updates + 1)
        return advance_on_host(self._clock, before, count, metric)

    # Torch's `SequentialLR` calls this instead of `step` when this scheduler's turn comes.
    def _update_lr(self, epoch: Any = 0) -> None:
        self._move_to(start_position(self._clock, epoch, epoch))
        self._count_from_here()

    def _move_to(self, position: Position) -> None:
        """Write the values of a position into the groups."""
        if not self._is_unchanged():
            self._accept_changes()
        if self._position.step >= self._check_step:
            self._check_updates_and_end()
        self._position = position
        self._values = self._written[self._option] = self.get_lr()
        self._option.write(self._groups, self._values)
        self._last_lr = [*self._values]

    def _accept_changes(self) -> None:
        """Follow the groups and lists as the program has left them; an error changes nothing."""
        schedules, option = self._read_schedules(), self._option
        for index, group in zip(self._indices(), self._present(), strict=True):
            is_new = self._place_of(group) is None
            if is_new and self.last_epoch < 0 and option.base_key not in group:
                raise ValueError(
                    f"param_groups[{index}] was added before the scheduler's turn, and a different "
                    f"scheduler may have written its {option}: add it with "
                    f'"{option.base_key}", its {option} at multiplier 1'
                )
        if self._advise and self._has_written():  # into all but new groups
            for message in self._value_messages(schedules):
                warn(message)
        self._accept(schedules)

    def _value_messages(self, schedules: Schedules) -> Iterator[str]:
        return value_messages(
            self.optimizer,
            self._option,
            self.curve_step,
            self._present(),
            schedules,
            self._owner.base_setter,
            schedules.bases,
        )

    def _set_bases(self, name: str, bases: Any) -> None:
        checked = bases_per_group(name, bases, len(self._present()))
        self._accept(Schedules(self._read_schedules().curves, checked))
        for group, base in zip(self._groups, checked, strict=True):
            group[self._option.base_key] = base
        self._peak_was_set = True
        self._count_from_here()
        if self.last_epoch >= 0:  # not while it waits for its turn in a SequentialLR
            self._move_to(self._position)

    # The advice.

    def _count_from_here(
        self, value_message: str = "", *, was_loaded: bool = False, is_new: bool = False
    ) -> None:
        """Compare steps with updates from here on: the scheduler is new, was moved or loaded.

        One that is not new has a hook already, or none after the last check.
        """
        if not self._advise:
            return
        is_lr = self._option.name == "lr"
        self._advice = StepAdvice(
            self._clock, self._position, value_message, was_loaded=was_loaded, counts_steps=is_lr
        )
        if is_new:
            before_update: Any = self._before_update
            self._stop_counting = call_before_updates(self.optimizer, before_update)
        end = first_step_past_end(self._schedules.curves)
        is_before = is_lr and any(self._schedules.bases) and self.curve_step < end
        self._check_step = self._end_step = end if is_before else _NEVER

    def _before_update(self) -> None:
        """Count an update of the optimizer, for the advice."""
        advice = self._advice
        if advice is None:
            return
        # DeepSpeed calls `step` for each group alone, or with the others emptied: these calls are
        # one update.
        if any(group["params"] and self._place_of(group) == 0 for group in self._present()):
            message = advice.count_update(
                self.optimizer, self._position, self._schedules, self._has_loaded
            )
            if advice.has_counted_all:
                self._advice = None
                self._check_step = 0  # the next step removes the hook
            if message and self._has_written():
                warn(message)

    def _check_updates_and_end(self) -> None:
        """Stop counting updates if all are counted, and warn if the run is far past the end."""
        if self._check_step == 0 and self._stop_counting is not None:
            self._stop_counting()
        step, updates = self._position.step, self._position.updates
        if step >= self._end_step:
            curves = self._schedules.curves
            message = end_message(curves, self.unit, step, updates, "lambda_lr")
            self._end_step = step + _PAST_END_INTERVAL
            if message and self._has_written():
                self._end_step = _NEVER
                warn(message)
        self._check_step = self._end_step

    # States.

    def _state_entries(self) -> dict[str, Any]:
        groups, schedules = self._groups, self._schedules
        # What is wrong, such as an added group without a curve, is an error of the next step. Its
        # remedy loads this state into a new scheduler.
        with suppress(TypeError, ValueError):
            schedules = self._read_schedules()
            groups = self._present()
        # A new group, or one with a new base, does not have its value from the curve yet: its
        # `in_charge` is False, and after a load its next update has the same value as without.
        last: list[Any] = schedules.values_at(self.curve_step)[:]
        for index, group in enumerate(groups):
            place = self._place_of(group)
            if place is not None and schedules.bases[index] == self._schedules.bases[place]:
                last[index] = self._values[place]
        has_begun, clock = self.last_epoch >= 0, self._clock.to_plain()
        return {
            "last_epoch": self.last_epoch,
            "_step_count": self._step_count,
            "base_lrs": [*schedules.bases],
            "_last_lr": [float(as_number(value)) for value in last],
            **dump_position(self._clock, self._position),
            "records": dump_records([Record(curve, None, clock) for curve in schedules.curves]),
            "peak_was_set": self._peak_was_set,
            "in_charge": [
                has_begun and self._option.has_value(group, value)
                for group, value in zip(groups, last, strict=True)
            ],
        }

    def _load(
        self,
        what: str,
        read: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        state_dict: Mapping[str, Any],
        *,
        strict: bool,
    ) -> None:
        """Resume from the state of `what`, whose entries `read` returns."""
        groups, schedules = [*self._present()], self._read_schedules()
        with reading_state_of(what, state_dict):
            state = dict(read(state_dict))
            # Programs edit the bases, as in the states of torch, and write tensors into them.
            num_saved = len(state.get("records", state["base_lrs"]))
            state["base_lrs"] = bases_per_group("base_lrs", state["base_lrs"], num_saved)
            now = records_of(schedules.curves, schedules.bases, self._clock)
            # A rollback to before `set_peak`.
            is_rollback = self._peak_was_set and self.last_epoch > 0
            for index, group in enumerate(groups):
                # FinetuningScheduler adds groups again, with a momentary value, before a load.
                is_added = self.last_epoch > 0 and self._place_of(group) is None
                if state["peak_was_set"] or is_rollback or is_added:
                    now[index] = now[index]._replace(peak_value=None)
            updates = checks.at_least("last_epoch", state["last_epoch"], -1)
            resumed = resume(
                state, updates, now, schedules.bases, self._clock, self._owner, strict=strict
            )
        for message in resumed.warnings:
            warn(message)
        # A new scheduler takes over from the one that was saved, unless the optimizer has loaded a
        # state since: then its values are the saved ones, whoever wrote them.
        takes_over = self.last_epoch == 0 and self._has_written()
        for place, group in self._known_present():
            takes_over &= group is self._groups[place]
        # Also while it waits for its turn: the bases belong to the groups.
        new_bases = [*resumed.bases, *schedules.bases[len(resumed.bases) :]]
        self._accept(Schedules(schedules.curves, new_bases))
        self._position = resumed.position
        self._peak_was_set = state["peak_was_set"]
        self._step_count = state["_step_count"]
        self._count_from_here()

        # Different code may have written into a group when the state was saved: a scheduler in a
        # `SequentialLR`, or the program, which had just added it. Then the optimizer's state has
        # its value.
        in_charge = state["in_charge"]
        self._values = self.get_lr()
        for index, group in enumerate(groups):
            was_ours = in_charge[index] if index < len(in_charge) else any(in_charge)
            if self.last_epoch >= 0 and (was_ours or takes_over):
                value = [self._values[index]]
                self._option.write([group], value)
                self._values[index] = value[0]
                self._written[self._option] = self._values
        self._last_lr = [*self._values]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_advice": None, "_stop_counting": None}  # the original counts

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        written_values(self.optimizer).update(self._written)
        self._written = written_values(self.optimizer)
        self._count_from_here(is_new=True)


def _has_plain_step(optimizer: Optimizer) -> bool:
    """Return True if `optimizer.step` is this object's own method, or torch's replacement of it."""
    step = optimizer.step
    return hasattr(step, "_wrapped_by_lr_sched") or getattr(step, "__self__", None) is optimizer
