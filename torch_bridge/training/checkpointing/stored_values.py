"""How tensors and NumPy values are stored: as they are, or as the bytes that `torch.save` writes.

A safetensors file holds plain tensors of most dtypes. Numbers and arrays of NumPy are stored as
such tensors. Everything else is saved as a tensor of bytes, which `torch.load(weights_only=True)`
reads without running code: structures, tensors of other dtypes, and tensors of subclasses, such as
torchao's 8-bit moments.
"""

import io
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from torch_bridge.training.checkpointing.file_format import STORED_DTYPES
from torch_bridge.training.distributed import processes
from torch_bridge.training.distributed.dtensors import local_shard, mesh_of
from torch_bridge.training.distributed.subclasses import map_inner, wraps_tensors

# The kinds of stored values.
TENSOR = "tensor"
ARRAY = "array"
"""A NumPy array, stored as a tensor."""
SCALAR = "scalar"
"""A NumPy scalar, stored as a tensor with no dimensions."""
BYTES = "saved"
"""A tensor, stored as bytes."""


@dataclass(frozen=True)
class StoredValue:
    """How a tensor or a NumPy value of a state is stored."""

    meta: Tensor
    """An empty tensor with its dtype, shape and stride."""
    name: str
    """Its name in the files."""
    kind: str
    placements: list[int | None] | None
    """The `placements_of` the saved DTensor; None for a plain tensor."""


def kind_of(tensor: Tensor) -> str:
    """Return the kind of a tensor."""
    local = local_shard(tensor)
    if local.dtype in STORED_DTYPES and not wraps_tensors(local):
        return TENSOR
    return BYTES


def decode(stored: StoredValue, tensor: Tensor) -> Any:
    """Return the value that a file contains as a tensor."""
    if stored.kind == ARRAY:
        return tensor.numpy()
    if stored.kind == SCALAR:
        return tensor.numpy()[()]
    if stored.kind == BYTES:
        return from_bytes(tensor)
    return tensor


def empty_meta(tensor: Tensor) -> Tensor:
    """Return an empty tensor of the same dtype, shape and stride."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


# Bytes.


def to_bytes(value: Any) -> Tensor:
    """Return what `torch.save` writes."""
    content = io.BytesIO()
    torch.save(value, content)
    return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


def from_bytes(content: Tensor) -> Any:
    """Return the value that `to_bytes` has saved, without running code."""
    # For empty bytes. Permanent: the end of a `safe_globals` block would also end it for a load in
    # another thread.
    torch.serialization.add_safe_globals([bytes])
    file: Any = io.BytesIO(content.numpy().data)
    return torch.load(file, map_location="cpu", weights_only=True, mmap=False)


# Values that a checkpoint can hold.


def check_tensor(path: str, tensor: Tensor) -> None:
    """Raise a TypeError if a checkpoint can't hold a tensor."""
    local = local_shard(tensor)
    if wraps_tensors(local):
        _check_read_back(path, local)
    else:
        is_plain = type(local) in (Tensor, nn.Parameter) and local.layout == torch.strided
        if not is_plain or local.is_meta or local.is_quantized:
            kind = f"a {local.layout} {type(local).__name__} of {local.dtype} on {local.device}"
            raise unsupported(path, kind)
    mesh = mesh_of(tensor)
    if mesh is None:
        return
    if kind_of(tensor) == BYTES:
        raise unsupported(path, f"a shard of {full_name(type(local))} and {local.dtype}")
    if mesh.size() != processes.world_size():
        raise unsupported(path, f"a DTensor over {mesh}, not over all ranks")
    if any(placement.is_partial() for placement in cast("Any", tensor).placements):
        raise unsupported(path, "a DTensor of partial sums")


def _check_read_back(path: str, tensor: Tensor) -> None:
    """Raise a TypeError if `torch.load(weights_only=True)` would not read a tensor back."""
    try:
        from_bytes(to_bytes(_without_memory(tensor)))
    except Exception as error:  # torch's message names the class that is not in its safe list
        what = f"of {full_name(type(tensor))}, which torch.load(weights_only=True) does not read"
        raise unsupported(path, what) from error


def _without_memory(tensor: Tensor) -> Tensor:
    if wraps_tensors(tensor):
        return map_inner(tensor, _without_memory)
    return empty_meta(tensor)


def to_tensor(path: str, value: Any) -> Tensor:
    """Return a copy of a NumPy array or scalar, as a tensor of a dtype that a file can hold."""
    value_type = cast("type[Any]", type(value))
    if value_type not in (np.ndarray, value.dtype.type):
        raise unsupported(path, f"of {full_name(value_type)}")
    with suppress(TypeError, ValueError):  # torch lacks the dtype
        tensor = torch.from_numpy(np.array(value))
        if tensor.dtype in STORED_DTYPES:
            return tensor
    raise unsupported(path, f"a NumPy value of {value.dtype}")


def full_name(value_type: type[Any]) -> str:
    return f"{value_type.__module__}.{value_type.__qualname__}"


def unsupported(path: str, what: str) -> TypeError:
    return TypeError(
        f"{path} is {what}, and a checkpoint can't hold it: keep it in a separate file, with "
        "torch.save"
    )
