"""The public names and their methods."""

import inspect
from collections.abc import Iterator
from typing import Any

import plateau_jax
import torch_bridge
from plateau_jax import Curve

PUBLIC_NAMES: dict[str, Any] = {}
"""The values by their full names. A name of `plateau_jax` in `torch_bridge` is left out."""

for _package in (plateau_jax, torch_bridge):
    for _name in _package.__all__:
        _value: Any = getattr(_package, _name)
        if _value.__module__.startswith(f"{_package.__name__}."):
            PUBLIC_NAMES[f"{_package.__name__}.{_name}"] = _value

PREFIXES = ("plateau_jax.", "torch_bridge.")


def methods_of(value: Any) -> Iterator[str]:
    """Yield the public methods of a class, except torch's and what a curve has from `Curve`."""
    if not inspect.isclass(value):
        return
    of_all_curves = Curve.__mro__ if issubclass(value, Curve) and value is not Curve else ()
    for base in value.__mro__:
        if base in of_all_curves or not base.__module__.startswith(PREFIXES):
            continue
        for name in vars(base):
            is_public = not name.startswith("_") or name == "__call__"
            if is_public and _is_method(getattr(value, name)):
                yield name


def _is_method(value: object) -> bool:
    return inspect.isfunction(value) or inspect.ismethod(value)
