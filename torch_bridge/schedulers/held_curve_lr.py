"""A scheduler whose clock rules may hold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.core import HOST, Curve, Rule, checks, decide
from torch_bridge.schedulers.curve_lr import CurveLR
from torch_bridge.schedulers.curve_lr_state import Loaded
from torch_bridge.schedulers.hold_state import rules_for, starts
from torch_bridge.schedulers.param_groups import curves_of
from torch_bridge.schedulers.torch_warnings import warn_of_order


class HeldCurveLR(CurveLR):
    """What `lambda_lr` builds with `hold`: `step(metric)` moves the clock one on, unless a rule holds it.

    `last_epoch` counts the updates; `clock` is the step of the curve.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        curve: Curve | Sequence[Curve],
        hold: Rule | Sequence[Rule],
        last_epoch: int = -1,
        *,
        strict: bool = True,
    ) -> None:
        curves = curves_of(optimizer, curve)
        self._rules = rules_for(hold, curves)
        self._states = starts(self._rules)
        self._flat_starts = frozenset(curves[0].flat_starts)
        super().__init__(optimizer, curve, last_epoch, strict=strict)

    @property
    def clock(self) -> int:
        return self._clock

    # torch's ReduceLROnPlateau takes a metric in the same place.
    def step(self, metric: float | Tensor | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write the rates of the next update, after an update with this metric.

        Warns:
            CurveWarning: As in `CurveLR.step`.

        Raises:
            TypeError: `metric` is missing or no real scalar. Nothing was changed.
        """
        if metric is None and not self._step_count:  # the first step, which torch makes itself
            self._clock = self.last_epoch + 1
            super().step()
            return
        if self._clock >= self._end:
            self._past_end(self._clock + 1)
        self._watch.before_step()
        before: Any = self._clock, self._states, self.last_epoch, self._step_count
        try:
            with np.errstate(all="ignore"):
                self._states, held = decide(
                    HOST, self._rules, self._states, self._clock in self._flat_starts, _number(metric)
                )
            self._clock += not held
            if self._step_count == 1:
                warn_of_order(self.optimizer)
            self._move()
            self._step_count += 1
        except BaseException:  # a warning that is an error too
            self._clock, self._states, self.last_epoch, self._step_count = before
            raise

    def get_lr(self) -> list[float | Tensor]:
        """Each group's rate at `clock`."""
        return [peak * factor for peak, factor in zip(self.base_lrs, self._factors[self._clock], strict=True)]

    def _go_to(self, found: Loaded) -> None:
        self._clock, self._states = found.place.clock, found.states
        self._move(found.place.last_epoch)


def _number(metric: float | Tensor | None) -> np.float32:
    if metric is None:
        raise TypeError("with hold, step() needs the metric of the update: step(loss)")
    if isinstance(metric, Tensor):
        if metric.dim():
            raise TypeError(f"metric is a tensor of shape {tuple(metric.shape)}; it must be a real scalar")
        metric = metric.item()
    return checks.metric("metric", metric)
