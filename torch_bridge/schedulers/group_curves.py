"""Curves for one option of parameter groups, which may be added, removed and reordered."""

from collections.abc import Sequence
from copy import copy
from operator import is_
from typing import Any, NamedTuple

from torch.optim import Optimizer

from torch_bridge.clocks.learning_rates import ValuesAhead
from torch_bridge.curve_api import Curve
from torch_bridge.param_groups import (
    GroupOption,
    as_number,
    curves_of,
    is_same,
    one_if_equal,
    unshare_tensors,
)
from torch_bridge.schedulers.peaks import LastWrite, peak_of_copied_options, peak_of_known_group
from torch_bridge.schedulers.shown_lists import ShownLists


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
        last_write: What was written last into the learning rates of this optimizer.
        is_resumed: True if a run is continued, so that an `initial_lr` is the peak, whatever `lr`
            is.

    Attributes:
        groups, curves, bases, written: Lists with one item per group, in the order that the
            optimizer's groups had at the last `sync_groups`; groups added since then come last.
        lists: The curves and bases that the program sees and may write.
    """

    groups: list[dict[str, Any]]
    curves: list[Curve]
    bases: list[float]
    written: list[Any]
    _ahead: ValuesAhead

    def __init__(
        self,
        optimizer: Optimizer,
        option: GroupOption,
        curve: Curve | Sequence[Curve],
        last_write: LastWrite,
        *,
        is_resumed: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.option = option
        self._name = option.name
        self.last_write = last_write
        self.common_curve: Curve | None = None
        if isinstance(curve, Curve):
            self.common_curve = curve
        members: list[Member] = []
        curves = curves_of(optimizer, curve)
        for index, group in enumerate(optimizer.param_groups):
            base = option.base_of(index, group)
            if option.has_kept_base(group) and not is_resumed:
                base = peak_of_known_group(index, group, last_write)
            members.append(Member(group, curves[index], base, option.read(group)))
        option.warn_of_scales(optimizer.param_groups)
        self._set_members(members)
        self._keep_bases(members)
        self.lists = ShownLists(option, self.bases, self.curves)
        self.step = 0
        """The step of the curves that was written last."""
        self.is_restored = False
        """True if a state was loaded."""
        self.has_yielded = False
        """True if a loaded state says that these values were not in charge when it was saved."""
        self.loaded: list[Any] | None = None
        """The values that the optimizer has loaded since `write` was last called for a step."""
        self._was_in_charge = False
        """True if these values were in charge when the optimizer began to load a state."""
        self._former: list[Member] | None = None
        """The members in the optimizer before this one, until the groups of this one are known."""
        self._removed: list[Member] = []
        """Groups that the optimizer no longer has. A program may add them again."""

    def __setstate__(self, state: Any) -> None:
        # A copy shares no list with the original.
        vars(self).update(state)
        for name in ("groups", "curves", "bases", "written"):
            setattr(self, name, list(state[name]))
        self.lists = copy(self.lists)

    def describe(self) -> tuple[str, str]:
        """Return the curves and the values as text: one if all groups have the same, or a list."""
        values: list[Any] = []
        for group in self.groups:
            values.append(as_number(self.option.read(group)))
        return repr(self.common_curve or self.curves), f"{self.option}={one_if_equal(values)!r}"

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
        ahead = ValuesAhead(curves, bases)
        # All at once: an interrupt between two assignments would give groups the wrong curves.
        vars(self).update(groups=groups, curves=curves, written=written, bases=bases, _ahead=ahead)

    def _keep_bases(self, members: Sequence[Member]) -> None:
        """Write the peaks into the groups, where torch's schedulers expect them."""
        for member in members:
            self.option.keep_base(member.group, member.base)

    # Values.

    def set_bases(self, bases: Sequence[float], group_count: int) -> None:
        """Set the base of each group, without writing values into the groups.

        The lists show the first `group_count` groups.
        """
        self._replace_bases(bases)
        self._keep_bases(self._members())
        self.lists.show(self.bases[:group_count], self.curves[:group_count])

    def _replace_bases(self, bases: Sequence[float]) -> None:
        members: list[Member] = []
        for member, base in zip(self._members(), bases, strict=True):
            members.append(member._replace(base=base))
        self._set_members(members)

    def values_at(self, step: int) -> list[float]:
        """Return the value of each group at a step of the curves."""
        return self._ahead.at(step)

    def write(self, step: int, values: Sequence[Any]) -> None:
        """Write the values of a step into the groups, one value per group."""
        written: list[Any] = []
        for group, value in zip(self.groups, values, strict=True):
            written.append(self.option.write(group, value))
        self.step = step
        self.written = written
        self.last_write.latest = self.groups, written
        self.has_yielded = False
        self.loaded = None

    def write_usual(self, step: int) -> bool:
        """Write the values of a step in half the time of `sync`, `values_at` and `write`.

        Return False, and change nothing, unless all is as usual: no value is a tensor, and the
        groups and the program's lists are those at the last `sync`.
        """
        groups = self.groups
        current = self.optimizer.param_groups
        lists = self.lists
        if lists.bases != self.bases or lists.curves != self.curves or len(current) != len(groups):
            return False
        ahead = self._ahead
        if 0 <= step - ahead.first < len(ahead.rows):
            values = ahead.rows[step - ahead.first]
        else:
            values = ahead.at(step)
        name = self._name
        # Counting takes half the time of zip() and enumerate(), for few groups as for many.
        index = 0
        for group in groups:
            if current[index] is not group or type(group[name]) is not float:
                return False
            index += 1  # noqa: SIM113 -- see above
        index = 0
        for group in groups:
            group[name] = values[index]
            index += 1  # noqa: SIM113 -- see above
        self.step = step
        self.written = values
        self.last_write.latest = groups, values
        self.has_yielded = False
        self.loaded = None
        return True

    def holds(self, values: Sequence[Any]) -> bool:
        """Return True if the first groups, one for each value, hold these values.

        A program may freeze groups, so a group at 0 fits any value if another group has its value.
        Groups that the optimizer no longer has do not count. May wait for the device.
        """
        has_match = False
        are_all_zero = True
        current = set(map(id, self.optimizer.param_groups))
        for group, expected in zip(self.groups, values, strict=False):
            if id(group) not in current:
                continue
            value = as_number(self.option.read(group))
            expected = as_number(expected)
            if value and not is_same(value, expected):
                return False
            has_match = has_match or bool(value)
            are_all_zero = are_all_zero and not expected
        return has_match or are_all_zero

    def is_in_charge(self) -> bool:
        """Return True if the groups hold the values that `write` wrote. May wait for the device.

        Otherwise a different scheduler or the user has changed them since.
        """
        return not self.has_yielded and self.holds(self.written)

    # Loaded states.

    def before_load(self) -> None:
        """Note who is in charge before the optimizer loads a state."""
        self._was_in_charge = self.is_in_charge()

    def after_load(self) -> None:
        """Match the groups that the optimizer has loaded, and write the values of the step.

        The loaded values may be those of an earlier step. Before the first step they stay, since
        the state of the scheduler may follow, and a different one may be in charge.

        Raises:
            TypeError, ValueError: As `add_new_groups`.
        """
        self.add_new_groups(are_loaded=True)
        loaded = [as_number(self.option.read(group)) for group in self.groups]
        if self._was_in_charge and (self.step != 0 or self.is_restored):
            self.write(self.step, self.values_at(self.step))
        self.loaded = loaded

    def restore_loaded(self) -> None:
        """Write the values that the optimizer has loaded, which `after_load` may have replaced."""
        for group, value in zip(self.groups, self.loaded or (), strict=False):
            self.option.write(group, value)

    def note_written(self, values: Sequence[Any]) -> None:
        """Take these as the values written last into the first groups."""
        values = values[: len(self.written)]
        self.written = [*values, *self.written[len(values) :]]

    # Groups.

    def retarget(self, optimizer: Optimizer) -> None:
        """Follow the groups of a different optimizer, which a program has assigned."""
        if self._former is None:
            self._former = self._members()
        self.optimizer = optimizer

    def is_synced(self) -> bool:
        """Return True if `sync` has nothing to do."""
        return (
            self.lists.bases == self.bases
            and self.lists.curves == self.curves
            and self.has_current_groups()
        )

    def sync(self) -> None:
        """Match the optimizer's current groups, and bring the lists up to date.

        Raises:
            TypeError, ValueError: As `sync_groups`.
        """
        if not self.is_synced():
            self.sync_groups()
            self.lists.show(self.bases, self.curves)

    def sync_groups(self) -> None:
        """Match the optimizer's current groups, in their order; new ones get their value.

        The lists stay as they are, because the program may still append to them.

        Raises:
            TypeError, ValueError: As `add_new_groups`; or the program has written into `lists`
                what cannot be adopted. The known groups are matched nevertheless.
        """
        if not self.has_current_groups():
            try:
                self.add_new_groups()
            finally:
                self._drop_removed_groups()
        self.lists.check(self.groups, self.curves)
        bases = self.lists.written_bases(len(self.groups))
        if bases is not None:
            self._replace_bases(bases)
            self.lists.note()

    def has_current_groups(self) -> bool:
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

    def add_new_groups(self, *, writes: bool = True, are_loaded: bool = False) -> None:
        """Give new groups of the optimizer a curve and a base; known groups keep theirs.

        With `writes`, a new group also gets its value, if the known groups hold the values that
        `write` wrote. With `are_loaded`, the options come from a state, so `initial_lr` is a peak.

        Raises:
            TypeError, ValueError: A new group has no curve, or no base. No group was added.
        """
        # No group is dropped here: in an update, DeepSpeed shows one group at a time.
        self._replace_reloaded_groups(list(self.unknown_groups().values()))
        new = self.unknown_groups()
        if not new:
            self._former = None
            return
        is_in_charge = self.is_in_charge()
        new_members: list[Member] = []
        for index, group in new.items():
            new_members.append(self._new_member(index, group, is_loaded=are_loaded))
        self.option.warn_of_scales(list(new.values()))
        first = len(self.groups)
        self._set_members([*self._members(), *new_members])
        self._keep_bases(new_members)
        if self._former is not None:
            # The values are those that the program has given to the groups of its new optimizer.
            self._former = None
            self._drop_removed_groups()
            self._removed = []  # they hold the parameters of the old model
        elif writes and is_in_charge:
            values = self.values_at(self.step)
            for place in range(first, len(self.groups)):
                self.written[place] = self.option.write(self.groups[place], values[place])

    def _new_member(self, index: int, group: dict[str, Any], *, is_loaded: bool) -> Member:
        """Return a new group with its curve and base; a removed group gets its former ones."""
        written = self.option.read(group)
        bases = self.lists.written_bases(len(self.optimizer.param_groups))
        for removed in self._removed:
            if removed.group is group and bases is None:
                return removed._replace(written=written)
        curve = self._curve_of_new_group(index)
        if bases is not None:
            return Member(group, curve, bases[index], written)
        if self._former is not None:
            return self._moved_member(index, group, curve, self._former)
        if self.option.has_kept_base(group) and not is_loaded:
            base = peak_of_copied_options(index, group, curve, self.step, self.groups)
        else:
            base = self.option.base_of(index, group)
        return Member(group, curve, base, written)

    def _moved_member(
        self, index: int, group: dict[str, Any], curve: Curve, former: list[Member]
    ) -> Member:
        """Return a group of a new optimizer, whose parameters are new too.

        It keeps the base of the group in whose place it is, since its learning rate may be as
        decayed as that group's.
        """
        groups = self.optimizer.param_groups
        if len(groups) == len(former):
            return former[index]._replace(group=group, curve=curve)
        if "initial_lr" in group:
            base = self.option.base_of(index, group)
            return Member(group, curve, base, self.option.read(group))
        raise ValueError(
            f"the new optimizer has {len(groups)} parameter groups, and the one before had "
            f"{len(former)}: the base of param_groups[{index}] is not known, since its "
            f"{self.option} = {as_number(self.option.read(group))!r} may have decayed. Write "
            f"{self.option.bases_name} = [...], with an item for each group"
        )

    def _curve_of_new_group(self, index: int) -> Curve:
        groups = self.optimizer.param_groups
        curve = self.lists.written_curve(index, len(groups))
        if curve is not None:
            return curve
        if self.common_curve is not None:
            return self.common_curve
        are_replaced = len(self.unknown_groups()) == len(groups) == len(self.groups)
        if not are_replaced:
            raise ValueError(
                f"the optimizer has {len(groups)} parameter groups, but "
                f"curves for {len(self.groups)} of them. Build this again with a curve for each "
                "group, and load its state: new.load_state_dict(old.state_dict())"
            )
        return self.curves[index]

    def _replace_reloaded_groups(self, unknown: Sequence[dict[str, Any]]) -> None:
        """Replace known groups by unknown dictionaries with their parameters, as after a load."""
        if not unknown:
            return
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
            if not self.option.has_kept_base(group):
                self.option.keep_base(group, former.base)
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
