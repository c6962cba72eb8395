"""The schedules of parameter groups, which compute values for many steps at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from plateau_jax.table.evaluation import CHUNK

_NEAR = 50
"""Evaluating a single step takes about as long as this many steps at once."""


class Schedules:
    """The curve and the base of each group, and the values at the steps ahead.

        value = float32(float32(base) · curve(step))

    Values are computed for `CHUNK` steps at once. A step far ahead of these is computed alone: a
    clock that counts samples leaps, and would use few of the steps in between.
    """

    def __init__(self, curves: Sequence[Curve], bases: Sequence[float]) -> None:
        self.curves = list(curves)
        self.bases = list(bases)
        self.first = 0
        self.rows: list[list[float]] = []
        """The value of each group, for step `first` and the steps after it."""

    def values_at(self, step: int) -> list[float]:
        """Return each group's value at a step, a float32 number as a Python float."""
        place = step - self.first
        if not 0 <= place < len(self.rows):
            self._compute(step)
            place = 0
        return self.rows[place]

    def _compute(self, first: int) -> None:
        count = 1
        if first <= self.first + len(self.rows) + _NEAR:
            count = CHUNK
        # Past MAX_STEP every curve is constant, and NumPy has no ranges from 2⁶³ on.
        steps = min(first, checks.MAX_STEP) + np.arange(count)
        # By identity, because the hash of a curve of many stages takes longer.
        distinct = {id(curve): curve for curve in self.curves}
        multipliers = {key: curve(steps) for key, curve in distinct.items()}
        values = np.empty((len(steps), len(self.bases)), np.float32)
        for index, (curve, base) in enumerate(zip(self.curves, self.bases, strict=True)):
            values[:, index] = np.float32(base) * multipliers[id(curve)]
        # Python floats: NumPy scalars would get from `param_groups` into checkpoints.
        self.rows = values.tolist()
        self.first = first

    def __reduce__(self) -> tuple[Any, ...]:
        return Schedules, (self.curves, self.bases)  # without the values
