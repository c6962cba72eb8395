"""Curves for one option of parameter groups, which may be added, removed and reordered."""

from collections.abc import Sequence
from copy import copy
from operator import is_
from typing import Any, NamedTuple

from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, ValuesAhead, one_if_equal, shortest_decimal
from torch_bridge.groups.curves_and_peaks import curves_of
from torch_bridge.groups.options import GroupOption, as_number, is_same, unshare_tensors
from torch_bridge.groups.shown_lists import ShownLists


class Member(NamedTuple):
    """A parameter group with its curve, its base, and the value last written into it."""

    group: dict[str, Any]
    curve: Curve
    base: float
    written: Any


class GroupCurves:
    """The curve, the base and the last written value of each parameter group, for one option.

        group[option] = float32(float32(base) · curve(step))

    The base of a group is read once, when the group is met: its `initial_lr` if it has one, else
    its `lr`; for another option `initial_weight_decay`, else `weight_decay`. It is then written
    there, where the next scheduler finds it.

    A group is identified by its dictionary, at any position in `param_groups`.
    `Optimizer.load_state_dict` replaces the dictionaries, so a new dictionary with the parameters
    of a known group takes that group's place.

    Args:
        optimizer: The optimizer.
        option: The option that follows the curves.
        curve: One curve for all groups, also for those that are added later; or one for each.
        skips_groups: True to leave groups that lack the option alone.

    Attributes:
        groups, curves, bases, written: Lists with one item per group, in the order that the
            optimizer's groups had at the last `sync_groups`; groups added since then come last.
        lists: The curves and bases that the program sees and may write.
    """

    groups: list[dict[str, Any]]
    curves: list[Curve]
    bases: list[float]
    written: list[Any]
    ahead: ValuesAhead

    def __init__(
        self,
        optimizer: Optimizer,
        option: GroupOption,
        curve: Curve | Sequence[Curve],
        *,
        skips_groups: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.option = option
        self._skips_groups = skips_groups
        self.common_curve: Curve | None = None
        if isinstance(curve, Curve):
            self.common_curve = curve
        members: list[Member] = []
        groups = self._followed_groups()
        for group, group_curve in zip(groups, curves_of(groups, curve), strict=True):
            base = option.base_of(self._index_of(group), group)
            members.append(Member(group, group_curve, base, option.read(group)))
        option.warn_of_scales(groups)
        self._set_members(members)
        self._keep_bases(members)
        self.lists = ShownLists(option, self.bases, self.curves)
        self.step = 0
        """The step of the curves that was written last."""
        self.has_yielded = False
        """True if a loaded state says that these values were not in charge when it was saved."""
        self.has_new_bases = False
        """True if the program has changed the bases since the last `write`."""
        self._is_moved = False
        """True for a different optimizer, until its groups are known."""
        self.are_reloaded = False
        """True if the optimizer has loaded groups since the last `sync`, which may lack bases."""
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

    def _followed_groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's groups that follow the curves: all, or those with the option."""
        groups = self.optimizer.param_groups
        if not self._skips_groups:
            return groups
        return [group for group in groups if self.option.is_in(group)]

    @property
    def words_for_groups(self) -> str:
        """The groups that follow the curves, in a message."""
        if self._skips_groups:
            return f"parameter groups with {self.option}"
        return "parameter groups"

    def indices(self) -> list[int]:
        """Return the indices of the groups that follow the curves, in the optimizer's order."""
        indices: list[int] = []
        for index, group in enumerate(self.optimizer.param_groups):
            if not self._skips_groups or self.option.is_in(group):
                indices.append(index)
        return indices

    def _index_of(self, group: dict[str, Any]) -> int:
        """Return the index of one of the optimizer's groups."""
        for index, candidate in enumerate(self.optimizer.param_groups):
            if candidate is group:
                return index
        raise AssertionError("the group is one of the optimizer's")

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
        vars(self).update(groups=groups, curves=curves, written=written, bases=bases, ahead=ahead)

    def _keep_bases(self, members: Sequence[Member]) -> None:
        """Write the bases into the groups, where the next scheduler finds them."""
        for member in members:
            member.group[self.option.base_key] = member.base

    # Values.

    def set_bases(self, bases: Sequence[float]) -> None:
        """Set the base of each group, without writing values into the groups."""
        self._replace_bases(bases)
        self._keep_bases(self._members())
        self.show(len(bases))

    def show(self, group_count: int) -> None:
        """Show the first groups in the lists. The program may append the others."""
        self.lists.show(self.bases[:group_count], self.curves[:group_count])

    def _replace_bases(self, bases: Sequence[float]) -> None:
        members: list[Member] = []
        for member, base in zip(self._members(), bases, strict=True):
            members.append(member._replace(base=base))
        self._set_members(members)

    def write(self, step: int, values: Sequence[Any]) -> None:
        """Write the values of a step into the groups, one value per group."""
        name = self.option.name
        written = self.written
        for place, group in enumerate(self.groups):
            value = values[place]
            if type(group[name]) is float:  # in a fifth of the time of `option.write`
                group[name] = value
            else:
                value = self.option.write(group, value)
            written[place] = value
        self.step = step
        self.has_yielded = False
        self.has_new_bases = False

    def have_values(self, values: Sequence[Any]) -> bool:
        """Return True if the first groups, one for each value, have these values.

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
        """Return True if the groups have the values that `write` wrote. May wait for the device.

        Otherwise a different scheduler or the user has changed them since.
        """
        return not self.has_yielded and self.have_values(self.written)

    def note_written(self, values: Sequence[Any]) -> None:
        """Take these as the values written last into the first groups."""
        values = values[: len(self.written)]
        self.written[: len(values)] = values

    # Groups.

    def retarget(self, optimizer: Optimizer) -> None:
        """Follow the groups of a different optimizer, which a program has assigned."""
        self.optimizer = optimizer
        self._is_moved = not self.has_current_groups()

    def is_synced(self) -> bool:
        """Return True if `sync` has nothing to do."""
        lists = self.lists
        groups = self.groups
        # As `has_current_groups` asks, but without the calls: this runs at every step.
        current = self.optimizer.param_groups
        if self._skips_groups:
            current = self._followed_groups()
        return (
            lists.bases == self.bases
            and lists.curves == self.curves
            and not self.are_reloaded
            and len(current) == len(groups)
            and all(map(is_, current, groups))
        )

    def sync(self) -> None:
        """Match the optimizer's current groups, and bring the lists up to date.

        Call this before values are written into the groups.

        Raises:
            TypeError, ValueError: As `sync_groups`.
        """
        if self.is_synced():
            return
        self.sync_groups()
        self.lists.show(self.bases, self.curves)
        for group, base in zip(self.groups, self.bases, strict=True):
            group.setdefault(self.option.base_key, base)
        self.are_reloaded = False

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
                if not self._is_moved:
                    self._drop_removed_groups()
        self.lists.check(self.groups, self.curves)
        bases = self.lists.written_bases(len(self.groups))
        if bases is not None:
            self._replace_bases(bases)
            self.lists.note()
            self.has_new_bases = True

    def has_current_groups(self) -> bool:
        """Return True if the optimizer has exactly the groups known here, in the same order."""
        groups = self._followed_groups()
        return len(groups) == len(self.groups) and all(map(is_, groups, self.groups))

    def unknown_groups(self) -> dict[int, dict[str, Any]]:
        """Return the groups that are not known here, by their place among those that follow."""
        known = set(map(id, self.groups))
        unknown: dict[int, dict[str, Any]] = {}
        for place, group in enumerate(self._followed_groups()):
            if id(group) not in known:
                unknown[place] = group
        return unknown

    def add_new_groups(self, *, writes: bool = True, are_accepted: bool = False) -> None:
        """Give new groups of the optimizer a curve and a base; known groups keep theirs.

        With `writes`, a new group also gets its value, if the known groups have the values that
        `write` wrote. With `are_accepted`, other curves of this option have added the groups
        already, so that their bases are right.

        Raises:
            TypeError, ValueError: A new group has no curve, or no base, or seems to be copied. No
                group was added.
        """
        # No group is dropped here: in an update, DeepSpeed shows one group at a time.
        former = self._members()
        self.match_reloaded_groups()
        new = self.unknown_groups()
        if not new:
            return
        new_members: list[Member] = []
        for place, group in new.items():
            member = self._new_member(place, group, former)
            if not are_accepted:
                self._check_not_copied(member)
            new_members.append(member)
        is_in_charge = self.is_in_charge()
        self.option.warn_of_scales(list(new.values()))
        first = len(self.groups)
        self._set_members([*self._members(), *new_members])
        self.lists.note_adopted(self.bases, self.curves)
        if writes:
            self._keep_bases(new_members)
        if self._is_moved:
            # The values are those that the program has given to the groups of its new optimizer.
            self._is_moved = False
            self._drop_removed_groups()
            self._removed = []  # they keep the parameters of the old model
        elif writes and is_in_charge:
            values = self.ahead.at(self.step)
            for place in range(first, len(self.groups)):
                self.written[place] = self.option.write(self.groups[place], values[place])

    def _new_member(self, place: int, group: dict[str, Any], former: Sequence[Member]) -> Member:
        """Return a new group with its curve and base; a removed group gets its former ones."""
        index = self._index_of(group)
        written = self.option.value_of(index, group)
        bases = self.lists.written_bases(len(self._followed_groups()))
        for removed in self._removed:
            if removed.group is group and bases is None:
                return removed._replace(written=written)
        curve = self._curve_of_new_group(place)
        if bases is not None:
            return Member(group, curve, bases[place], written)
        if self._is_moved:
            return self._member_of_new_optimizer(place, group, curve, former)
        return Member(group, curve, self.option.base_of(index, group), written)

    def _member_of_new_optimizer(
        self, place: int, group: dict[str, Any], curve: Curve, former: Sequence[Member]
    ) -> Member:
        """Return a group of a new optimizer, whose parameters are new too.

        It keeps the base of the group in whose place it is, since its learning rate may be as
        decayed as that group's.
        """
        groups = self._followed_groups()
        if len(groups) == len(former):
            return former[place]._replace(group=group, curve=curve)
        index = self._index_of(group)
        if self.option.base_key in group:
            base = self.option.base_of(index, group)
            return Member(group, curve, base, self.option.read(group))
        raise ValueError(
            f"the new optimizer has {len(groups)} {self.words_for_groups}, and the one before had "
            f"{len(former)}: the base of param_groups[{index}] is not known, since its "
            f"{self.option} = {as_number(self.option.read(group))!r} may have decayed. Write "
            f"{self.option.bases_name} = [...], with an item for each group"
        )

    def _check_not_copied(self, member: Member) -> None:
        """Reject a new group whose base was copied from another group, but whose value was not."""
        option = self.option
        group = member.group
        base = member.base
        is_given = self._is_moved or self.lists.written_bases(len(self._followed_groups()))
        is_known = any(removed.group is group for removed in self._removed)
        if is_given or is_known or option.base_key not in group:
            return
        with_same_base: list[dict[str, Any]] = []
        for known, known_base in zip(self.groups, self.bases, strict=True):
            if is_same(known_base, base):
                with_same_base.append(known)
        if not with_same_base:
            return
        value = as_number(option.read(group))
        value_on_curve = member.curve.learning_rate(self.step, base)
        expected = [base, value_on_curve]
        expected += [as_number(option.read(known)) for known in with_same_base]
        if not any(is_same(value, number) for number in expected):
            index = self._index_of(group)
            line = option.line_that_sets(group, shortest_decimal(value_on_curve))
            raise ValueError(
                f"param_groups[{index}] was added with {option} = {value!r}, but its "
                f"{option.base_key} = {shortest_decimal(base)} is that of another group. To make "
                f'{option} the {option.base_word}, write del group["{option.base_key}"]. To keep '
                f"the {option.base_word} {shortest_decimal(base)}, write {line}"
            )

    def _curve_of_new_group(self, place: int) -> Curve:
        groups = self._followed_groups()
        curve = self.lists.written_curve(place, len(groups))
        if curve is not None:
            return curve
        if self.common_curve is not None:
            return self.common_curve
        are_replaced = len(self.unknown_groups()) == len(groups) == len(self.groups)
        if not are_replaced:
            raise ValueError(
                f"the optimizer has {len(groups)} {self.words_for_groups}, but "
                f"curves for {len(self.groups)} of them. Build this again with a curve for each "
                "group, and load its state: new.load_state_dict(old.state_dict())"
            )
        return self.curves[place]

    def match_reloaded_groups(self) -> None:
        """Replace known groups by unknown dictionaries with their parameters, as after a load."""
        unknown = list(self.unknown_groups().values())
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
            self.are_reloaded = True
        self._set_members(members)
        if not self.unknown_groups():
            self._is_moved = False

    def _drop_removed_groups(self) -> None:
        """Keep the groups that the optimizer has, in its order; remember the removed ones."""
        members = {id(member.group): member for member in self._members()}
        kept: list[Member] = []
        groups = self._followed_groups()
        for group in groups:
            if id(group) in members:
                kept.append(members[id(group)])
        current = set(map(id, groups))
        candidates = [*self._removed, *members.values()]
        self._removed = [member for member in candidates if id(member.group) not in current]
        self._set_members(kept)


def _identities(group: dict[str, Any]) -> list[int]:
    """Return the ids that identify a group: that of its list of parameters, and the parameters'."""
    # The list comes first: a loaded dictionary has this very list, which may be empty.
    parameters = group["params"]
    return [id(parameters), *map(id, parameters)]
