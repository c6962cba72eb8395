"""Notices a training that goes on after the end of its curves, where it learns nothing."""

from collections.abc import Sequence

from torch_bridge.core import Curve, warn


class End:
    """The end of the curves, where all of them come down to zero; it warns once of a clock far past it.

    Args:
        curves: The curve of each parameter group.
        unit: How many samples or tokens make one step; None where an update is one.
    """

    def __init__(self, curves: Sequence[Curve], unit: int | None = None) -> None:
        steps = max(curve.total_steps for curve in curves)
        self._steps = steps
        self._length = "number of updates" if unit is None else f"number of samples or tokens, // {unit},"
        # A run may go a little further on purpose, or to a round number of updates. More than ten steps would
        # do; the host learns of the clock so late that a few more make no difference.
        self._last = steps + max(10, steps // 100)
        self._is_zero = all(curve(steps) == 0 for curve in curves)

    def __call__(self, clock: int) -> None:
        """Say so where the clock is past the end by more than 50 steps, and more than a hundredth of all."""
        if self._is_zero and clock > self._last:
            self._is_zero = False  # once
            warn(
                f"the clock of this TrainStep is at step {clock}, but its curve has {self._steps} steps: "
                "since its end all rates are 0, and no weight changes. Build the curve with total_steps = "
                f"the {self._length} of the whole run, or stop the training at its end"
            )
