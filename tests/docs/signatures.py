"""The signatures of the public names and of their methods."""

import inspect
from collections.abc import Iterator
from typing import Any

import plateau_jax
import torch_bridge
from plateau_jax import Curve, CurveWarning

WITHOUT_CONSTRUCTOR = (Curve, CurveWarning)
"""Classes that no program builds."""


def public_signatures() -> set[str]:
    """Return texts such as `plateau_jax.DataClock(unit, count=None)`."""
    signatures: set[str] = set()
    for package in (plateau_jax, torch_bridge):
        for name in package.__all__:
            value: Any = getattr(package, name)
            if not value.__module__.startswith(f"{package.__name__}."):
                continue  # a name of `plateau_jax` in `torch_bridge`
            full_name = f"{package.__name__}.{name}"
            if value not in WITHOUT_CONSTRUCTOR:
                signatures.add(full_name + _parameters(value))
            if isinstance(value, type):
                for method in _methods(value):
                    signatures.add(f"{full_name}.{method}{_parameters(getattr(value, method))}")
    return signatures


def _methods(cls: type) -> Iterator[str]:
    """Yield the public methods of a class, without those of torch, and of `Curve` in a subclass."""
    for base in cls.__mro__:
        is_in_this_project = base.__module__.startswith(("plateau_jax.", "torch_bridge."))
        if is_in_this_project and (base is not Curve or cls is Curve):
            for name in vars(base):
                is_public = not name.startswith("_") or name == "__call__"
                if is_public and _is_method(getattr(cls, name)):
                    yield name


def _is_method(value: object) -> bool:
    return inspect.isfunction(value) or inspect.ismethod(value)


def _parameters(function: Any) -> str:
    """Return the names, kinds and defaults of the parameters."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self" and not parameter.name.startswith("_")
    ]
    return str(inspect.Signature(parameters))
