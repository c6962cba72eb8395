"""The warning about a run that continues past the end of its curves, at learning rate 0 or at their floor."""

import math
from collections.abc import Sequence

import numpy as np

from torch_bridge.curve_api import Curve, warn
from torch_bridge.schedulers.group_curves import map_curves

FAR_PAST = 10
"""A clock beyond this many times the curve's steps probably counts something other than the curve does."""

FLOOR_UPDATES = 1000
"""The number of updates at a floor above 0 before a warning."""


class CurveEnd:
    """Warns once of training past the end of the curves; `step_watch` has the rules.

    Args:
        curves: The curve of each parameter group.
        unit: Samples or tokens that make one step of the curves; None if an update is one.
    """

    def __init__(self, curves: Sequence[Curve], unit: int | None) -> None:
        self._unit = unit
        self.total_steps = max(curve.total_steps for curve in curves)
        self.is_at_0 = not any(map_curves(curves, lambda curve: curve(curve.total_steps)))
        self.last_silent_step: float = FAR_PAST * self.total_steps
        """The last clock that certainly does not warn; infinity after the warning."""
        if self.is_at_0:
            # A run may train a little longer on purpose, or to a round number of updates.
            self.last_silent_step = self.total_steps + max(10, self.total_steps // 100)
        elif any(map_curves(curves, _ends_highest)):  # as a warmup does
            self.last_silent_step = math.inf

    def is_far(self, clock: int, updates: int) -> bool:
        """Return True if the clock, after this number of updates, shows that the curve is too short."""
        # With a unit or a hold, the clock does not count updates. About (clock - total)/clock of the updates
        # came after the end. From the counters alone, so that a resumed run agrees.
        return clock > self.last_silent_step and (
            self.is_at_0 or updates * (clock - self.total_steps) > FLOOR_UPDATES * clock
        )

    def resume(self, clock: int, updates: int) -> None:
        """Do not warn if the saved run has warned."""
        if self.is_far(clock, updates):
            self.last_silent_step = math.inf

    def warn(self, clock: int) -> None:
        """Warn that training continues at this step.

        Warns:
            CurveWarning: Always; the message names the end and the step.
        """
        self.last_silent_step = math.inf
        message = (
            f"the curve has total_steps = {self.total_steps}, but training continues at step {clock}, with"
        )
        needed = "has updates: total_steps = count_updates(loader, epochs)"
        if self._unit is not None:
            needed = f"consumes, in units of {self._unit}"
        if self.is_at_0:
            warn(
                f"{message} every learning rate at 0, so no weight changes. Give the curve as many steps as "
                f"the training {needed}; or end it above 0 (min_lr_ratio)"
            )
            return
        cause = "does the curve count epochs" if self._unit is None else "is the unit too small"
        warn(
            f"{message} every learning rate at its final value since step {self.total_steps}: {cause}? Give "
            f"the curve as many steps as the training {needed}. If it is meant to stay there for so long, "
            'turn this warning off: warnings.filterwarnings("ignore", "the curve has total_steps")'
        )


def value_range(curve: Curve, first: int, last: int) -> tuple[float, float]:
    """Return the least and the largest multiplier between two steps, both included."""
    # A curve is monotonic between the rows of its table. If it jumps, the step before a row counts too.
    first, last = min(first, curve.total_steps), min(last, curve.total_steps)
    begins = curve.segments.begin.astype(np.int64)
    values = curve(np.concatenate([begins, begins - 1, [first, last]]).clip(first, last))
    return float(values.min()), float(values.max())


def _ends_highest(curve: Curve) -> bool:
    return curve(curve.total_steps) == value_range(curve, 0, curve.total_steps)[1]
