"""Compare a saved run with the present one, and decide if it may continue."""

from collections.abc import Sequence
from typing import NamedTuple

from torch_bridge.clocks.saved_states import Saved
from torch_bridge.curve_api import (
    CheckedClock,
    Curve,
    Record,
    describe_clock_difference,
    describe_curve_difference,
    read_curve,
)


class Difference(NamedTuple):
    """A way in which a saved run differs from the present one."""

    warning: str
    """The warning if the run continues."""
    error: str = ""
    """Why the run should not continue; empty if it may."""
    override: str = ""
    """What `strict=False` does, as the end of a sentence; empty if that is plain."""
    can_override: bool = True
    """True if the error says how to continue all the same."""


def find_differences(
    saved: Saved, curves: Sequence[Curve], clock: CheckedClock
) -> list[Difference]:
    """Compare a saved run with the curve of each parameter group and the clock that it has now."""
    differences: list[Difference] = []
    step = saved.curve_step
    problem = describe_clock_difference(saved.clock, clock.to_plain())
    if problem:
        differences.append(
            Difference(
                f"state_dict belongs to a different clock: {problem}. The run continues at step "
                f"{step} of the curve, with a fresh clock",
                f"state_dict cannot resume at step {step}: {problem}; resume with the old clock",
                ", to continue at this step of the curve with a fresh clock",
            )
        )
    if saved.records is None:
        differences.append(
            Difference(
                "state_dict was saved by a scheduler without a curve: this curve continues at step "
                f"{step}, and nothing shows whether the learning rates so far were its own"
            )
        )
    else:
        differences += find_curve_differences(
            saved.records, curves, step, is_step_used=saved.is_step_used
        )
    return differences


def find_curve_differences(
    records: Sequence[Record],
    curves: Sequence[Curve],
    step: int,
    *,
    is_step_used: bool,
    driven: str = "learning rates",
) -> list[Difference]:
    """Return the first difference of a curve from the saved one before a step, if there is one.

    Args:
        records: The record of each parameter group.
        curves: The curve that each group follows now.
        step: The step to resume at.
        is_step_used: As in `describe_curve_difference`.
        driven: The values that follow the curves, for messages.
    """
    for index, (record, curve) in enumerate(zip(records, curves, strict=True)):
        if record.curve == curve.to_dict():
            continue  # without building it, which takes long if it has many stages
        try:
            saved = read_curve(f"records[{index}]", record)
        except ValueError as error:
            warning = f"the {driven} so far are not compared: {error}"
            return [Difference(warning, str(error), can_override=False)]
        driven_of_group = driven
        if len(curves) > 1:
            driven_of_group += f" of param_groups[{index}]"
        problem = describe_curve_difference(
            saved, curve, step, is_step_used=is_step_used, driven=driven_of_group
        )
        if problem:
            warning = (
                f"state_dict belongs to a different curve: {problem}. The run continues at step "
                f"{step} of this curve"
            )
            error = f"state_dict cannot resume at step {step}: {problem}; resume with the old curve"
            return [Difference(warning, error)]
    return []


def decide(differences: Sequence[Difference], *, strict: bool, builder: str) -> list[str]:
    """Return the warnings with which a run continues in spite of some differences.

    Args:
        differences: The differences.
        strict: True to continue only if none of them has an error.
        builder: The function or class that takes the default of `strict`, for messages.

    Raises:
        ValueError: The run may not continue.
    """
    for difference in differences:
        if strict and difference.error and not difference.can_override:
            raise ValueError(difference.error)
        if strict and difference.error:
            raise ValueError(
                f"{difference.error}, or pass strict=False to load_state_dict, or to {builder} if "
                f"Checkpoints or a trainer loads{difference.override}"
            )
    return [difference.warning for difference in differences]
