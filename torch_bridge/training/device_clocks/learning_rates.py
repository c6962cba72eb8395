"""Learning rates of parameter groups, looked up on a device."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.several_curves import stack
from plateau_jax.runs.schedules import Schedules
from torch_bridge.tensor_table import multiplier, tensors

MAX_TABLE_VALUES = 2**24
"""The most learning rates that are kept on the device: 64 MiB."""


class LearningRates:
    """Looks up the learning rate of each parameter group on the device.

        lr = float32(float32(peak) · curve(step))

    A table has them for each step and group, if it fits into `MAX_TABLE_VALUES`. Otherwise the
    curves are evaluated during the update, which takes some 200 operators instead of two. Both give
    the same bits.

    Every tensor is allocated once and then written in place, because a captured graph refers to its
    memory.

    Args:
        curves: The curve of each parameter group.
        device: The device of the learning rates.
    """

    def __init__(self, curves: Sequence[Curve], device: torch.device) -> None:
        self._curves = curves
        self.current = torch.zeros(len(curves), dtype=torch.float32, device=device)
        """The learning rates of this update: float32 of shape (groups,)."""
        self.of_groups = self.current.unbind()
        """The same memory, as one scalar per group: the tensors that fused optimizers read as
        `lr`."""
        self._current_row = self.current.unsqueeze(0)
        self._peaks = torch.zeros_like(self.current)
        self._last_step = max(curve.total_steps for curve in curves)
        """The last step of the table; from there on all curves are constant."""
        self._on_host = Schedules(curves, [0.0] * len(curves))
        self._table: Tensor | None = None
        self._multipliers: np.ndarray | None = None
        """On the host, for each step and group: the table divided by the peaks."""
        self._curve_tables: Any = None
        """The tables of the curves, if the learning rates have no table."""
        shape = self._last_step + 1, len(curves)
        if math.prod(shape) > MAX_TABLE_VALUES:
            self._curve_tables = tensors(stack(curves), device)
        else:
            steps = np.arange(shape[0])
            multipliers = {curve: curve(steps) for curve in dict.fromkeys(curves)}
            self._multipliers = np.stack([multipliers[curve] for curve in curves], axis=1)
            self._table = torch.empty(shape, dtype=torch.float32, device=device)

    def set_peaks(self, peaks: Sequence[float]) -> None:
        """Use different peaks from the next update on."""
        self._on_host = Schedules(self._curves, peaks)
        rounded = np.array(peaks, np.float32)
        self._peaks.copy_(torch.from_numpy(rounded))
        if self._table is not None and self._multipliers is not None:
            self._table.copy_(torch.from_numpy(self._multipliers * rounded))

    def fill(self, step: Tensor) -> None:
        """Write the learning rates at a step, int64 of shape (1,), into `current`."""
        if self._table is not None:
            step = step.clamp(max=self._last_step)
            torch.index_select(self._table, 0, step, out=self._current_row)
        else:
            of_groups = multiplier(self._curve_tables, step.squeeze(0))
            torch.mul(of_groups, self._peaks, out=self.current)

    def at(self, step: int) -> list[float]:
        """Return the learning rate of each parameter group at a step, computed on the host."""
        return self._on_host.values_at(step)
