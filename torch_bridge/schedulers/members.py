"""The parameter groups that follow curves, and how they are recognized.

A group is its dictionary. A dictionary with the same list of parameters, as from
`optimizer.load_state_dict`, takes its place. Any other dictionary is a new group.
"""

from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

from plateau_jax.curves.curve import Curve
from plateau_jax.runs.group_values import GroupValues
from torch_bridge.groups.options import GroupOption, bases_per_group


class Members(NamedTuple):
    """Groups, and the curve and the base of each."""

    groups: list[dict[str, Any]]
    values: GroupValues
    """The curve and the base of each."""

    def same_groups(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Return True if these are the same groups in the same order."""
        return len(groups) == len(self.groups) and all(map(is_, groups, self.groups))

    def place_of(self, group: dict[str, Any]) -> int | None:
        """Return the place of a group; None for a new group."""
        for place, known in enumerate(self.groups):
            if group is known:
                return place
        for place, known in enumerate(self.groups):
            # The optimizer has loaded a state: its new dictionaries have the old lists of
            # parameters. These are read now, because DeepSpeed replaces the lists.
            if group["params"] is known.get("params"):
                return place
        return None

    def new_among(self, groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of the groups that are not members."""
        return [group for group in groups if self.place_of(group) is None]

    def updated(
        self,
        groups: Sequence[dict[str, Any]],
        indices: Sequence[int],
        option: GroupOption,
        curve: Curve | None,
        base_lrs: Sequence[Any],
        lr_lambdas: Sequence[Any],
    ) -> "Members":
        """Return the members as they are now. Changes nothing.

        Args:
            groups: The groups that follow the curves.
            indices: Their places in `optimizer.param_groups`, for messages.
            option: Reads the base of a new group.
            curve: The curve of all groups; None if each group has its own.
            base_lrs: The bases, which the program may have changed; then there is one for each of
                the present groups.
            lr_lambdas: The curves, as the program has left them.

        Raises:
            TypeError, ValueError: A new group has no base or curve, or a list is wrong.
        """
        curves: list[Curve] = []
        bases: list[float] = []
        for index, group in zip(indices, groups, strict=True):
            place = self.place_of(group)
            if place is not None:
                curves.append(self.values.curves[place])
                bases.append(self.values.bases[place])
                continue
            if curve is None:
                raise ValueError(
                    f"param_groups[{index}] is new, and has no curve: build a scheduler with a "
                    "curve for each group, and call new.load_state_dict(old.state_dict())"
                )
            curves.append(curve)
            bases.append(option.base_of(index, group))
        if list(lr_lambdas) not in (self.values.curves, curves):
            raise TypeError(
                "the curves of a scheduler can't be changed: build a scheduler with the new curve, "
                "and call new.load_state_dict(old.state_dict()). StagedCurve.through(points) makes "
                "a curve of any multipliers. Torch's LambdaLR follows any function of the step"
            )
        if list(base_lrs) != self.values.bases:
            bases = bases_per_group("base_lrs", base_lrs, len(groups))
        return Members([*groups], GroupValues(curves, bases))
