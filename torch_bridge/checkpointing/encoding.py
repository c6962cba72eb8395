"""A state as JSON and tensors, from which it comes back as it was.

A value that `json` would change, a tuple for instance, is a dictionary with a tag that says what it is. A
tensor is a dictionary with a key: the tensors themselves are kept apart, by key.
"""

import json
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import local_part, mesh_of, placements_of

_TAG = "$"
_SAFE = 2**63  # Python reads longer decimals, but none of more than some thousand digits
_DICTIONARIES: dict[str, Any] = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
_SEQUENCES: dict[str, Any] = {kind.__name__: kind for kind in (tuple, torch.Size, set, frozenset)}
_ARRAYS = "?biufcSUMm"  # the kinds of NumPy's dtypes whose values are their bytes

MakeTensor = Callable[[str, torch.dtype, list[int], list[int] | None, list[int | None] | None], Tensor]
"""Makes a tensor from its key, its dtype and its shape; then come its strides, where it is not contiguous,
and what `placements_of` told of it, where it was a DTensor."""


def encode(
    name: str, state: Any, kept: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> tuple[Any, dict[str, Tensor]]:
    """The state as JSON, and its tensors by key.

    A state may hold: None, booleans, integers, floats (to the bit), complex numbers, strings, bytes; lists,
    tuples, sets, and dictionaries with any of these as keys; dtypes, devices, sizes; NumPy's arrays and
    scalars; dense tensors, and DTensors over all ranks.

    Args:
        name: What keys and errors begin with.
        state: The state.
        kept: What is kept of a tensor, a copy for instance.

    Raises:
        TypeError: The state holds something else; the message says where.
    """
    tensors: dict[str, Tensor] = {}
    try:
        return _encode(name, state, kept, tensors), tensors
    except RecursionError:
        raise TypeError(f"{name} is nested too deep to be saved") from None


def decode(structure: Any, make: MakeTensor) -> Any:
    """The state that `encode` made this JSON of, with tensors from `make`.

    The tensors may get their values afterwards: NumPy's arrays share the memory of theirs.

    Raises:
        ValueError: `encode` does not make such JSON.
    """
    if isinstance(structure, list):
        return [decode(item, make) for item in cast("list[Any]", structure)]
    if not isinstance(structure, dict):
        return structure
    found = cast("dict[str, Any]", structure)
    if _TAG not in found:
        return {key: decode(value, make) for key, value in found.items()}
    try:
        return _decode_tagged(found, make)
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{found.get(_TAG)!r} can't be read: {type(error).__name__}: {error}") from error


def dumps(structure: Any) -> str:
    """The text of what `encode` returned, without spaces."""
    return json.dumps(structure, allow_nan=False, separators=(",", ":"))


def _encode(path: str, value: Any, kept: Callable[[Tensor], Tensor], tensors: dict[str, Tensor]) -> Any:
    kind = cast("type[Any]", type(value))
    if value is None or kind is bool or kind is str:
        return value
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "bits": struct.pack(">d", value).hex()}
    if kind is int:
        return value if -_SAFE < value < _SAFE else {_TAG: "int", "hex": hex(value)}
    if kind is list:
        return [_encode(f"{path}[{index}]", item, kept, tensors) for index, item in enumerate(value)]
    if kind in _DICTIONARIES.values():
        return _encode_dictionary(path, value, kept, tensors)
    if kind in _SEQUENCES.values():
        items = [_encode(f"{path}[{index}]", item, kept, tensors) for index, item in enumerate(value)]
        # The order of a set differs from process to process.
        return {_TAG: kind.__name__, "items": items if isinstance(value, tuple) else sorted(items, key=dumps)}
    if isinstance(value, Tensor):
        return _encode_tensor(path, value, kept, tensors)
    if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
        return _encode_array(path, value, tensors)
    if kind is complex:
        return {_TAG: "complex", "bits": struct.pack(">dd", value.real, value.imag).hex()}
    if kind is bytes:
        return {_TAG: "bytes", "hex": value.hex()}
    if kind in (torch.dtype, torch.device):
        return {_TAG: kind.__name__, "name": str(value).removeprefix("torch.")}
    raise TypeError(f"{path} is of {kind.__module__}.{kind.__qualname__}, which a checkpoint does not hold")


def _encode_dictionary(
    path: str, value: Mapping[Any, Any], kept: Callable[[Tensor], Tensor], tensors: dict[str, Tensor]
) -> Any:
    kind = type(value)
    values = [_encode(f"{path}[{key!r}]", item, kept, tensors) for key, item in value.items()]
    if kind is dict and _TAG not in value and all(type(key) is str for key in value):
        return dict(zip(value, values, strict=True))
    in_keys: dict[str, Tensor] = {}
    keys = [_encode(f"the key {key!r} of {path}", key, kept, in_keys) for key in value]
    if in_keys:
        raise TypeError(f"{next(iter(in_keys))} is a tensor, and a checkpoint does not hold such keys")
    encoded: dict[str, Any] = {_TAG: kind.__name__, "items": list(map(list, zip(keys, values, strict=True)))}
    # Here a module's state dict has the versions of its submodules.
    if (versions := getattr(value, "_metadata", None)) is not None:
        encoded["_metadata"] = _encode(f"{path}._metadata", versions, kept, tensors)
    return encoded


def _encode_tensor(
    path: str, tensor: Tensor, kept: Callable[[Tensor], Tensor], tensors: dict[str, Tensor]
) -> Any:
    local = local_part(tensor)
    if mesh := mesh_of(tensor):
        sharded = cast("Any", tensor)
        if mesh.size() != processes.count():
            raise TypeError(f"{path} is a DTensor over {mesh}, not over all ranks")
        if any(placement.is_partial() for placement in sharded.placements):
            raise TypeError(f"{path} is a DTensor of partial sums, which a checkpoint does not hold")
    if (
        type(local) not in (Tensor, nn.Parameter)
        or local.layout != torch.strided
        or local.is_quantized
        or local.is_meta
    ):
        what = "a tensor without memory" if local.is_meta else f"a {local.layout} {type(local).__name__}"
        raise TypeError(f"{path} is {what}, which a checkpoint does not hold")
    held = _add(path, kept(tensor), tensors)
    encoded = _reference(path, str(held.dtype).removeprefix("torch."), list(held.shape))
    if not mesh and not held.is_contiguous():
        encoded["stride"] = list(held.stride())
    if (placements := placements_of(tensor)) is not None:
        encoded["placements"] = placements
    return encoded


def _encode_array(path: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    array: np.ndarray[Any, Any] = np.asarray(value)
    if array.dtype.kind not in _ARRAYS:
        raise TypeError(f"{path} is a NumPy array of {array.dtype}, which a checkpoint does not hold")
    content = array.tobytes()
    if isinstance(value, np.generic):
        return {_TAG: "scalar", "dtype": array.dtype.str, "hex": content.hex()}
    # torch refuses an empty buffer.
    values = torch.frombuffer(bytearray(content or b"-"), dtype=torch.uint8)
    _add(path, values[: len(content)], tensors)
    return {
        _TAG: "array",
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "content": _reference(path, "uint8", [len(content)]),
    }


def _add(path: str, tensor: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    if path in tensors:  # a dictionary may have several keys that are NaN
        raise TypeError(f"{path} is there twice, which a checkpoint does not hold")
    tensors[path] = tensor
    return tensor


def _reference(key: str, dtype: str, shape: list[int]) -> dict[str, Any]:
    return {_TAG: "tensor", "key": key, "dtype": dtype, "shape": shape}


def _decode_tagged(found: dict[str, Any], make: MakeTensor) -> Any:
    tag = found[_TAG]
    if tag == "tensor":
        shape, placements = found["shape"], found.get("placements")
        if placements is not None and not all(
            each is None or (type(each) is int and 0 <= each < len(shape)) for each in placements
        ):
            raise ValueError(f"{found['key']} has the placements {placements}")
        return make(found["key"], _dtype(found["dtype"]), shape, found.get("stride"), placements)
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](decode(found["items"], make))
    if tag in _DICTIONARIES:
        items = {decode(key, make): decode(value, make) for key, value in found["items"]}
        decoded = items if tag == "dict" else _DICTIONARIES[tag](items)
        if "_metadata" in found:
            cast("Any", decoded)._metadata = decode(found["_metadata"], make)
        return decoded
    if tag == "array":
        return decode(found["content"], make).numpy().view(found["dtype"]).reshape(found["shape"])
    if tag == "scalar":
        return np.frombuffer(bytes.fromhex(found["hex"]), found["dtype"])[0]
    if tag == "float":
        return struct.unpack(">d", bytes.fromhex(found["bits"]))[0]
    if tag == "complex":
        return complex(*struct.unpack(">dd", bytes.fromhex(found["bits"])))
    if tag == "int":
        return int(found["hex"], 16)
    if tag == "bytes":
        return bytes.fromhex(found["hex"])
    if tag == "device":
        return torch.device(found["name"])
    if tag == "dtype":
        return _dtype(found["name"])
    raise ValueError(f"{tag!r} is no kind of value that a checkpoint holds")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch")
    return dtype
