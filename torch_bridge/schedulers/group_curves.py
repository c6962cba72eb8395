"""Curves for one option of parameter groups, which may be added, removed and reordered."""

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
    """A parameter group with its curve, its base, and the value last written into it."""

    group: dict[str, Any]
    curve: Curve
    base: float
    written: Any


class GroupCurves:
    """The curve, the base and the last written value of each parameter group, for one option.

        group[option] = float32(float32(base) · curve(step))

    A group is identified by its dictionary, at any position in `param_groups`.
    `Optimizer.load_state_dict` replaces the dictionaries, so a new dictionary with the parameters
    of a known group takes that group's place.

    Args:
        optimizer: The optimizer.
        option: The option that follows the curves.
        curve: One curve for all groups, also for those that are added later; or one for each.

    Attributes:
        groups, curves, bases, written: Lists with one item per group, in the order that the
            optimizer's groups had at the last `sync_groups`; groups added since then come last.
        is_loaded: True if the optimizer has loaded a state since `write` was last called.
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
        self._removed: list[Member] = []
        """Groups that the optimizer no longer has. A program may add them again."""
        hook_of(optimizer).add(self)

    def __setstate__(self, state: Any) -> None:
        """Register the copy with a hook: a copied optimizer has none."""
        vars(self).update(state)
        self.groups = list(self.groups)
        self.curves = list(self.curves)
        self.bases = list(self.bases)
        self.written = list(self.written)
        hook_of(self.optimizer).add(self)

    def describe(self) -> tuple[str, str]:
        """Return the curves and the values as text: one if all groups have the same, or a list."""
        values: list[Any] = []
        for group in self.groups:
            values.append(as_number(self.option.read(group)))
        shown: Any = values
        if len(set(values)) == 1:
            shown = values[0]
        return repr(self.common_curve or self.curves), f"{self.option}={shown!r}"

    def _members(self) -> list[Member]:
        members: list[Member] = []
        for values in zip(self.groups, self.curves, self.bases, self.written, strict=True):
            members.append(Member(*values))
        return members

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
        # All at once: an interrupt between two assignments would give groups the wrong curves.
        vars(self).update(groups=groups, curves=curves, written=written, bases=bases, _ahead=ahead)

    def set_bases(self, bases: Sequence[float]) -> None:
        """Set the base of each group, without writing values into the groups."""
        members: list[Member] = []
        for member, base in zip(self._members(), bases, strict=True):
            members.append(member._replace(base=base))
        self._set_members(members)

    def values_at(self, step: int) -> list[float]:
        """Return the value of each group at a step of the curves."""
        if self._ahead.bases != self.bases:  # the user has written into `base_lrs`
            for index, base in enumerate(self.bases):
                base_value(f"base_lrs[{index}]", base)
            self._ahead = ValuesAhead(self.curves, self.bases)
        return self._ahead.at(step)

    def write(self, step: int, values: Sequence[Any]) -> None:
        """Write the values of a step into the groups, one value per group."""
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
        """Return True if the first groups, one for each value, hold these values.

        One nonzero match is enough, since a program may freeze the other groups. Zeros match only
        if all values are zero. May wait for the device.
        """
        are_all_zero = True
        current = set(map(id, self.optimizer.param_groups))
        for group, expected in zip(self.groups, values, strict=False):
            if id(group) not in current:
                continue
            value = as_number(self.option.read(group))
            expected = as_number(expected)
            if value and is_same(value, expected):
                return True
            if value or expected:
                are_all_zero = False
        return are_all_zero

    def is_in_charge(self) -> bool:
        """Return True if the groups hold the values that `write` wrote. May wait for the device.

        Otherwise a different scheduler or the user has changed them since.
        """
        return self.holds(self.written)

    def sync_groups(self) -> None:
        """Match the optimizer's current groups, in their order; new ones get their value.

        Raises:
            TypeError, ValueError: As `add_new_groups`. The known groups are matched nevertheless.
        """
        if self.is_current():
            return
        try:
            self.add_new_groups()
        finally:
            self._drop_removed_groups()

    def is_current(self) -> bool:
        """Return True if the optimizer has exactly the groups known here, in the same order."""
        groups = self.optimizer.param_groups
        return len(groups) == len(self.groups) and all(map(is_, groups, self.groups))

    def unknown_groups(self) -> dict[int, dict[str, Any]]:
        """Return the optimizer's groups that are not known here, by their index."""
        known = set(map(id, self.groups))
        unknown: dict[int, dict[str, Any]] = {}
        for index, group in enumerate(self.optimizer.param_groups):
            if id(group) not in known:
                unknown[index] = group
        return unknown

    def add_new_groups(self, *, writes: bool = True) -> None:
        """Give new groups of the optimizer a curve and a base; known groups keep theirs.

        With `writes`, a new group also gets its value, if the known groups hold the values that
        `write` wrote.

        Raises:
            TypeError, ValueError: A new group has no curve, or no base. No group was added.
        """
        # No group is dropped here: in an update, DeepSpeed shows one group at a time.
        self._replace_reloaded_groups(list(self.unknown_groups().values()))
        new = self.unknown_groups()
        if not new:
            return
        new_members: list[Member] = []
        for index, group in new.items():
            new_members.append(self._new_member(index, group))
        self.option.warn_of_scales(list(new.values()))
        is_in_charge = writes and self.is_in_charge()
        first = len(self.groups)
        self._set_members([*self._members(), *new_members])
        if is_in_charge:
            values = self.values_at(self.step)
            for place in range(first, len(self.groups)):
                self.written[place] = self.option.write(self.groups[place], values[place])

    def _new_member(self, index: int, group: dict[str, Any]) -> Member:
        """Return a new group with its curve and base; a removed group gets its former ones."""
        for removed in self._removed:
            if removed.group is group:
                return removed._replace(written=self.option.read(group))
        if self.common_curve is None:
            raise ValueError(
                f"the optimizer has {len(self.optimizer.param_groups)} parameter groups, but "
                f"curves for {len(self.groups)} of them. Build this again with a curve for each "
                "group, and load its state: new.load_state_dict(old.state_dict())"
            )
        base = self.option.base_of(index, group)
        return Member(group, self.common_curve, base, self.option.read(group))

    def _replace_reloaded_groups(self, unknown: Sequence[dict[str, Any]]) -> None:
        """Replace known groups by unknown dictionaries with their parameters, as after a load."""
        members = self._members()
        places: dict[int, int] = {}
        """The place of the group that has this parameter, or this list of parameters."""
        for place, member in enumerate(members):
            for identity in _identities(member.group):
                places[identity] = place
        for group in unknown:
            known = [identity for identity in _identities(group) if identity in places]
            if not known:
                continue
            place = places[known[0]]
            former = members[place]
            is_split = any(former.group is replacement for replacement in unknown)
            if is_split:  # an earlier dictionary has taken the place already
                members.append(former._replace(group=group))
            else:
                members[place] = former._replace(group=group)
        self._set_members(members)

    def _drop_removed_groups(self) -> None:
        """Keep the groups that the optimizer has, in its order; remember the removed ones."""
        members = {id(member.group): member for member in self._members()}
        kept: list[Member] = []
        for group in self.optimizer.param_groups:
            if id(group) in members:
                kept.append(members[id(group)])
        current = set(map(id, self.optimizer.param_groups))
        candidates = [*self._removed, *members.values()]
        self._removed = [member for member in candidates if id(member.group) not in current]
        self._set_members(kept)


def _identities(group: dict[str, Any]) -> list[int]:
    """Return the ids that identify a group: that of its list of parameters, and the parameters'."""
    # The list comes first: a loaded dictionary has this very list, which may be empty.
    parameters = group["params"]
    return [id(parameters), *map(id, parameters)]
