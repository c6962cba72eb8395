"""A training step whose batches are its losses."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from support.clocks.holds import batch_as_loss
from support.runs.run import Run
from support.training.models import Net
from support.training.optimizers import make_optimizer
from support.training.steps import through_file
from support.trees import assert_equal_trees

from torch_bridge import TrainStep


class StepRun(Run):
    """A `TrainStep` of fused AdamW; each result has the counters before it, and what it adds."""

    skips_nonfinite = True

    def build(self) -> None:
        model = Net()
        (peak,) = self.peaks
        optimizer = make_optimizer("adamw", model, lr=peak)
        self.step = TrainStep(model, optimizer, batch_as_loss, self.curve, clock=self.clock)

    def counters(self) -> list[int]:
        """Return the updates applied and skipped, the step of the curve, and the data consumed."""
        state: Any = self.step.state_dict()
        applied, skipped = state["applied"], state["skipped"]
        if self.unit is None:
            return [applied, skipped, applied + state["offset"], applied]
        consumed = state["consumed"]
        return [applied, skipped, consumed // self.unit, consumed]

    def update(self, count: Any = 1, metric: Any = 0.5) -> list[float]:
        applied, skipped, curve_step, consumed = self.counters()
        options: dict[str, Any] = {}
        consumed_by_update: Any = 1
        if self.unit is not None:
            options["count"] = _in_either_form(count)
            consumed_by_update = self.usual_count if count is None else count
        result = self.step(torch.tensor(metric), **options)

        if math.isfinite(metric):
            applied += 1
            consumed += consumed_by_update
            assert float(self.step.optimizer.param_groups[0]["lr"]) == result.lr
        else:
            skipped += 1
        expected = torch.tensor([applied, skipped, curve_step, consumed])
        assert_equal_trees(result.counters, expected)
        return cast("list[float]", result.lr.tolist())

    def curve_step(self) -> int:
        return self.counters()[2]

    def consumed(self) -> int:
        return self.counters()[3]

    def check_reads(self, updates: int) -> None:
        assert self.counters()[0] == updates

    def save(self) -> Any:
        return through_file(self.step.state_dict())

    def load(self, state: Any, **options: Any) -> None:
        self.step.load_state_dict(state, **options)

    def set_peaks(self, peaks: Sequence[float]) -> None:
        self.peaks = list(peaks)
        self.step.set_peak(self.peaks)


def _in_either_form(count: int | None) -> int | torch.Tensor | None:
    """Return an even count as a number, and an odd one as a tensor."""
    if count is None or count % 2 == 0:
        return count
    return torch.tensor(count)
