"""What a run must do: in Python integers, and by the oracle of the hold rules."""

import math
from collections.abc import Sequence
from typing import Any

from support.clocks.holds import curve_steps_of
from support.runs.run import Update
from support.schedulers.runs import learning_rate

from plateau_jax import Curve


class RunOracle:
    """The values of a run at each update.

    Args:
        curve, peaks, clock: As in `Run`.
        skips_nonfinite: True if updates whose metric is not finite are skipped.
    """

    def __init__(
        self,
        curve: Any,
        peaks: Sequence[float],
        clock: Any = None,
        *,
        skips_nonfinite: bool = False,
    ) -> None:
        self.curve = curve
        self.peaks = list(peaks)
        self.clock = clock
        self.skips_nonfinite = skips_nonfinite
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

    def count(self, count: int, metric: Any) -> None:
        """Count an update that was applied."""
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
            values.append(learning_rate(peak, curve, step))
        return values
