"""The repr of a curve, a clock or a batch plan is an expression that builds it."""

from typing import Any

from plateau_jax import (
    BatchPlan,
    DataClock,
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
)

_CLASSES = [BatchPlan, DataClock, HoldBelow, HoldUntilFlat, PlateauCurve, StagedCurve]
_NAMES: dict[str, Any] = {cls.__name__: cls for cls in _CLASSES}


def from_repr(value: Any) -> Any:
    """Evaluate the repr, as users may: it needs no other names than those of the classes."""
    return eval(repr(value), _NAMES)
