"""Warnings about what groups contain: values to be overwritten, and factors that nobody reads."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from plateau_jax.arguments.curve_warning import warn
from plateau_jax.runs.record import shortest_decimal
from plateau_jax.runs.schedules import Schedules
from torch_bridge.groups.optimizers import groups_of
from torch_bridge.groups.options import (
    GroupOption,
    as_number,
    is_same,
    one_if_equal,
    written_values,
)

# Some libraries keep factors of an option in the groups, which only their schedulers apply.
_FACTORS = {
    "lr": ("lr_scale", "lr_mult", "lr_multiplier"),  # of timm, MAE and BEiT; of others; of DINOv2
    "weight_decay": ("wd_multiplier",),  # of DINOv2
}
"""The keys of these factors, for each option; `docs/troubleshooting.md` names them in a heading."""


def value_messages(
    optimizer: Optimizer,
    option: GroupOption,
    step: int,
    groups: Sequence[dict[str, Any]],
    schedules: Schedules,
    setter: str,
    all_bases: Sequence[float],
) -> Iterator[str]:
    """Yield the warnings that are due about groups of an optimizer that a scheduler has not met.

    One is due if a group has a base from before, and its value is neither the base, nor the value
    at this step or the one before, nor among the values that schedulers of this library wrote last.
    The message names the method that sets bases, such as "scheduler.set_peak", with `all_bases`,
    those of all optimizers.
    """
    has_scheduler = hasattr(optimizer.step, "_wrapped_by_lr_sched")
    if option.name == "lr" and has_scheduler and option not in written_values(optimizer):
        return  # one of torch's schedulers may have written the value
    written = [as_number(number) for number in written_values(optimizer).get(option, [])]
    for group, curve, base in zip(groups, schedules.curves, schedules.bases, strict=True):
        if option.base_key not in group:
            continue
        current = option.read(group)
        value = as_number(current)
        # A `TrainStep` leaves the values of its last update in the groups.
        on_curve = [curve.learning_rate(max(step - 1, 0), base), curve.learning_rate(step, base)]
        if isinstance(current, Tensor):  # which may have rounded them
            on_curve = cast("list[float]", torch.tensor(on_curve, dtype=current.dtype).tolist())
        if any(is_same(value, number) for number in (base, *on_curve, *written)):
            continue
        index = next(i for i, other in enumerate(groups_of(optimizer)) if other is group)
        shown, shown_base, key = f"{value:.8g}", shortest_decimal(base), option.base_key
        bases = one_if_equal([*map(shortest_decimal, all_bases)])
        owner, _, _ = setter.partition(".")
        yield (
            f"param_groups[{index}] has {option} = {shown}, but its {key} = {shown_base}, so the "
            f'{option} is overwritten. To schedule {shown}, write del group["{key}"] before '
            f"you build {owner} or add the group. To schedule {shown_base}, call "
            f"{setter}({bases}). To resume a run, call {owner}.load_state_dict(state). If one of "
            f"torch's schedulers wrote {option}, nothing is wrong"
        )


def warn_of_factors(option: GroupOption, groups: Sequence[dict[str, Any]]) -> None:
    """Warn if a group has a factor for the option, which this library does not apply."""
    for key in _FACTORS.get(option.name, ()):
        scaled = [group for group in groups if _is_factor(group.get(key, 1))]
        if scaled:
            # This line is also right for a group that had a scheduler before. It does not work
            # in place, because several groups may have the same tensor.
            warn(
                f"{len(scaled)} of {len(groups)} parameter groups have a factor {key}, which "
                "only other schedulers read: under this curve they would train without it. "
                "Before the scheduler is built, write for each group that has it: "
                f'group["{option.name}"] = group["{option.base_key}"] = '
                f'group.get("{option.base_key}", group["{option.name}"]) * group.pop("{key}")'
            )


def _is_factor(value: Any) -> bool:
    try:
        return float(value) != 1
    except (RuntimeError, TypeError, ValueError):
        return False  # here the key means something else
