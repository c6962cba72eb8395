"""Notices a training that goes on after the end of its curves, where it learns nothing."""

import math
from collections.abc import Sequence

from torch_bridge.core import Curve
from torch_bridge.schedulers.step_watch import last_silent_step, warn_past_the_end


class End:
    """The end of the curves, where all of them come down to zero; it warns once of a clock far past it.

    Args:
        curves: The curve of each parameter group.
        unit: How many samples or tokens make one step; None where an update is one.
    """

    def __init__(self, curves: Sequence[Curve], unit: int | None) -> None:
        self._curves, self._unit = curves, unit
        self._last = last_silent_step(curves)

    def __call__(self, clock: int) -> None:
        """Say so where the clock is past the end by more than ten steps, and more than a hundredth of all."""
        if clock > self._last:
            self._last = math.inf  # once
            warn_past_the_end(self._curves, clock, self._unit)
