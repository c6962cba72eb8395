"""The warning about a value that a program wrote into a group, and that a curve will overwrite."""

from collections.abc import Iterable

from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, shortest_decimal
from torch_bridge.groups.options import GroupOption, as_number, is_same, written_values


def value_message(
    optimizer: Optimizer,
    option: GroupOption,
    step: int,
    curves: Iterable[Curve | None],
    bases: Iterable[float],
) -> str:
    """Return the warning that is due about the groups of an optimizer, or "".

    It is due if a group has a base from before, and its value is neither the base, nor the base
    times the multiplier, nor among the values that schedulers of this library wrote last.

    Args:
        optimizer: The optimizer.
        option: The option that the curves set.
        step: The step of the curves.
        curves: The curve of each group; None for a group that is not to be checked.
        bases: The base of each group.
    """
    key = option.base_key
    written = [as_number(value) for value in written_values(optimizer).get(key, [])]
    for index, (group, curve, base) in enumerate(
        zip(optimizer.param_groups, curves, bases, strict=True)
    ):
        if curve is None or key not in group:
            continue
        value = as_number(option.read(group))
        on_curve = curve.learning_rate(step, base)
        if any(is_same(value, number) for number in (base, on_curve, *written)):
            continue
        shown, shown_base = shortest_decimal(value), shortest_decimal(base)
        return (
            f"param_groups[{index}] has {option} = {shown}, but the {option.base_word} is {key} = "
            f"{shown_base}, so the {option} is overwritten. To make {shown} the "
            f'{option.base_word}, write del group["{key}"] before the scheduler is built or the '
            f"group is added. To keep the {option.base_word} {shown_base}, write before "
            f"{option.line_that_sets(group, shown_base)}. To resume a run, load the scheduler's "
            f"state. If one of torch's schedulers wrote {option}, nothing is wrong"
        )
    return ""
