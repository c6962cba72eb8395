"""The multipliers of curves as Python floats, computed many steps ahead."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from torch_bridge.core import CHUNK, Curve, checks

_Value = TypeVar("_Value")


def of_each(curves: Sequence[Curve], value_of: Callable[[Curve], _Value]) -> list[_Value]:
    """`value_of(curve)` for each group's curve, computed once where groups share one curve."""
    # By identity, since a curve of a derived class may have no hash.
    values = {id(curve): value_of(curve) for curve in {id(curve): curve for curve in curves}.values()}
    return [values[id(curve)] for curve in curves]


class Multipliers(dict[int, tuple[float, ...]]):
    """For each step, the multiplier of each curve. Looking up a step that is missing computes `CHUNK` steps.

        Multipliers(curves)[step] == tuple(curve(step) for curve in curves)

    The computed steps are the one that was looked up and those after it; earlier ones are dropped. The values
    are Python floats: NumPy's would get into `param_groups`, and from there into checkpoints.
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        super().__init__()
        self.curves = curves

    def __missing__(self, step: int) -> tuple[float, ...]:
        steps = range(step, step + CHUNK)
        # Past the last step the value stays the same; from 2⁶³ on NumPy has no ranges.
        first = min(step, checks.MAX_STEP)
        array = np.arange(first, first + len(steps))
        columns = of_each(self.curves, lambda curve: curve(array).tolist())
        self.clear()
        self.update(zip(steps, zip(*columns, strict=True), strict=True))
        return self[step]

    def __reduce__(self) -> tuple[Any, ...]:
        return Multipliers, (self.curves,)
