"""Curves for one option of an optimizer's parameter groups, which may come, go and move."""

from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from torch.optim import Optimizer

from torch_bridge.curve_api import CHUNK, Curve, checks
from torch_bridge.param_groups import (
    GroupOption,
    as_number,
    base_value,
    curves_of,
    is_same,
    unshare_tensors,
)
from torch_bridge.schedulers.update_hook import hook_of

_NEAR = 50
"""Evaluating a single step takes about as long as this many steps at once."""


class ValuesAhead:
    """The values of all groups for the steps ahead.

        value = float32(float32(base) · curve(step))

    They are computed for `CHUNK` steps at once. A step far from these is computed alone, because a
    clock of samples may leap, and would use few of them.
    """

    def __init__(self, curves: Sequence[Curve], bases: Sequence[float]) -> None:
        self.curves, self.bases = list(curves), list(bases)
        self._first = 0
        self._rows: list[list[float]] = []
        """The values of each group, for the first step and those after it."""

    def at(self, step: int) -> list[float]:
        """Return each group's value at a step, a float32 number as a Python float."""
        place = step - self._first
        if not 0 <= place < len(self._rows):
            self._compute(step)
            place = 0
        return self._rows[place]

    def _compute(self, first: int) -> None:
        is_near = first <= self._first + len(self._rows) + _NEAR
        # Past MAX_STEP every curve is constant, and NumPy has no ranges from 2⁶³ on.
        steps = min(first, checks.MAX_STEP) + np.arange(CHUNK if is_near else 1)
        # By identity, because the hash of a curve of many stages takes longer.
        distinct = {id(curve): curve for curve in self.curves}
        multipliers = {key: curve(steps) for key, curve in distinct.items()}
        values = np.empty((len(steps), len(self.bases)), np.float32)
        for index, (curve, base) in enumerate(zip(self.curves, self.bases, strict=True)):
            values[:, index] = np.float32(base) * multipliers[id(curve)]
        # Python floats: NumPy scalars would get into `param_groups`, and from there into
        # checkpoints.
        self._first, self._rows = first, values.tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        return ValuesAhead, (self.curves, self.bases)  # without the values


class Member(NamedTuple):
    """A parameter group with its curve and its base."""

    group: dict[str, Any]
    curve: Curve
    base: float


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

    def __init__(
        self, optimizer: Optimizer, option: GroupOption, curve: Curve | Sequence[Curve]
    ) -> None:
        self.optimizer, self.option = optimizer, option
        self._name = option.name
        self.common_curve = curve if isinstance(curve, Curve) else None
        self.curves = curves_of(optimizer, curve)
        self.groups = list(optimizer.param_groups)
        bases = [option.base_of(index, group) for index, group in enumerate(self.groups)]
        option.warn_of_scales(self.groups)
        self.written: list[Any] = [option.read(group) for group in self.groups]
        self.bases: list[float] = bases
        self._ahead = ValuesAhead(self.curves, bases)
        self.set_bases(bases)
        self.is_loaded = False
        self.step = 0
        """The step of the curves that was written last."""
        self._forgotten: list[Member] = []
        """The groups that the optimizer no longer has. They may come back, if a program
        alternates."""
        hook_of(optimizer).add(self)

    def __setstate__(self, state: Any) -> None:
        """Add a copy to a hook: a copy of an optimizer has none."""
        vars(self).update(state)
        self.groups, self.curves = list(self.groups), list(self.curves)
        self.bases, self.written = list(self.bases), list(self.written)
        hook_of(self.optimizer).add(self)

    def describe(self) -> tuple[str, str]:
        """Return the curve and the value of the groups as text; a list if they differ."""
        values = [as_number(self.option.read(group)) for group in self.groups]
        value = values[0] if len(set(values)) == 1 else values
        return repr(self.common_curve or self.curves), f"{self.option}={value!r}"

    def set_bases(self, bases: Sequence[float]) -> None:
        """Set the base of each group, without writing values into the groups."""
        self._replace_lists(self.groups, self.curves, self.written, list(bases))

    def _replace_lists(
        self,
        groups: list[dict[str, Any]],
        curves: list[Curve],
        written: list[Any],
        bases: list[float],
    ) -> None:
        unshare_tensors(self.optimizer, self.option, groups, bases, curves)
        if self.option.name == "lr":
            for group, base in zip(groups, bases, strict=True):
                group["initial_lr"] = base
        ahead = ValuesAhead(curves, bases)
        # At once: after an interrupt between two of them, groups would follow the curves of others.
        vars(self).update(groups=groups, curves=curves, written=written, bases=bases, _ahead=ahead)

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
        """Return True if one of the first groups holds its value here. May wait for the device.

        One is enough, since a program may freeze others. Zeros say nothing, unless all are.
        """
        is_zero = True
        shown = set(map(id, self.optimizer.param_groups))
        for group, value in zip(self.groups, values, strict=False):
            if id(group) not in shown:
                continue
            held, value = as_number(self.option.read(group)), as_number(value)
            is_zero = is_zero and held == value == 0
            if held and is_same(held, value):
                return True
        return is_zero

    def is_in_charge(self) -> bool:
        """Return True if the groups hold the values that were written here last. May wait for the device."""
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
            places = {id(group): place for place, group in enumerate(self.groups)}
            self._keep(
                [places[id(group)] for group in self.optimizer.param_groups if id(group) in places]
            )

    def is_current(self) -> bool:
        """Return True if the optimizer has these groups, in this order."""
        groups = self.optimizer.param_groups
        return len(groups) == len(self.groups) and all(map(is_, groups, self.groups))

    def unknown_groups(self) -> list[int]:
        """Return the indices of the optimizer's groups that are not known here."""
        known = set(map(id, self.groups))
        return [
            index
            for index, group in enumerate(self.optimizer.param_groups)
            if id(group) not in known
        ]

    def meet(self, *, writes: bool = True) -> None:
        """Give new groups of the optimizer a curve and a base; known ones are not looked at.

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
        members = [self._member(index, groups[index]) for index in new]
        self.option.warn_of_scales([groups[index] for index in new])
        is_in_charge = writes and self.is_in_charge()
        first = len(self.groups)
        self._replace_lists(
            [*self.groups, *(item.group for item in members)],
            [*self.curves, *(item.curve for item in members)],
            [*self.written, *(self.option.read(item.group) for item in members)],
            [*self.bases, *(item.base for item in members)],
        )
        if is_in_charge:
            values = self.values_at(self.step)
            for place in range(first, len(self.groups)):
                self.written[place] = self.option.write(self.groups[place], values[place])

    def _member(self, index: int, group: dict[str, Any]) -> Member:
        """Return a new group with its curve and base, or one that has come back with its former ones."""
        for former in self._forgotten:
            if former.group is group:
                return former
        if self.common_curve is None:
            raise ValueError(
                f"the optimizer has {len(self.optimizer.param_groups)} parameter groups, but "
                f"curves for {len(self.groups)} of them. Build this again with a curve for each "
                "group, and load its state: new.load_state_dict(old.state_dict())"
            )
        return Member(group, self.common_curve, self.option.base_of(index, group))

    def _recognize(self, unknown: Sequence[dict[str, Any]]) -> None:
        """Let dictionaries take the places of groups whose parameters they have, as after a load."""
        places: dict[int, int] = {}
        for place, group in enumerate(self.groups):
            # A dictionary that was loaded has this very list of parameters, which may be empty.
            signs = [group["params"], *group["params"]]
            places.update((id(sign), place) for sign in signs)
        groups, curves = list(self.groups), list(self.curves)
        written, bases = list(self.written), list(self.bases)
        for group in unknown:
            signs = [group["params"], *group["params"]]
            place = next((places[id(sign)] for sign in signs if id(sign) in places), None)
            if place is None:
                continue
            if any(groups[place] is other for other in unknown):  # the group was split
                groups.append(group)
                curves.append(curves[place])
                written.append(written[place])
                bases.append(bases[place])
            else:
                groups[place] = group
        self._replace_lists(groups, curves, written, bases)

    def _keep(self, places: Sequence[int]) -> None:
        """Keep the groups at these places, in this order."""
        shown = set(map(id, self.optimizer.param_groups))
        former = [item for item in self._forgotten if id(item.group) not in shown]
        for group, curve, base in zip(self.groups, self.curves, self.bases, strict=True):
            if id(group) not in shown:
                former.append(Member(group, curve, base))
        self._forgotten = former
        self._replace_lists(
            [self.groups[place] for place in places],
            [self.curves[place] for place in places],
            [self.written[place] for place in places],
            [self.bases[place] for place in places],
        )
