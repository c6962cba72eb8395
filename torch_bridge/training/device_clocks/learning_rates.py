"""Learning rates of parameter groups, looked up on a device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.several_curves import stack
from plateau_jax.runs.values_ahead import ValuesAhead
from plateau_jax.table.evaluation import Table
from torch_bridge.training.device_clocks.table import multiplier, tensors

MAX_TABLE_VALUES = 2**24
"""The most multipliers and learning rates that are kept on the device: 64 MiB."""


class LearningRates:
    """Looks up the learning rate of each parameter group on the device.

        lr = float32(float32(peak) · curve(step))

    The fastest source that fits into `MAX_TABLE_VALUES` is used. All give the same bits:

        source                                                  operators in an update
        a table of learning rates, for each step and group                           1
        a table of multipliers, for each step and distinct curve                     4
        the segments of the curves                                                 200

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
        self.last_step = max(curve.total_steps for curve in curves)
        """The last step of the tables; from there on all curves are constant."""

        distinct = list(dict.fromkeys(curves))
        columns = [distinct.index(curve) for curve in curves]
        self._columns = torch.tensor(columns, device=device)
        """The column of each group's curve in the table of multipliers."""
        num_steps = self.last_step + 1
        num_multipliers = num_steps * len(distinct)
        num_lrs = num_steps * len(curves)
        self._stacked_table: Table | None = None
        self._multipliers: Tensor | None = None
        self._table: Tensor | None = None
        if num_multipliers > MAX_TABLE_VALUES:
            self._stacked_table = tensors(stack(curves), device)
            return
        steps = np.arange(num_steps)
        multipliers = np.stack([curve(steps) for curve in distinct], axis=1)
        self._multipliers = torch.from_numpy(multipliers).to(device)
        if num_multipliers + num_lrs <= MAX_TABLE_VALUES:
            shape = (num_steps, len(curves))
            self._table = torch.empty(shape, dtype=torch.float32, device=device)

    def set_peaks(self, peaks: Sequence[float]) -> None:
        """Use different peaks from the next update on."""
        self._on_host = ValuesAhead(self._curves, peaks)
        for device_peak, peak in zip(self._peaks.unbind(), peaks, strict=True):
            device_peak.fill_(peak)  # unlike a copy from pageable memory, fill_ waits for nothing
        if self._table is not None and self._multipliers is not None:
            of_groups = self._multipliers.index_select(1, self._columns)
            torch.mul(of_groups, self._peaks, out=self._table)

    def fill(self, step: Tensor) -> None:
        """Write the learning rates at a step into `current`.

        Args:
            step: At most `last_step`: int64 of shape (1,).
        """
        if self._table is not None:
            torch.index_select(self._table, 0, step, out=self._current_row)
            return
        if self._multipliers is not None:
            of_curves = self._multipliers.index_select(0, step).view(-1)
            of_groups = of_curves.index_select(0, self._columns)
        else:
            assert self._stacked_table is not None
            of_groups = multiplier(self._stacked_table, step.squeeze(0))
        torch.mul(of_groups, self._peaks, out=self.current)

    def at(self, step: int) -> list[float]:
        """Return the learning rate of each parameter group at a step, computed on the host."""
        return self._on_host.at(step)
