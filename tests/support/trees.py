"""The comparison of trees of tensors, numbers and texts."""

import sys
from collections.abc import Sequence
from typing import Any, cast


def equal_trees(one: Any, other: Any) -> bool:
    """Return True if two trees are equal, tensors in values and dtypes (NaN equals NaN)."""
    if _is_tensor(one) and _is_tensor(other):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        both_nan = (one != one) & (other != other)
        return bool(((one == other) | both_nan).all())
    if isinstance(one, dict) and isinstance(other, dict):
        first = cast("dict[Any, Any]", one)
        second = cast("dict[Any, Any]", other)
        if first.keys() != second.keys():
            return False
        return all(equal_trees(first[key], second[key]) for key in first)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        items = cast("Sequence[Any]", one)
        other_items = cast("Sequence[Any]", other)
        return len(items) == len(other_items) and all(map(equal_trees, items, other_items))
    return bool(one == other)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # tests that need only NumPy don't import it
    return torch is not None and isinstance(value, torch.Tensor)
