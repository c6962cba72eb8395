"""The scheduler for loops without JAX or torch."""

import json
from typing import Any

from support.runs.run import Run

from plateau_jax import CurveScheduler


class NumPyRun(Run):
    """A `CurveScheduler`, whose state is saved as JSON."""

    keeps_peaks = True

    def build(self) -> None:
        (peak,) = self.peaks
        self.scheduler = CurveScheduler(self.curve, peak, clock=self.clock)

    def update(self, count: Any = 1, metric: Any = 0.5) -> list[float]:
        lr = self.scheduler.lr
        if self.unit is not None:
            self.scheduler.step(count=count)
        elif self.has_hold_rules:
            self.scheduler.step(metric=metric)
        else:
            self.scheduler.step()
        return [lr]

    def curve_step(self) -> int:
        return self.scheduler.curve_step

    def consumed(self) -> int:
        return self.scheduler.consumed

    def check_reads(self, updates: int) -> None:
        assert self.scheduler.updates == updates

    def save(self) -> Any:
        return json.loads(json.dumps(self.scheduler.state_dict()))

    def load(self, state: Any, **options: Any) -> None:
        self.scheduler.load_state_dict(state, **options)
