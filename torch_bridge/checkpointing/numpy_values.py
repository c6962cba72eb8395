r"""NumPy arrays and scalars as tensors of bytes, in NumPy's file format.

Not as pickles: a crafted pickle of an array could read any memory address. A scalar is stored as an
array with no dimensions, from which NumPy returns the same scalar, with two exceptions:

    np.str_("a\0")     stored as "a\0."    NumPy drops NULs at the end
    np.longlong(3)     stored as int64     NumPy has two types for 64-bit integers
"""

import io
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

KIND_CODES = "biufcmMSU"
"""NumPy's codes for booleans, numbers, times, bytes and text: what a checkpoint can contain."""

ARRAY = "array"
_SCALAR = "scalar"
_MARKED = "marked scalar"
_LONG_LONG: dict[type[Any], str] = {
    np.longlong: "signed long long",
    np.ulonglong: "unsigned long long",
}


def is_of_numpy(value: Any) -> bool:
    return isinstance(value, np.generic | np.ndarray)


def is_plain(value: Any) -> bool:
    """Return True for an array or a scalar of NumPy's own class, not of a subclass."""
    value_type = cast("type[Any]", type(value))
    return value_type is np.ndarray or value_type is value.dtype.type


def to_bytes(value: Any) -> tuple[str, Tensor]:
    """Return how an array or a scalar is stored, and its bytes."""
    kind = ARRAY
    stored = value
    if isinstance(value, np.str_):
        kind = _MARKED
        stored = np.str_(value + ".")  # not str(value), which drops NULs too
    elif isinstance(value, np.bytes_):
        kind = _MARKED
        stored = np.bytes_(value + b".")
    elif type(value) is not np.ndarray:
        kind = _SCALAR
        if np.dtype(value.dtype.str).type is not type(value):
            kind = _LONG_LONG[type(value)]
    content = io.BytesIO()
    np.save(content, stored, allow_pickle=False)
    return kind, torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


def from_bytes(kind: str, content: Tensor) -> Any:
    """Return the array or the scalar of `to_bytes`."""
    array: Any = np.lib.format.read_array(io.BytesIO(content.numpy().data), allow_pickle=False)
    if kind == ARRAY:
        return array
    scalar = array[()]
    if kind == _MARKED:
        return type(scalar)(scalar[:-1])
    for long_long, name in _LONG_LONG.items():
        if kind == name:
            return long_long(scalar)
    return scalar
