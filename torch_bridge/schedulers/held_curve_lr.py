"""A scheduler whose clock may be held by rules."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.curve_api import HOST, Curve, Rule, checks, decide
from torch_bridge.schedulers.curve_lr import CurveLR
from torch_bridge.schedulers.hold_state import States, initial_states, rules_for
from torch_bridge.schedulers.param_groups import curves_of
from torch_bridge.schedulers.unit_clocks import Position


class HeldCurveLR(CurveLR):
    """The scheduler that `lambda_lr` builds with `hold`: rules may hold its clock while updates continue.

        lr = float32(float32(peak) · curve(clock))

    Args:
        optimizer, curve, hold, last_epoch, strict: As in `lambda_lr`.

    Raises:
        TypeError, ValueError: As `lambda_lr`.

    >>> import torch
    >>> from plateau_jax import HoldBelow, PlateauCurve
    >>> from torch_bridge import HeldCurveLR
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    >>> scheduler = HeldCurveLR(optimizer, PlateauCurve(100), HoldBelow(0.3, 1))
    >>> for loss in (0.4, 0.2, 0.1):
    ...     optimizer.step()
    ...     scheduler.step(loss)
    >>> scheduler.last_epoch, scheduler.clock
    (3, 2)
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
        self._states = initial_states(self._rules)
        self._flat_starts = frozenset(curves[0].flat_starts)
        super().__init__(optimizer, curve, last_epoch, strict=strict)

    @property
    def clock(self) -> int:
        """The current step of the curve: `last_epoch` minus the updates for which a rule has held it."""
        return self._clock

    # torch's ReduceLROnPlateau takes a metric in the same place.
    def step(self, metric: float | Tensor | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write the learning rates of the next update, after an update with this metric.

        The clock advances by one step of the curve, unless a rule holds it.

        Args:
            metric: The loss of the update, or another metric: a float, or a scalar tensor of a
                floating-point dtype, the same on all ranks.

        Raises:
            TypeError: `metric` is missing or not a real scalar. Nothing was changed.
        """
        if metric is None and not self._step_count:  # LambdaLR's constructor calls step() once
            self._clock = self.last_epoch + 1
            super().step()
            return
        with np.errstate(all="ignore"):
            is_flat_start = self._clock in self._flat_starts
            states, held = decide(HOST, self._rules, self._states, is_flat_start, _metric_number(metric))
        clock = self._clock + (not held)
        self._admit_new_groups()  # before anything changes, since it may reject them
        self._clock, self._states = clock, states
        self._move_to(self.last_epoch + 1)
        self._step_count += 1

    def _resume_at(self, position: Position, states: States) -> None:
        self._clock, self._states = position.clock, states
        self._move_to(position.last_epoch)


def _metric_number(metric: float | Tensor | None) -> np.float32:
    if metric is None:
        raise TypeError("with hold, step() needs the metric of the update: step(loss)")
    if isinstance(metric, Tensor):
        if metric.dim():
            raise TypeError(f"metric is a tensor of shape {tuple(metric.shape)}; it must be a real scalar")
        metric = metric.item()
    return checks.metric("metric", metric)
