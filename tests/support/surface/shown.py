"""Values as text that is the same under all versions of Python, NumPy, JAX and torch."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import torch

import plateau_jax
import torch_bridge
from plateau_jax.curves.staged_curve import Stage
from plateau_jax.in_jax.transformation import ScaleByCurveState
from plateau_jax.table.segments import Segment
from plateau_jax.tools.forecasts.loss_forecast import LossComparison, LossDifference, LossForecast
from plateau_jax.tools.logged_lrs.compare_log import LogComparison
from plateau_jax.tools.logged_lrs.faults import Fault
from plateau_jax.tools.theory.bounds import Comparison
from torch_bridge.training.train_step.result import StepResult

PACKAGES: list[Any] = [plateau_jax, torch_bridge]

RETURNED = [
    Comparison,
    Fault,
    LogComparison,
    LossComparison,
    LossDifference,
    LossForecast,
    ScaleByCurveState,
    Segment,
    Stage,
    StepResult,
]
"""Classes that public functions return, and that have no public name."""

_NAMES_OF_CLASSES = {cls.__name__ for cls in RETURNED}
for _package in PACKAGES:
    _NAMES_OF_CLASSES.update(_package.__all__)


def is_of_this_project(value: Any) -> bool:
    """Return True if a class or function is defined in one of the two packages."""
    package = value.__module__.partition(".")[0]
    return package in ("plateau_jax", "torch_bridge")


def type_of(value: Any) -> str:
    """Return the name of a type, with the dtype of an array and the types of a list's items."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} tensor"
    if isinstance(value, jax.Array):
        return f"{value.dtype} jax.Array"
    if isinstance(value, np.ndarray):
        return f"{cast('Any', value).dtype} array"
    if isinstance(value, np.generic):
        return f"np.{value.dtype.name}"
    if isinstance(value, Path):  # of a class for each system
        return "Path"
    name = public_class(value.__class__)
    if name == "dict" and kind_of(value):
        return f"dict of {kind_of(value)}"
    if hasattr(value, "_fields") and name == "tuple":
        return "NamedTuple"
    if name in ("list", "tuple") and value:
        return f"{name}[{types_of(value)}]"
    return name


def kind_of(dictionary: Mapping[Any, Any]) -> str:
    """Return the kind of a saved state, a record or a curve; empty if the dictionary has none."""
    return dictionary.get("kind", "")


def types_of(values: Iterable[Any]) -> str:
    return " | ".join(sorted({type_of(value) for value in values}))


def public_class(cls: type) -> str:
    """Return the name of the class, or of its first base that has no private name."""
    public = "object"
    for base in reversed(cls.__mro__):
        if not is_of_this_project(base) or base.__name__ in _NAMES_OF_CLASSES:
            public = base.__name__
    return public
