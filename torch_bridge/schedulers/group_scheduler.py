"""Curves for one option of an optimizer's parameter groups, as a torch scheduler.

    group[option] = float32(float32(base) · curve(step))

A group is its dictionary; a dictionary that `optimizer.load_state_dict` puts in its place, with the
same list of parameters, takes it over. When the scheduler meets a group, it reads the base once:
`initial_<option>` if the group has it, else the value. It keeps the base in `base_lrs`, as torch
does, and in the group, where the next scheduler finds it. Removed groups are forgotten.

Groups are met when the scheduler is built or stepped, when its state is loaded or a base set, and
before an update. Reading never changes anything.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from operator import is_
from typing import Any, ClassVar, NamedTuple, SupportsIndex

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_bridge.advice.step_advice import StepAdvice
from torch_bridge.advice.value_advice import value_message
from torch_bridge.curve_api import (
    AnyClock,
    AnyCurve,
    Curve,
    Format,
    Owner,
    Position,
    ValuesAhead,
    advance_on_host,
    as_curves,
    check_clock,
    checks,
    dump_position,
    dump_records,
    one_if_equal,
    position_after,
    reading_state_of,
    resume,
    schedules_of,
    start,
    warn,
)
from torch_bridge.groups.curves_and_peaks import check_peaks_are_known, curves_of
from torch_bridge.groups.optimizers import groups_of
from torch_bridge.groups.options import (
    GroupOption,
    as_number,
    bases_per_group,
    check_length,
    is_same,
    written_values,
)
from torch_bridge.optimizer_traits import has_two_steps, updates_made
from torch_bridge.schedulers.update_hook import UpdateHook


class _Groups(NamedTuple):
    """The groups that follow the curves now, with what applies to each."""

    groups: list[dict[str, Any]]
    places: list[int | None]
    """The place of each group when the scheduler met the groups last; None for a new group."""
    curves: list[Curve]
    bases: list[float]


class GroupScheduler(LRScheduler):
    """The base class of `lambda_lr` and `follow`."""

    _owner: ClassVar[Owner]
    """The words of the messages about a state."""

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
        strict: bool,
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
        """True if later groups without the option are ignored."""
        if isinstance(given, Curve):
            self._curve = given
        elif option.name != "lr" and isinstance(given, Sequence) and None in given:
            self._skips_groups = True
            given = _curves_of_groups_with(option, groups, given)
        followed = self._followed()
        curves = curves_of(followed, given)
        distinct = curves if self._curve is None else [self._curve]
        self._clock = check_clock(clock, distinct)
        self._flat_starts = frozenset[int]()
        if self._clock.rules:
            self._flat_starts = frozenset(distinct[0].flat_starts)
        self._position = self._first_position(last_epoch)
        self.count: int | Tensor | None = None
        self.strict = strict
        self._is_base_set = False
        """True if the program has set the bases, in this run or before. The saved ones may then
        differ from the program's without a warning."""

        bases = [option.base_of(index, group) for index, group in enumerate(followed)]
        self.base_lrs: list[Any] = []
        """Each group's base, in float32, in the order of the groups. Programs may change it."""
        self.lr_lambdas: list[Any] = []
        """Each group's curve, under torch's name."""
        self._last_lr: list[Any] = []
        self._advice: StepAdvice | None = None
        met = _Groups([*followed], [None] * len(followed), curves, bases)
        message = ""
        was_loaded = False
        if advise:
            message = self._message_at_build(met)
            was_loaded = not message and last_epoch < 0 and self._seems_loaded()
        self._adopt(met, writes=False)
        if option.name == "lr" and _has_plain_step(optimizer):
            LRScheduler.__init__(self, optimizer, last_epoch)
        else:  # torch would mistake the function for a method of the class
            self._initial_step()
        if advise:
            self._advice = StepAdvice(
                self._position,
                self.consumed,
                value_message=message,
                was_loaded=was_loaded,
                counts_steps=option.name == "lr",
            )
        UpdateHook(self)

    def _first_position(self, last_epoch: int) -> Position:
        """Return the position before the step that torch's constructor makes."""
        clock = self._clock
        if last_epoch < 0:
            return start(clock, -1, 0 if clock.unit else -1)
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
            return [group for group in groups if self._option.is_in(group)]
        return groups

    def _meet(self, *, warns: bool = True) -> None:
        """Match the groups and the lists, which a program may have changed; write into new groups.

        Args:
            warns: False if the values of all groups are about to be replaced on purpose.

        Raises:
            TypeError, ValueError: A new group has no base or curve, or a list is wrong. Nothing was
                changed.
        """
        groups = self._followed()
        are_known = len(groups) == len(self._known) and all(map(is_, groups, self._known))
        ahead = self._ahead
        if are_known and self.base_lrs == ahead.bases and self.lr_lambdas == ahead.curves:
            return
        met = self._match()
        writes = None in met.places and self.is_in_charge()
        # Warnings first, since they may be errors.
        if self._advice is not None and writes and warns:
            message = self._value_message(met)
            if message:
                warn(message)
        if self._advice is not None and self._has_loaded_other_values(met):
            self._advice.note_load()
        self._adopt(met, writes=writes)

    def _place_of(self, group: dict[str, Any]) -> int | None:
        """Return the place of a group when the groups were met last; None for a new group."""
        for place, known in enumerate(self._known):
            if group is known:  # also if its list of parameters was replaced, as by DeepSpeed
                return place
        for place, params in enumerate(self._known_params):
            if group["params"] is params:  # the optimizer has loaded a state
                return place
        return None

    def _match(self) -> _Groups:
        """Return the groups of the optimizer with their curves and bases. Changes nothing."""
        groups = self._followed()
        places = [self._place_of(group) for group in groups]
        curves: list[Curve] = []
        bases: list[float] = []
        for index, (group, place) in enumerate(zip(groups, places, strict=True)):
            if place is not None:
                curves.append(self._ahead.curves[place])
                bases.append(self._ahead.bases[place])
                continue
            if self._curve is None:
                raise ValueError(
                    f"param_groups[{index}] is new, and has no curve: build a scheduler with a "
                    "curve for each group, and call new.load_state_dict(old.state_dict())"
                )
            curves.append(self._curve)
            bases.append(self._option.base_of(index, group))
        if self.lr_lambdas not in (self._ahead.curves, curves):
            raise TypeError(
                "the curves of a scheduler can't be changed: build a scheduler with the new curve, "
                "and call new.load_state_dict(old.state_dict()). StagedCurve.through(points) makes "
                "a curve of any multipliers. Torch's LambdaLR follows any function of the step"
            )
        if self.base_lrs != self._ahead.bases:
            name = self._option.bases_name
            check_length(name, self.base_lrs, len(groups))
            bases = bases_per_group(name, self.base_lrs, len(groups))
        return _Groups([*groups], places, curves, bases)

    def _adopt(self, met: _Groups, *, writes: bool) -> None:
        """Follow these groups from now on; if `writes`, write the values into the new ones."""
        groups, places, curves, bases = met
        option = self._option
        option.warn_of_scales([g for g, place in zip(groups, places, strict=True) if place is None])
        ahead = ValuesAhead(curves, bases)
        last: list[Any] = ahead.at(self.curve_step)[:]
        for index, (group, place, base) in enumerate(zip(groups, places, bases, strict=True)):
            if place is not None:
                group.setdefault(option.base_key, base)
                last[index] = self._last_lr[place]
                continue
            group[option.base_key] = base
            option.separate_tensor(group)
            if writes:
                last[index] = option.write(group, last[index])
        self._known = groups
        self._known_params = [group["params"] for group in groups]
        self._ahead = ahead
        if self._written.get(option.base_key) is self._last_lr:
            self._written[option.base_key] = last
        self._last_lr = last
        self.base_lrs = [*bases]
        self.lr_lambdas = [*curves]

    def _message_at_build(self, met: _Groups) -> str:
        """Return the warning about a value that the first step will overwrite, or ""."""
        has_scheduler = hasattr(self._optimizer.step, "_wrapped_by_lr_sched")
        is_known = self._option.base_key in written_values(self._optimizer)
        if self._option.name == "lr" and has_scheduler and not is_known:
            return ""  # one of torch's schedulers may have written the value
        return self._value_message(met)

    def _value_message(self, met: _Groups) -> str:
        """Return the warning about a new group whose value will be overwritten, or ""."""
        new: dict[int, tuple[Curve, float]] = {}
        for group, place, curve, base in zip(*met, strict=True):
            if place is None:
                new[id(group)] = curve, base
        checked = [new.get(id(group), (None, 0.0)) for group in self._optimizer.param_groups]
        curves = [curve for curve, _ in checked]
        bases = [base for _, base in checked]
        return value_message(self._optimizer, self._option, self.curve_step, curves, bases)

    def _seems_loaded(self) -> bool:
        """Return True if the optimizer, which is new, has the state of an earlier run."""
        if getattr(self._optimizer, "_opt_called", False):
            return False
        has_base = any("initial_lr" in group for group in self._optimizer.param_groups)
        return has_base and updates_made(self._optimizer) != 0

    def _has_loaded_other_values(self, met: _Groups) -> bool:
        """Return True if the optimizer has loaded a state with different bases or values."""
        option = self._option
        for group, place in zip(met.groups, met.places, strict=True):
            if place is None or group is self._known[place]:
                continue
            base, last = self._ahead.bases[place], self._last_lr[place]
            value = as_number(option.read(group))
            if option.base_key not in group:  # saved before a scheduler was built
                last = base
            saved_base = as_number(group.get(option.base_key, base))
            if not (is_same(value, as_number(last)) and is_same(saved_base, base)):
                return True
        return False

    def is_in_charge(self) -> bool:
        """Return True if the groups have what this scheduler wrote, and no later one has written.

        A program may freeze groups, so a group at 0 fits any value if another group has its value.
        May wait for the device.
        """
        if self._written.get(self._option.base_key) is not self._last_lr:
            return False
        present = {id(group) for group in self._optimizer.param_groups}
        matches: list[bool] = []
        are_zero = True
        for group, last in zip(self._known, self._last_lr, strict=False):
            if id(group) not in present:
                continue
            value = as_number(self._option.read(group))
            last = as_number(last)
            are_zero = are_zero and not last
            if value:
                matches.append(is_same(value, last))
        return all(matches) and (bool(matches) or are_zero)

    def before_update(self) -> None:
        """Give groups that were added their values, before the update of the optimizer."""
        groups = self._followed()
        if len(groups) != len(self._known) or not all(map(is_, groups, self._known)):
            new = [group for group in groups if self._place_of(group) is None]
            if new and self.is_in_charge():
                self._meet()
            elif new:
                self._keep_bases(new)
        # DeepSpeed shows each group alone, or empties the others: their calls are one update.
        is_first = bool(groups and self._known) and groups[0] is self._known[0]
        if self._advice is not None and is_first and groups[0]["params"]:
            self._advice.before_update(self)

    def _keep_bases(self, groups: Sequence[dict[str, Any]]) -> None:
        """Keep the bases of new groups in them, before the scheduler in charge writes values."""
        for group in groups:
            index = _index_of(group, self._optimizer.param_groups)
            with suppress(TypeError, ValueError):  # raised by the next step of this scheduler
                group.setdefault(self._option.base_key, self._option.base_of(index, group))

    # What programs read.

    @property
    def curves(self) -> list[Curve]:
        """The curve of each group."""
        return self.lr_lambdas

    # As the groups were met, whatever the program has written into the lists since:

    @property
    def met_curves(self) -> Sequence[Curve]:
        """The curve of each group."""
        return self._ahead.curves

    @property
    def bases(self) -> Sequence[float]:
        """The base of each group, in float32."""
        return self._ahead.bases

    @property
    def position(self) -> Position:
        """Where the scheduler is on its curves."""
        return self._position

    @property
    def last_epoch(self) -> int:
        """The number of steps so far; -1 while it waits for its turn in a `SequentialLR`."""
        return self._position.updates

    @last_epoch.setter
    def last_epoch(self, updates: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        before = self._position
        moved = updates - before.updates
        if moved == 0:
            return
        if self._clock.unit is None and before.step + moved >= min(updates, 0):
            self._position = before._replace(updates=updates, step=before.step + moved)
        elif self._clock.unit is not None and max(updates, before.updates) <= 0:
            self._position = before._replace(updates=updates)
        else:
            raise ValueError(
                f"last_epoch = {updates}, but this scheduler is at {before.updates}, and with "
                "clock= the number of updates does not say where it is on the curve: to go to "
                "another step, call scheduler.load_state_dict(state)"
            )
        if moved != -1:  # torch's `SequentialLR` takes back first steps
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

        As in torch, a group that was added since the last step is not among them.
        """
        return self._ahead.at(self.curve_step)[:]

    # Steps.

    def _advance(self, epoch: Any, count: Any, metric: Any) -> None:
        """Move by one update, or to the step `epoch`, and write the values."""
        before = self._position
        if count is None:
            count = self.count
        is_given = epoch is not None or count is not None or metric is not None
        if epoch is not None and self._clock.rules:
            metric = _metric_in_place_of_epoch(epoch, metric)
            epoch = None
        if epoch is not None:
            number = self._checked_epoch(epoch)
            position = start(self._clock, number, number)
        elif (self._is_initial or before.updates < 0) and not is_given:
            # Torch's constructors step a scheduler before the first update.
            step = before.step + (self._clock.unit is None)
            position = before._replace(updates=before.updates + 1, step=step)
        else:
            position = advance_on_host(self._clock, self._flat_starts, before, count, metric)
        self._move_to(position)
        if epoch is not None:
            self._restart_advice()
        self.count = None
        self._step_count += 1

    def _checked_epoch(self, epoch: Any) -> int:
        if self.unit is not None:
            raise TypeError(
                f"step({checks.short_repr(epoch)}) with DataClock({self.unit}): write "
                "step(count=n), where n is what the update consumed; to move to another step, call "
                "load_state_dict(state)"
            )
        is_integer = isinstance(epoch, SupportsIndex) and not isinstance(epoch, bool | Tensor)
        if not is_integer:
            raise TypeError(
                checks.must(
                    "epoch",
                    epoch,
                    "be an integer. The curve counts updates, "
                    "not parts of epochs: call step() after each; step() takes a loss only with a "
                    "hold rule, as in lambda_lr(optimizer, curve, clock=rule)",
                )
            )
        return max(checks.integer("epoch", epoch), -1)

    def _update_lr(self, epoch: int | None = None) -> None:
        # Torch's `SequentialLR` calls this instead of `step` when this scheduler's turn comes.
        number = self._position.updates + 1 if epoch is None else epoch
        self._move_to(start(self._clock, number, number))
        self._restart_advice()
        self.count = None  # another scheduler's turn consumed it

    def _move_to(self, position: Position) -> None:
        """Write the values of a position into the groups."""
        self._meet()
        before = self._position
        self._position = position
        try:
            values = self.get_lr()
        except BaseException:
            self._position = before
            raise
        option = self._option
        name = option.name
        for index, group in enumerate(self._known):
            if type(group[name]) is float:
                group[name] = values[index]
            else:
                values[index] = option.write(group, values[index])
        self._last_lr = values
        self._written[option.base_key] = values

    def _restart_advice(self) -> None:
        if self._advice is not None:
            self._advice.restart(self._position, self.consumed)

    def _set_bases(self, name: str, bases: Any) -> None:
        self._meet(warns=False)
        self.base_lrs = bases_per_group(name, bases, len(self._known))
        for group, base in zip(self._known, self.base_lrs, strict=True):
            group[self._option.base_key] = base
        self._is_base_set = True
        self._restart_advice()
        if self._position.updates >= 0:  # not while it waits for its turn in a SequentialLR
            self._move_to(self._position)

    # States.

    def _written_state(self) -> dict[str, Any]:
        curves, bases = self._ahead.curves, self._ahead.bases
        # The next step raises what is wrong, such as an added group without a curve.
        with suppress(TypeError, ValueError):
            _, _, curves, bases = self._match()
        return {
            "last_epoch": self.last_epoch,
            **dump_position(self._clock, self._position),
            "records": dump_records(curves, bases, self._clock),
            "peak_was_set": self._is_base_set,
            "in_charge": self.last_epoch >= 0 and self.is_in_charge(),
        }

    def _load(
        self,
        what: str,
        read: Callable[[Any], Mapping[str, Any]],
        state_dict: Any,
        *,
        strict: bool,
    ) -> None:
        self._meet(warns=False)
        with reading_state_of(what, state_dict):
            state = read(state_dict)
            for name in ("in_charge", "peak_was_set"):
                if type(state[name]) is not bool:
                    raise ValueError(f"state_dict has {name} = {checks.short_repr(state[name])}")
            now = schedules_of(self._ahead.curves, self._ahead.bases, self._clock)
            is_rollback = self._is_base_set and self.last_epoch > 0  # to before it, on purpose
            if state["peak_was_set"] or is_rollback:
                now = [schedule._replace(peak_value=None) for schedule in now]
            resumed = resume(state, now, self._clock, self._owner, strict=strict)
        for message in resumed.warnings:
            warn(message)
        for index, base in enumerate(resumed.peaks):
            self._known[index][self._option.base_key] = self.base_lrs[index] = base
        # A different scheduler may have been in charge when the state was saved, for example in a
        # `SequentialLR`. Then the state of the optimizer has its values. A new scheduler in charge
        # takes over from the one that was saved.
        is_new = self.last_epoch <= 0 and self.is_in_charge()
        if resumed.position.updates >= 0 and (state["in_charge"] or is_new):
            self._move_to(resumed.position)
        else:
            self._position = resumed.position
        self._is_base_set = state["peak_was_set"]
        self._restart_advice()
        self._step_count = self.last_epoch + 1
        self.count = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._advice = copy(self._advice)
        # A copied optimizer has lost what was written.
        self._written = written_values(self._optimizer, self._written)
        for name in ("base_lrs", "lr_lambdas"):
            setattr(self, name, [*state[name]])
        UpdateHook(self)


def state_of_kind(kind: Format[Any], state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the state of this kind, or the only one in the state of a scheduler of schedulers.

    None if there is none.

    Raises:
        ValueError: There are several; or a different version saved it.
    """
    if kind.is_of(state):
        return kind.read("state_dict", state)
    # Torch's SequentialLR and ChainedScheduler have this entry.
    states = [state_of_kind(kind, inner) for inner in state.get("_schedulers", [])]
    matches = [state for state in states if state is not None]
    if len(matches) > 1:
        raise ValueError(
            f"state_dict has {len(matches)} states of the kind {kind.kind!r}: load the one that "
            "continues, such as state_dict['_schedulers'][0]"
        )
    return matches[0] if matches else None


def warn_of_order(optimizer: Optimizer) -> None:
    """Warn as torch does if the scheduler is stepped before the optimizer."""
    if has_two_steps(optimizer):
        return
    is_watched = hasattr(optimizer.step, "_wrapped_by_lr_sched")
    if is_watched and not getattr(optimizer, "_opt_called", False):
        warn(
            "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in "
            "the opposite order: `optimizer.step()` before `lr_scheduler.step()`. Otherwise "
            "the first value of the learning rate schedule is skipped",
            UserWarning,
        )


def _metric_in_place_of_epoch(epoch: Any, metric: Any) -> Any:
    """Return the metric that was passed as the first argument of `step`."""
    if metric is not None:
        raise TypeError("with a hold rule, step() takes one metric, as in step(loss)")
    if type(epoch) is int:  # DeepSpeed passes its batch size if step() has raised a TypeError
        raise TypeError(
            checks.must(
                "metric",
                epoch,
                "be a real scalar, a float or a tensor: with a hold rule, call step(loss)",
            )
        )
    return epoch


def _has_plain_step(optimizer: Optimizer) -> bool:
    """Return True if `optimizer.step` is this object's own method, or torch's replacement of it."""
    step = optimizer.step
    if hasattr(step, "_wrapped_by_lr_sched"):
        return True
    return getattr(step, "__self__", None) is optimizer


def _index_of(group: dict[str, Any], groups: Sequence[dict[str, Any]]) -> int:
    return next(index for index, candidate in enumerate(groups) if candidate is group)


def _curves_of_groups_with(
    option: GroupOption, groups: Sequence[dict[str, Any]], curves: Sequence[Any]
) -> list[Any]:
    """Return the curves of the groups that have the option; the other groups have None."""
    check_length("curve", curves, len(groups))
    followed: list[Any] = []
    for index, (group, curve) in enumerate(zip(groups, curves, strict=True)):
        if curve is not None:
            option.value_of(index, group)  # raises an error for a group without the option
            followed.append(curve)
        elif option.is_in(group):
            raise ValueError(
                f"curve[{index}] is None, but param_groups[{index}] has {option} = "
                f"{as_number(option.read(group))!r}. To keep it constant, write "
                "StagedCurve([(1,)], start=1.0)"
            )
    if not followed:
        raise ValueError(f"curve has only None: no parameter group has {option}")
    return followed
