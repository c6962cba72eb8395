"""The curve and the peak of each parameter group, when a schedule is built."""

from collections.abc import Sequence
from typing import Any, cast

from torch.optim import Optimizer

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from torch_bridge.groups.optimizers import groups_of, updates_made
from torch_bridge.groups.options import GroupOption, as_number, check_length


def curves_of(
    groups: Sequence[dict[str, Any]], curve: Curve | Sequence[Curve | None]
) -> list[Curve]:
    """Return a curve for each group, from one curve for all groups or a sequence of curves."""
    if isinstance(curve, Curve):
        return [curve] * len(groups)
    if not isinstance(curve, Sequence) or not all(isinstance(item, Curve) for item in curve):
        raise TypeError(
            checks.must(
                "curve",
                curve,
                "be a Curve, such as PlateauCurve(total_steps), or one for each parameter group",
            )
        )
    check_length("curve", curve, len(groups))
    return cast("list[Curve]", [*curve])


def check_key(option: GroupOption, groups: Sequence[dict[str, Any]]) -> None:
    """Raise a ValueError if no group has the option; the message lists what they have."""
    if not groups or any(map(option.is_in, groups)):
        return
    keys = dict.fromkeys(repr(key) for group in groups for key in group if key != "params")
    raise ValueError(
        f"param_groups[0] has no {option}, nor has any other group: the keys are {', '.join(keys)}"
    )


def curves_of_groups_with(
    option: GroupOption, groups: Sequence[dict[str, Any]], curves: Sequence[Any]
) -> list[Any]:
    """Return the curves of the groups that have an option; those of the others must be None."""
    check_length("curve", curves, len(groups))
    for index, (group, curve) in enumerate(zip(groups, curves, strict=True)):
        if option.is_in(group) == (curve is None):
            raise ValueError(
                f"curve[{index}] = {checks.short_repr(curve)}: a curve is None if, and only if, "
                f"the group has no {option}. To keep a value constant, write "
                "StagedCurve([(1,)], start=1.0)"
            )
    return [curve for curve in curves if curve is not None]


def check_peaks_are_known(optimizer: Optimizer, argument: str, alternative: str = "") -> None:
    """Reject a resumed curve if a decayed learning rate could be mistaken for the peak.

    The message names `argument`, which resumes the curve, and ends with an `alternative` to it.
    """
    groups = groups_of(optimizer)
    # A scheduler writes `initial_lr` into all groups. A group without it was added later, and its
    # learning rate is not decayed.
    if any("initial_lr" in group for group in groups):
        return
    if not groups or updates_made(optimizer) == 0:
        return
    raise ValueError(
        f"{argument}, but param_groups[0] of an optimizer that was stepped, or loaded, has no "
        f"initial_lr: its lr = {as_number(groups[0]['lr'])!r} may be decayed. First set "
        f'optimizer.param_groups[0]["initial_lr"] = peak, and so for each group{alternative}'
    )
