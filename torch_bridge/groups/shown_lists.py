"""The lists of bases and curves that a program sees, and may write."""

from collections.abc import Sequence
from typing import Any, Self

from torch_bridge.curve_api import Curve, checks
from torch_bridge.groups.options import LEARNING_RATE, GroupOption, as_number, base_value


class ShownLists:
    """The bases and curves as lists, which programs write as they do with a torch scheduler.

    For example, `base_lrs.append(peak)` after `add_param_group`. An added group appears in the
    lists at the next step of the scheduler, not before, since a program may append it until then.

    Args:
        option: The option that follows the curves.
        bases: Each group's base.
        curves: Each group's curve.
    """

    def __init__(
        self, option: GroupOption, bases: Sequence[float], curves: Sequence[Curve]
    ) -> None:
        self._option = option
        self.bases = list(bases)
        self.curves: list[Any] = list(curves)
        self.note()

    def __copy__(self) -> Self:
        lists = type(self)(self._option, self._noted_bases, self._noted_curves)
        lists.bases = list(self.bases)
        lists.curves = list(self.curves)
        return lists

    def show(self, bases: Sequence[float], curves: Sequence[Curve]) -> None:
        """Write the present bases and curves into the lists."""
        self.bases[:] = bases
        self.curves[:] = curves
        self.note()

    def note(self) -> None:
        """Take the lists as they are: what differs later was written by the program."""
        self._noted_bases = list(self.bases)
        self._noted_curves = list(self.curves)

    def note_adopted(self, bases: Sequence[float], curves: Sequence[Curve]) -> None:
        """Take the lists as they are, if these are what the program wrote into them."""
        if self.bases == bases:
            self._noted_bases = list(bases)
        if self.curves == curves:
            self._noted_curves = list(curves)

    def written_bases(self, group_count: int) -> list[float] | None:
        """Return the bases that the program wrote, by position, or None if it wrote none.

        None too if the optimizer has a different number of groups, as long as the program may not
        be done: `check` raises an error at the next step.
        """
        if self.bases == self._noted_bases or len(self.bases) != group_count:
            return None
        name = self._option.bases_name
        return [base_value(f"{name}[{index}]", base) for index, base in enumerate(self.bases)]

    def written_curve(self, index: int, group_count: int) -> Curve | None:
        """Return the curve that the program wrote for a new group, or None if it wrote none."""
        if self.curves == self._noted_curves or len(self.curves) != group_count:
            return None
        if not isinstance(self.curves[index], Curve):
            raise ValueError(_curve_message(self._option, index, self.curves[index]))
        return self.curves[index]

    def check(self, groups: Sequence[dict[str, Any]], curves: Sequence[Curve]) -> None:
        """Raise a ValueError for a wrong number of items, or a curve that is not the group's."""
        option = self._option
        if self.curves != self._noted_curves:
            self._check_length(option.curves_name, self.curves, groups)
            for index, curve in enumerate(self.curves):
                if curve != curves[index]:
                    raise ValueError(_curve_message(option, index, curve))
        if self.bases != self._noted_bases:
            self._check_length(option.bases_name, self.bases, groups)

    def _check_length(
        self, name: str, values: Sequence[Any], groups: Sequence[dict[str, Any]]
    ) -> None:
        if len(values) == len(groups):
            return
        present = [as_number(self._option.read(group)) for group in groups]
        raise ValueError(
            f"{name} has {len(values)} items for {len(groups)} parameter groups, whose "
            f"{self._option} is now {checks.short_repr(present)}: write one item for each group, "
            "in the order of optimizer.param_groups"
        )


def _curve_message(option: GroupOption, index: int, curve: Any) -> str:
    """Return the error about a curve, or another function, that a program wrote for a group."""
    builder, old = "follow", "follower"
    if option == LEARNING_RATE:
        builder, old = "lambda_lr", "scheduler"
    shown = f"the program wrote {checks.short_repr(curve)} into {option.curves_name}[{index}], "
    advice = (
        f"To continue under a different curve, build new = {builder}(...) with it, and call "
        f"new.load_state_dict({old}.state_dict())"
    )
    if isinstance(curve, Curve):
        return f"{shown}but that group follows a different curve. {advice}"
    message = f"{shown}where only a curve has an effect, such as StagedCurve.through(points). "
    message += advice
    if option == LEARNING_RATE:
        message += ". Torch's LambdaLR follows any function of the step"
    return message
