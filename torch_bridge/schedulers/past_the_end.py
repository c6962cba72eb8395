"""Says that a training goes on after its curve's end at rate 0."""

import math
from collections.abc import Sequence

from torch_bridge.core import Curve, warn


def end_of(curves: Sequence[Curve]) -> float:
    """The last step past the end of the curves that brings no warning; infinity where a rate stays above 0.

    A run may go a little further on purpose, or to a round number of updates.
    """
    total = max(curve.total_steps for curve in curves)
    stays = any(curve(curve.total_steps) for curve in curves)
    return math.inf if stays else total + max(10, total // 100)


def warn_past_the_end(curves: Sequence[Curve], step: int, unit: int | None) -> None:
    """Where the training goes on at this step of the curves.

    Warns:
        CurveWarning: It names the end and the step.
    """
    total = max(curve.total_steps for curve in curves)
    needed = "has updates: total_steps = count_updates(loader, epochs)"
    if unit is not None:
        needed = f"consumes, in units of {unit}"
    warn(
        f"the curve has total_steps = {total}, but the training continues at step {step}, with every rate at "
        "0, so no weight changes. Give the curve as many steps as the training "
        f"{needed}; or end it above 0 (min_lr_ratio)"
    )
