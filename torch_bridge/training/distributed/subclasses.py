"""Tensor subclasses that wrap inner tensors, such as torchao's 8-bit moments.

A class that defines torch's `__tensor_flatten__` and `__tensor_unflatten__` can be taken apart into
its inner tensors and a context, and rebuilt from them. Such a tensor has no memory, and may lack
any operator, or implement it with another meaning: torchao's `detach` changes the dtype, and its
`to("cpu", copy=True)` copies nothing. So it is copied through its inner tensors.
"""

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn


def wraps_tensors(tensor: Tensor) -> bool:
    """Return True for a tensor of a class that wraps inner tensors."""
    value_type = type(tensor)
    if value_type is Tensor or value_type is nn.Parameter:
        return False
    # Torch's nested tensors copy themselves, and so do the results of its asynchronous collectives,
    # which must wait first.
    if tensor.is_nested or hasattr(value_type, "trigger_wait"):
        return False
    names = ("__tensor_flatten__", "__tensor_unflatten__")
    return all(hasattr(value_type, name) for name in names)


def map_inner(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a tensor of the same class, with changed inner tensors, and without gradients."""
    names, context = cast("Any", tensor).__tensor_flatten__()
    inner: dict[str, Any] = {}
    for name in names:
        value = getattr(tensor, name)
        if isinstance(value, Tensor):  # some classes also list other objects
            value = change(value)
        inner[name] = value
    value_type = cast("Any", type(tensor))
    changed: Tensor = value_type.__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())
    return changed.requires_grad_(False)
