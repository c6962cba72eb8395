"""What a run must do: in Python integers, and by the oracle of the hold rules."""

import math
from collections.abc import Sequence
from typing import Any

from support.clocks.holds import curve_steps_of
from support.runs.run import Run, Update
from support.schedulers.runs import learning_rate

from plateau_jax import Curve


class RunOracle:
    """The values of a run at each update.

    Args:
        run: A new run. The oracle reads its curves, peaks, clock and `skips_nonfinite`, and rounds
            with its `in_group`.
    """

    def __init__(self, run: Run) -> None:
        self.curve = run.curve
        self.peaks = list(run.peaks)
        self.clock = run.clock
        self.skips_nonfinite = run.skips_nonfinite
        self.in_group = run.in_group
        self.counts: list[int] = []
        self.metrics: list[Any] = []

    def run(self, updates: Sequence[Update]) -> list[list[float]]:
        """Return the values of each of these further updates."""
        applied_before: list[int] = []
        for count, metric in updates:
            applied_before.append(len(self.counts))
            if not self.skips_nonfinite or math.isfinite(metric):
                self.count(count, metric)
        curve_steps = self.curve_steps()
        return [self.values_at(curve_steps[applied]) for applied in applied_before]

    def count(self, count: Any, metric: Any) -> None:
        """Count an update that was applied."""
        if count is None:
            count = self.clock.count
        self.counts.append(count)
        self.metrics.append(metric)

    def curve_steps(self) -> list[int]:
        """Return the step of the curve of each applied update, and the one after the last."""
        curve = self.curves()[0]
        return curve_steps_of(self.clock, curve, self.counts, self.metrics)

    def curves(self) -> Sequence[Curve]:
        """Return the curve of each group."""
        if isinstance(self.curve, Curve):
            return [self.curve] * len(self.peaks)
        return self.curve

    def values_at(self, step: int) -> list[float]:
        """Return the value of each group at a step of the curve."""
        values: list[float] = []
        for peak, curve in zip(self.peaks, self.curves(), strict=True):
            value = learning_rate(peak, curve, step)
            values.append(self.in_group(value))
        return values
