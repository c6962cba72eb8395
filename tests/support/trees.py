"""The comparison of trees of tensors, numbers and texts."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast


def assert_equal_trees(actual: Any, expected: Any, name: str = "tree") -> None:
    """Check that two trees are equal; the error names them, as in `tree['lr'][0]: 0.1 != 0.2`."""
    message = difference(actual, expected, name)
    if message is not None:
        raise AssertionError(message)


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return the path of the first difference and both values, or None if two trees are equal.

    Tensors are equal in values and dtypes, and NaN equals NaN there. A list may equal a tuple.
    """
    if _is_tensor(one) and _is_tensor(other):
        return _difference_of_tensors(one, other, path)
    if isinstance(one, dict) and isinstance(other, dict):
        first = cast("dict[Any, Any]", one)
        second = cast("dict[Any, Any]", other)
        if first.keys() != second.keys():
            return f"{path}: keys {list(first)} != {list(second)}"
        return _first_difference((first[key], second[key], f"{path}[{key!r}]") for key in first)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        items = cast("Sequence[Any]", one)
        other_items = cast("Sequence[Any]", other)
        if len(items) != len(other_items):
            return f"{path}: {len(items)} items != {len(other_items)}: {one!r} != {other!r}"
        pairs = enumerate(zip(items, other_items, strict=True))
        return _first_difference((*pair, f"{path}[{index}]") for index, pair in pairs)
    if one == other:
        return None
    return f"{path}: {one!r} != {other!r}"


def _first_difference(branches: Iterable[tuple[Any, Any, str]]) -> str | None:
    for one, other, path in branches:
        message = difference(one, other, path)
        if message is not None:
            return message
    return None


def _difference_of_tensors(one: Any, other: Any, path: str) -> str | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{path}: {one.dtype} {tuple(one.shape)} != {other.dtype} {tuple(other.shape)}"
    both_nan = ~(one == one) & ~(other == other)  # torch 2.9 does not support `!=` on DTensors
    are_equal = (one == other) | both_nan
    if are_equal.all():
        return None
    index = tuple((~are_equal).nonzero()[0].tolist())
    return f"{path}{list(index) or ''}: {one[index].item()} != {other[index].item()}"


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # tests that need only NumPy don't import it
    return torch is not None and isinstance(value, torch.Tensor)
