"""Learning rates of parameter groups, looked up on a device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from plateau_jax.curves.curve import Curve
from plateau_jax.runs.schedules import Schedules

MAX_TABLE_VALUES = 2**24
"""The most learning rates that are kept on the device: 64 MiB."""


def check_table_size(curves: Sequence[Curve], unit: int | None) -> None:
    """Reject curves that are too long for the table.

    Args:
        curves: The curve of each parameter group.
        unit: The samples or tokens of a step; None if a step is an update.

    Raises:
        ValueError: The table would have more than `MAX_TABLE_VALUES` learning rates.
    """
    total_steps = max(curve.total_steps for curve in curves)
    most_steps = MAX_TABLE_VALUES // len(curves) - 1
    if total_steps <= most_steps:
        return
    larger_unit = ""
    if unit is not None:
        least = -(-total_steps * unit // most_steps)
        larger_unit = f"a unit of at least {least}, with a curve in steps of that unit, or "
    raise ValueError(
        f"a TrainStep takes curves of at most {most_steps} steps for {len(curves)} parameter "
        f"groups; this one has {total_steps}: use {larger_unit}lambda_lr"
    )


class LearningRates:
    """Looks up the learning rate of each parameter group on the device.

        lr = float32(float32(peak) · curve(step))

    A table has them for each step and group. Every tensor is allocated once and then written in
    place, because a captured graph refers to its memory.

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
        last_step = max(curve.total_steps for curve in curves)
        self._last_step = torch.tensor([last_step], device=device)
        """The last step of the table; from there on all curves are constant."""
        self._step_in_table = torch.zeros_like(self._last_step)
        self._on_host = Schedules(curves, [0.0] * len(curves))
        steps = np.arange(last_step + 1)
        multipliers = {curve: curve(steps) for curve in dict.fromkeys(curves)}
        self._multipliers = np.stack([multipliers[curve] for curve in curves], axis=1)
        """On the host, for each step and group: the table divided by the peaks."""
        self._table = torch.empty(self._multipliers.shape, dtype=torch.float32, device=device)

    def set_peaks(self, peaks: Sequence[float]) -> None:
        """Use different peaks from the next update on."""
        self._on_host = Schedules(self._curves, peaks)
        rounded = np.array(peaks, np.float32)
        self._table.copy_(torch.from_numpy(self._multipliers * rounded))

    def fill(self, step: Tensor) -> None:
        """Write the learning rates at a step, int64 of shape (1,), into `current`."""
        torch.minimum(step, self._last_step, out=self._step_in_table)
        torch.index_select(self._table, 0, self._step_in_table, out=self._current_row)

    def at(self, step: int) -> list[float]:
        """Return the learning rate of each parameter group at a step, computed on the host."""
        return self._on_host.values_at(step)
