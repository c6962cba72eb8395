"""The parameter groups that follow curves: the curve, the base and the last value of each.

A group is its dictionary. A dictionary with the same list of parameters, as from
`optimizer.load_state_dict`, takes its place. Any other dictionary is a new group.

The base of a new group is read once: `initial_<option>` if the group has it, else the value. It is
kept in `bases`, as torch does in `base_lrs`, and in the group, where the next scheduler finds it.
Removed groups are forgotten.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from operator import is_
from typing import Any, NamedTuple

from torch.optim import Optimizer

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.serialization import curve_from_dict
from plateau_jax.runs.schedules import Schedules
from torch_bridge.groups.curves_and_peaks import curves_of, curves_of_groups_with
from torch_bridge.groups.optimizers import groups_of
from torch_bridge.groups.options import (
    GroupOption,
    as_number,
    bases_per_group,
    is_same,
    written_values,
)


class Members(NamedTuple):
    """Groups, and the curve and base of each."""

    groups: list[dict[str, Any]]
    schedules: Schedules


class ScheduledGroups:
    """The groups of an optimizer that follow the curves of one scheduler.

    Building it changes no group.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        option: GroupOption,
        curve: Curve | Mapping[str, Any] | Sequence[Curve | None],
    ) -> None:
        groups = groups_of(optimizer)
        self.optimizer = optimizer
        self.option = option
        given: Any = curve
        if isinstance(curve, Mapping):
            given = curve_from_dict(Curve, curve, ("curve",))
        self.curve: Curve | None = None
        """The curve of all groups; None if each group has its own."""
        self._skips_groups = False
        """True if groups without the option are ignored."""
        if isinstance(given, Curve):
            self.curve = given
        elif option.name != "lr" and isinstance(curve, Sequence) and _has_none(curve):
            self._skips_groups = True
            given = curves_of_groups_with(option, groups, curve)
        known = [*self.present()]
        self.curves: list[Any] = curves_of(known, given)
        """Torch's `lr_lambdas`: the curve of each group, in a list that programs may append to."""
        self.bases: list[Any] = [
            option.base_of(index, group) for index, group in zip(self.indices(), known, strict=True)
        ]
        """Torch's `base_lrs`: the base of each group, in a list that programs may change."""
        self.members = Members([], Schedules([], []))
        """The groups, curves and bases as of the last call of `accept`."""
        self.last: list[Any] = []
        """The value that the scheduler wrote last into each group."""
        self._written = written_values(optimizer)

    def present(self) -> list[dict[str, Any]]:
        """Return the groups of the optimizer now: all, or those with the option."""
        groups = self.optimizer.param_groups
        if self._skips_groups:
            return [groups[index] for index in self.indices()]
        return groups

    def indices(self) -> list[int]:
        """Return the indices of these groups in `optimizer.param_groups`."""
        groups = self.optimizer.param_groups
        if self._skips_groups:
            return [index for index, group in enumerate(groups) if self.option.is_in(group)]
        return [*range(len(groups))]

    def are_known(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Return True if these are the known groups in the same order."""
        known = self.members.groups
        return len(groups) == len(known) and all(map(is_, groups, known))

    def place_of(self, group: dict[str, Any]) -> int | None:
        """Return the place of a group among the known ones; None for a new group."""
        for place, known in enumerate(self.members.groups):
            if group is known:
                return place
        for place, known in enumerate(self.members.groups):
            # The optimizer has loaded a state: its new dictionaries have the old lists of
            # parameters. These are read now, because DeepSpeed replaces the lists.
            if group["params"] is known.get("params"):
                return place
        return None

    def new_among(self, groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of the groups that are not known."""
        return [group for group in groups if self.place_of(group) is None]

    def read_members(self) -> Members:
        """Return the groups, curves and bases as the program has left them. Changes nothing.

        Raises:
            TypeError, ValueError: A new group has no base or curve, or a list is wrong.
        """
        groups = [*self.present()]
        accepted = self.members.schedules
        curves: list[Curve] = []
        bases: list[float] = []
        for index, group in zip(self.indices(), groups, strict=True):
            place = self.place_of(group)
            if place is not None:
                curves.append(accepted.curves[place])
                bases.append(accepted.bases[place])
                continue
            if self.curve is None:
                raise ValueError(
                    f"param_groups[{index}] is new, and has no curve: build a scheduler with a "
                    "curve for each group, and call new.load_state_dict(old.state_dict())"
                )
            curves.append(self.curve)
            bases.append(self.option.base_of(index, group))
        if self.curves not in (accepted.curves, curves):
            raise TypeError(
                "the curves of a scheduler can't be changed: build a scheduler with the new curve, "
                "and call new.load_state_dict(old.state_dict()). StagedCurve.through(points) makes "
                "a curve of any multipliers. Torch's LambdaLR follows any function of the step"
            )
        if self.bases != accepted.bases:
            bases = bases_per_group("base_lrs", self.bases, len(groups))
        return Members(groups, Schedules(curves, bases))

    def are_unchanged(self) -> bool:
        """Return True if the program has changed neither the groups nor the lists."""
        schedules = self.members.schedules
        if self.bases != schedules.bases or self.curves != schedules.curves:
            return False
        return self.are_known(self.present())

    def accept(self, members: Members, step: int, *, writes: bool) -> None:
        """Follow these groups from now on.

        Args:
            members: The result of `read_members`, or all groups when a scheduler is built.
            step: The step of the curve that gives the next values.
            writes: True to write the values of this step into new groups.
        """
        option, key = self.option, self.option.base_key
        groups, schedules = members
        last: list[Any] = schedules.values_at(step)[:]
        for index, (group, base) in enumerate(zip(groups, schedules.bases, strict=True)):
            place = self.place_of(group)
            if place is None or group is not self.members.groups[place]:
                option.separate_tensor(group)
            if place is not None:
                group.setdefault(key, base)
                last[index] = self.last[place]
                continue
            group[key] = base
            if not writes:
                continue
            value = option.number_in(group)
            if is_same(value, base):
                last[index] = option.write(group, last[index])
            else:  # a different scheduler, or the program, has changed the value
                last[index] = value
        if self._has_written_last():
            self._written[key] = last
        self.curves, self.bases = [*schedules.curves], [*schedules.bases]
        self.members, self.last = members, last

    def set_bases(self, bases: Sequence[float], *, keeps_others: bool) -> None:
        """Replace the bases of the first groups.

        Args:
            bases: The bases, in float32.
            keeps_others: True to keep the base in a group if a different scheduler has changed it.
        """
        key, (groups, schedules) = self.option.base_key, self.members
        before = schedules.bases
        bases = [*bases, *before[len(bases) :]]
        if bases != before:
            self.bases = [*bases]
            self.members = Members(groups, Schedules(schedules.curves, bases))
        for group, base, old in zip(groups, bases, before, strict=True):
            if not keeps_others or is_same(as_number(group.get(key, old)), old):
                group[key] = base

    def keep_missing_bases(self) -> None:
        """Keep the base of each group that has none, before a different scheduler writes."""
        key = self.option.base_key
        for index, group in zip(self.indices(), self.present(), strict=True):
            if key not in group:
                with suppress(TypeError, ValueError):  # raised by the next step
                    group[key] = self.option.base_of(index, group)

    def write_values(self, values: list[Any]) -> None:
        """Write a value into each group."""
        pairs = zip(self.members.groups, values, strict=True)
        self.last = [self.option.write(group, value) for group, value in pairs]
        self._written[self.option.base_key] = self.last

    def _has_written_last(self) -> bool:
        """Return True if no other scheduler of this library has written since."""
        return self._written.get(self.option.base_key) is self.last

    def is_in_charge(self) -> bool:
        """Return True if the groups have what this scheduler wrote, and no later one has written.

        May wait for the device.
        """
        if not self._has_written_last():
            return False
        present = {id(group) for group in self.present()}
        return all(
            is_same(self.option.number_in(group), as_number(last))
            for group, last in zip(self.members.groups, self.last, strict=True)
            if id(group) in present
        )

    def has_loaded_other_values(self) -> bool:
        """Return True if the optimizer has loaded a state with different bases or values."""
        option = self.option
        for group in self.present():
            place = self.place_of(group)
            if place is None or group is self.members.groups[place]:
                continue
            base, last = self.members.schedules.bases[place], self.last[place]
            if option.base_key not in group:  # saved before a scheduler was built
                last = base
            saved_base = as_number(group.get(option.base_key, base))
            value = option.number_in(group)
            if not (is_same(value, as_number(last)) and is_same(saved_base, base)):
                return True
        return False

    def copied(self) -> "ScheduledGroups":
        """Return these groups for a copy of the scheduler, which may have a copied optimizer."""
        groups = copy(self)
        # A copied optimizer has lost its attributes.
        groups._written = written_values(self.optimizer, self._written)
        return groups


def _has_none(values: Sequence[Any]) -> bool:
    return any(value is None for value in values)  # `in` would raise an error for text
