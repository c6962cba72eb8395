"""Options of an optimizer's groups, read and written by key, and their expected values under a curve."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from support.schedulers.runs import optimizer_with

from plateau_jax import Curve

Key = str | tuple[str, int]


def value(group: dict[str, Any], key: Key) -> Any:
    return group[key] if isinstance(key, str) else group[key[0]][key[1]]


def put(group: dict[str, Any], key: Key, value: Any) -> None:
    if isinstance(key, str):
        group[key] = value
    else:
        items = list(group[key[0]])
        items[key[1]] = value
        group[key[0]] = tuple(items)


def optimizer_of(kind: Any, key: Key, values: Sequence[Any]) -> torch.optim.Optimizer:
    optimizer = optimizer_with([0.1] * len(values), kind)
    for group, value in zip(optimizer.param_groups, values, strict=True):
        put(group, key, value)
    return optimizer


def values_of(optimizer: torch.optim.Optimizer, key: Key) -> list[float]:
    return [value(group, key) for group in optimizer.param_groups]


def expected_values(curves: Sequence[Curve], bases: Sequence[float], step: int) -> list[float]:
    return [float(np.float32(base)) * curve(step) for base, curve in zip(bases, curves, strict=True)]
