"""The multipliers of curves as Python floats, computed many steps ahead."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_bridge.core import CHUNK, Curve, checks


class Multipliers(dict[int, tuple[float, ...]]):
    """Step → the multiplier of each curve. For a missing step, many steps from there on are computed.

    They are Python floats, since NumPy scalars would get into `param_groups`, and from there into
    checkpoints.
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        super().__init__()
        self.curves = curves

    def __missing__(self, step: int) -> tuple[float, ...]:
        steps = range(step, step + CHUNK)
        # Past the last step the value stays the same; from 2⁶³ on NumPy has no ranges.
        first = min(step, checks.MAX_STEP)
        array = np.arange(first, first + len(steps))
        multipliers = {curve: curve(array).tolist() for curve in set(self.curves)}
        self.clear()
        self.update(zip(steps, zip(*(multipliers[curve] for curve in self.curves), strict=True), strict=True))
        return self[step]

    def __reduce__(self) -> tuple[Any, ...]:
        return Multipliers, (self.curves,)
