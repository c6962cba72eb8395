"""Curves for one option of an optimizer's parameter groups, which may come, go and move."""

from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

from torch.optim import Optimizer

from torch_bridge.clocks.learning_rates import ValuesAhead
from torch_bridge.curve_api import Curve
from torch_bridge.param_groups import (
    GroupOption,
    as_number,
    base_value,
    curves_of,
    is_same,
    unshare_tensors,
)
from torch_bridge.schedulers.update_hook import hook_of


class Member(NamedTuple):
    """A parameter group with its curve, its base, and the value that was written into it last."""

    group: dict[str, Any]
    curve: Curve
    base: float
    written: Any


class GroupCurves:
    """The curve, the base and the last value of each parameter group, for one of their options.

        group[option] = float32(float32(base) · curve(step))

    A group is its dictionary, wherever it lies in `param_groups`. `Optimizer.load_state_dict`
    replaces the dictionaries; one that has the parameters of a known group takes its place.

    Args:
        optimizer: The optimizer.
        option: The option that follows the curves.
        curve: One curve for all groups, also for those that are added later; or one for each.

    Attributes:
        groups, curves, bases, written: Lists with an item for each group, in the order of the
            optimizer's at the last call of `follow`.
        is_loaded: True if the optimizer has loaded a state since values were written here.
    """

    groups: list[dict[str, Any]]
    curves: list[Curve]
    bases: list[float]
    written: list[Any]
    _ahead: ValuesAhead

    def __init__(
        self, optimizer: Optimizer, option: GroupOption, curve: Curve | Sequence[Curve]
    ) -> None:
        self.optimizer = optimizer
        self.option = option
        self._name = option.name
        self.common_curve: Curve | None = None
        if isinstance(curve, Curve):
            self.common_curve = curve
        members: list[Member] = []
        curves = curves_of(optimizer, curve)
        for index, group in enumerate(optimizer.param_groups):
            base = option.base_of(index, group)
            members.append(Member(group, curves[index], base, option.read(group)))
        option.warn_of_scales(optimizer.param_groups)
        self._set_members(members)
        self.is_loaded = False
        self.step = 0
        """The step of the curves that was written last."""
        # They may come back, if a program alternates.
        self._forgotten: list[Member] = []
        """The groups that the optimizer no longer has."""
        hook_of(optimizer).add(self)

    def __setstate__(self, state: Any) -> None:
        """Add a copy to a hook: a copy of an optimizer has none."""
        vars(self).update(state)
        self.groups = list(self.groups)
        self.curves = list(self.curves)
        self.bases = list(self.bases)
        self.written = list(self.written)
        hook_of(self.optimizer).add(self)

    def describe(self) -> tuple[str, str]:
        """Return the curve and the value of the groups as text; a list if they differ."""
        value: Any = [as_number(self.option.read(group)) for group in self.groups]
        if len(set(value)) == 1:
            value = value[0]
        return repr(self.common_curve or self.curves), f"{self.option}={value!r}"

    def _members(self) -> list[Member]:
        columns = self.groups, self.curves, self.bases, self.written
        return [Member(*values) for values in zip(*columns, strict=True)]

    def _set_members(self, members: Sequence[Member]) -> None:
        groups = [member.group for member in members]
        curves = [member.curve for member in members]
        bases = [member.base for member in members]
        written = [member.written for member in members]
        unshare_tensors(self.optimizer, self.option, groups, bases, curves)
        if self.option.name == "lr":
            for group, base in zip(groups, bases, strict=True):
                group["initial_lr"] = base
        ahead = ValuesAhead(curves, bases)
        # At once: after an interrupt between two of them, groups would follow the curves of others.
        vars(self).update(groups=groups, curves=curves, written=written, bases=bases, _ahead=ahead)

    def set_bases(self, bases: Sequence[float]) -> None:
        """Set the base of each group, without writing values into the groups."""
        members = self._members()
        self._set_members(
            [member._replace(base=base) for member, base in zip(members, bases, strict=True)]
        )

    def values_at(self, step: int) -> list[float]:
        """Return the value of each group at a step of the curves."""
        if self._ahead.bases != self.bases:  # the user has written into `base_lrs`
            for index, base in enumerate(self.bases):
                base_value(f"base_lrs[{index}]", base)
            self._ahead = ValuesAhead(self.curves, self.bases)
        return self._ahead.at(step)

    def write(self, step: int, values: Sequence[Any]) -> None:
        """Write the values of a step into the groups, one for each."""
        name = self._name
        written: list[Any] = []
        for group, value in zip(self.groups, values):  # noqa: B905 -- a third of the time of `strict=True`
            if type(group[name]) is float:  # the usual case, in a fifth of the time
                group[name] = value
                written.append(value)
            else:
                written.append(self.option.write(group, value))
        self.step = step
        self.written = written
        self.is_loaded = False

    def holds(self, values: Sequence[Any]) -> bool:
        """Return True if any of the first groups holds its value. May wait for the device.

        One is enough, since a program may freeze others. Zeros count only if all values are zero.
        """
        are_all_zero = True
        shown = set(map(id, self.optimizer.param_groups))
        for group, expected in zip(self.groups, values, strict=False):
            if id(group) not in shown:
                continue
            value = as_number(self.option.read(group))
            expected = as_number(expected)
            if value and is_same(value, expected):
                return True
            if value or expected:
                are_all_zero = False
        return are_all_zero

    def is_in_charge(self) -> bool:
        """Return True if the groups hold the values written here last. May wait for the device."""
        return self.holds(self.written)

    def follow(self) -> None:
        """Follow the groups that the optimizer has now, in their order; new ones get their value.

        Raises:
            TypeError, ValueError: As `meet`. The known groups are followed all the same.
        """
        if self.is_current():
            return
        try:
            self.meet()
        finally:
            self._forget_removed_groups()

    def is_current(self) -> bool:
        """Return True if the optimizer has these groups, in this order."""
        groups = self.optimizer.param_groups
        return len(groups) == len(self.groups) and all(map(is_, groups, self.groups))

    def unknown_groups(self) -> list[int]:
        """Return the indices of the optimizer's groups that are not known here."""
        known = set(map(id, self.groups))
        groups = self.optimizer.param_groups
        return [index for index, group in enumerate(groups) if id(group) not in known]

    def meet(self, *, writes: bool = True) -> None:
        """Give new groups of the optimizer a curve and a base; known groups keep theirs.

        They get their value too if `writes`, and the others hold values that were written here.

        Raises:
            TypeError, ValueError: A new group has no curve, or no base. Nothing was changed.
        """
        # No group is forgotten here: in an update, DeepSpeed shows one group at a time.
        groups = self.optimizer.param_groups
        self._recognize([groups[index] for index in self.unknown_groups()])
        new = self.unknown_groups()
        if not new:
            return
        new_members = [self._new_member(index, groups[index]) for index in new]
        self.option.warn_of_scales([groups[index] for index in new])
        is_in_charge = writes and self.is_in_charge()
        first = len(self.groups)
        self._set_members([*self._members(), *new_members])
        if is_in_charge:
            values = self.values_at(self.step)
            for place in range(first, len(self.groups)):
                self.written[place] = self.option.write(self.groups[place], values[place])

    def _new_member(self, index: int, group: dict[str, Any]) -> Member:
        """Return a new group with its curve and base; if it has come back, with its former ones."""
        for former in self._forgotten:
            if former.group is group:
                return former._replace(written=self.option.read(group))
        if self.common_curve is None:
            raise ValueError(
                f"the optimizer has {len(self.optimizer.param_groups)} parameter groups, but "
                f"curves for {len(self.groups)} of them. Build this again with a curve for each "
                "group, and load its state: new.load_state_dict(old.state_dict())"
            )
        base = self.option.base_of(index, group)
        return Member(group, self.common_curve, base, self.option.read(group))

    def _recognize(self, unknown: Sequence[dict[str, Any]]) -> None:
        """Let dictionaries replace the groups whose parameters they have, as after a load."""
        members = self._members()
        places: dict[int, int] = {}
        """The place of the group that has a list of parameters, or a parameter, by identity."""
        for place, member in enumerate(members):
            for sign in _signs(member.group):
                places[id(sign)] = place
        for group in unknown:
            known_signs = [sign for sign in _signs(group) if id(sign) in places]
            if not known_signs:
                continue
            place = places[id(known_signs[0])]
            former = members[place]
            if any(former.group is taker for taker in unknown):  # the group was split
                members.append(former._replace(group=group))
            else:
                members[place] = former._replace(group=group)
        self._set_members(members)

    def _forget_removed_groups(self) -> None:
        """Keep the groups that the optimizer has, in its order, and remember the others."""
        groups = self.optimizer.param_groups
        shown = set(map(id, groups))
        members = {id(member.group): member for member in self._members()}
        former = [*self._forgotten, *members.values()]
        self._forgotten = [member for member in former if id(member.group) not in shown]
        self._set_members([members[id(group)] for group in groups if id(group) in members])


def _signs(group: dict[str, Any]) -> list[Any]:
    """Return the objects that a group is recognized by: its parameters, and first their list."""
    # A dictionary that was loaded has this very list, which may be empty.
    return [group["params"], *group["params"]]
