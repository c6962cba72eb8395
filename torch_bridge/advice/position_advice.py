"""The warnings about a run that is far past the end of its curves, or that was not resumed."""

from collections.abc import Sequence

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve

_FAR_PAST = 10
"""Beyond this many times the curve's steps, a run probably counts in other units."""

_FLOOR_UPDATES = 1000
"""The number of updates at a floor above 0 before a warning."""


def advise_hint(builder: str) -> str:
    """Return the sentence of a warning about the argument `advise` of a function or class."""
    return f"To turn such warnings off, write {builder}(..., advise=False)"


def end_message(
    curves: Sequence[Curve], unit: int | None, step: int, updates: int, builder: str
) -> str:
    """Return the warning that is due at this step, after this number of updates, or "".

    A warning is due if the learning rate has been 0 for more than 10 steps and more than 1 % of the
    curve; or if it has stayed at a floor, below the curve's highest level, for more than 1000
    updates, and the step is past 10 times the steps of the curve.
    """
    if step < first_step_past_end(curves):
        return ""
    total = max(curve.total_steps for curve in curves)
    needed = "has updates: total_steps = count_updates(loader, epochs)"
    if unit is not None:
        needed = f"consumes, in units of {unit}"
    message = f"the curve has total_steps = {total}, but training continues at step {step}, with"
    distinct = list({id(curve): curve for curve in curves}.values())
    if not any(curve(curve.total_steps) for curve in distinct):
        return (
            f"{message} every learning rate at 0, so no weight changes. Give the curve as many "
            f"steps as the training {needed}; or end it above 0 (min_lr_ratio)"
        )
    # With a clock, steps are not updates: about (step - total)/step of the updates came after the
    # end.
    is_far = step > _FAR_PAST * total and updates * (step - total) > _FLOOR_UPDATES * step
    if not is_far or any(map(_ends_at_its_highest_level, distinct)):
        return ""
    cause = "does the curve count epochs"
    if unit is not None:
        cause = "is the unit too small"
    return (
        f"{message} every learning rate at its final value since step {total}: {cause}? Give the "
        f"curve as many steps as the training {needed}. {advise_hint(builder)}"
    )


def first_step_past_end(curves: Sequence[Curve]) -> int:
    """Return the first step that is more than 10 steps and 1 % past the end of all curves."""
    total = max((curve.total_steps for curve in curves), default=checks.MAX_STEP)
    # A run may train a little longer on purpose, or to a round number of updates.
    return total + max(10, total // 100) + 1


def start_message(seen: str, advice: str) -> str:
    """Return the warning about an optimizer that was resumed without its position on the curve.

    `seen` says why it counts as resumed, such as `describe_updates`.
    """
    return f"{seen}, but the curve starts at step 0: {advice}"


def describe_updates(updates: int) -> str:
    """Return how many updates an optimizer has made, for `start_message`."""
    return f"the optimizer has made {checks.plural(updates, 'update')}"


def _ends_at_its_highest_level(curve: Curve) -> bool:
    """Return True for a curve that is meant to stay at its final level, such as a warmup."""
    highest = max(max(segment.start, segment.end) for segment in curve.segments)
    return curve(curve.total_steps) == highest
