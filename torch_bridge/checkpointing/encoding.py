"""Turn a state into JSON and tensors, and back.

A value that JSON would change, such as a tuple, becomes a dictionary with a tag for its type. A tensor
becomes a reference: a dictionary with the key under which the tensor is stored.
"""

import json
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import local_shard, mesh_of, placements_of

_TAG = "$"
_LARGEST = 2**63  # Python refuses to parse decimals of several thousand digits
_DICTIONARIES: dict[str, Any] = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
_SEQUENCES: dict[str, Any] = {kind.__name__: kind for kind in (tuple, torch.Size, set, frozenset)}
_ARRAYS = "?biufcSUMm"  # the kinds of NumPy's dtypes whose values are their bytes
_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
)
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _DTYPES}
"""The dtypes that a checkpoint holds, by name."""


class Reference(NamedTuple):
    """A tensor of an encoded state."""

    key: str
    dtype: torch.dtype
    shape: list[int]
    stride: list[int] | None
    """None if the tensor is contiguous."""
    placements: list[int | None] | None
    """`placements_of` the saved DTensor; None for a plain tensor."""


MakeTensor = Callable[[str, Reference], Tensor]
"""Makes the tensor that stands at a path of the state."""


def encode(
    name: str, state: Any, kept: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> tuple[Any, dict[str, Tensor]]:
    """Return the state as JSON, and its tensors by key.

    A tensor's key is its path, such as `step.model.0.weight`. Plain tensors that `kept` returns the same
    tensor for share one key.

    A state may hold: None, booleans, integers, floats (to the bit), complex numbers, strings, bytes; lists,
    tuples, sets, and dictionaries with any of these as keys; dtypes, devices, sizes; NumPy's arrays and
    scalars; dense tensors, and DTensors over all ranks.

    Args:
        name: The beginning of all paths.
        state: The state.
        kept: Returns the tensor to keep of a tensor, a copy for instance.

    Raises:
        TypeError: The state holds something else; the message has its path.
    """
    encoder = _Encoder(kept)
    try:
        return encoder.encode(name, state), encoder.tensors
    except RecursionError:
        raise TypeError(f"{name} is nested too deep to be saved") from None


def decode(name: str, structure: Any, make: MakeTensor) -> Any:
    """Return the state that `encode` turned into this JSON, with tensors from `make`.

    Raises:
        ValueError: `encode` does not write such JSON.
    """
    if isinstance(structure, list):
        items = enumerate(cast("list[Any]", structure))
        return [decode(f"{name}.{index}", item, make) for index, item in items]
    if not isinstance(structure, dict):
        return structure
    encoded = cast("dict[str, Any]", structure)
    if _TAG not in encoded:
        return {key: decode(f"{name}.{key}", value, make) for key, value in encoded.items()}
    try:
        return _decode_tagged(name, encoded, make)
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, struct.error) as error:
        raise ValueError(f"{encoded.get(_TAG)!r} can't be read: {type(error).__name__}: {error}") from error


def dumps(structure: Any) -> str:
    """Return JSON text without spaces."""
    return json.dumps(structure, allow_nan=False, separators=(",", ":"))


class _Encoder:
    def __init__(self, kept: Callable[[Tensor], Tensor]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._kept = kept
        self._keys: dict[int, str] = {}  # by the id of the kept tensor

    def encode(self, path: str, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if value is None or kind is bool or kind is str:
            return value
        if kind is float:
            return value if math.isfinite(value) else {_TAG: "float", "bits": struct.pack(">d", value).hex()}
        if kind is int:
            return value if -_LARGEST < value < _LARGEST else {_TAG: "int", "hex": hex(value)}
        if kind is list:
            return self._encode_items(path, value)
        if kind in _DICTIONARIES.values():
            return self._encode_dictionary(path, value)
        if kind in _SEQUENCES.values():
            items = self._encode_items(path, value)
            # The order of a set differs between processes.
            return {
                _TAG: kind.__name__,
                "items": items if isinstance(value, tuple) else sorted(items, key=dumps),
            }
        if isinstance(value, Tensor):
            return self._encode_tensor(path, value)
        if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            return self._encode_array(path, value)
        if kind is complex:
            return {_TAG: "complex", "bits": struct.pack(">dd", value.real, value.imag).hex()}
        if kind is bytes:
            return {_TAG: "bytes", "hex": value.hex()}
        if kind in (torch.dtype, torch.device):
            return {_TAG: kind.__name__, "name": str(value).removeprefix("torch.")}
        raise TypeError(
            f"{path} is of {kind.__module__}.{kind.__qualname__}, which a checkpoint does not hold"
        )

    def _encode_items(self, path: str, items: Any) -> list[Any]:
        return [self.encode(f"{path}.{index}", item) for index, item in enumerate(items)]

    def _encode_dictionary(self, path: str, value: Mapping[Any, Any]) -> Any:
        kind = type(value)
        values = [self.encode(f"{path}.{key}", item) for key, item in value.items()]
        if kind is dict and _TAG not in value and all(type(key) is str for key in value):
            return dict(zip(value, values, strict=True))
        stored = len(self.tensors)
        keys = [self.encode(f"the key {key!r} of {path}", key) for key in value]
        if len(self.tensors) > stored:
            raise TypeError(f"{path} has a tensor in a key, which a checkpoint does not hold")
        encoded: dict[str, Any] = {
            _TAG: kind.__name__,
            "items": list(map(list, zip(keys, values, strict=True))),
        }
        # Here the state dict of a module has the versions of its submodules.
        if (versions := getattr(value, "_metadata", None)) is not None:
            encoded["_metadata"] = self.encode(f"{path}._metadata", versions)
        return encoded

    def _encode_tensor(self, path: str, tensor: Tensor) -> Any:
        local = local_shard(tensor)
        if mesh := mesh_of(tensor):
            if mesh.size() != processes.world_size():
                raise TypeError(f"{path} is a DTensor over {mesh}, not over all ranks")
            if any(placement.is_partial() for placement in cast("Any", tensor).placements):
                raise TypeError(f"{path} is a DTensor of partial sums, which a checkpoint does not hold")
        if (
            type(local) not in (Tensor, nn.Parameter)
            or local.layout != torch.strided
            or local.is_meta
            or local.dtype not in DTYPES.values()
        ):
            what = f"{local.layout} {type(local).__name__} of {local.dtype}"
            if local.is_meta:
                what = "tensor without memory"
            raise TypeError(f"{path} is a {what}, which a checkpoint does not hold")
        held = self._kept(tensor)
        reference = self._refer(path, held)
        if not mesh and not held.is_contiguous():
            reference["stride"] = list(held.stride())
        if (placements := placements_of(tensor)) is not None:
            reference["placements"] = placements
        return reference

    def _encode_array(self, path: str, value: Any) -> Any:
        array: np.ndarray[Any, Any] = np.asarray(value)
        if array.dtype.kind not in _ARRAYS:
            raise TypeError(f"{path} is a NumPy array of {array.dtype}, which a checkpoint does not hold")
        content = array.tobytes()
        if isinstance(value, np.generic):
            return {_TAG: "scalar", "dtype": array.dtype.str, "hex": content.hex()}
        # torch refuses an empty buffer.
        values = torch.frombuffer(bytearray(content or b"-"), dtype=torch.uint8)[: len(content)]
        return {
            _TAG: "array",
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "content": self._refer(path, values),
        }

    def _refer(self, path: str, tensor: Tensor) -> dict[str, Any]:
        key = self._keys.get(id(tensor))
        # A rank without a share of a DTensor could not tell that it is tied.
        if key is None or mesh_of(tensor):
            # {"a.b": ...} and {"a": {"b": ...}} have the same path.
            key, number = path, 1
            while key in self.tensors:
                key, number = f"{path}~{number}", number + 1
            self._keys[id(tensor)] = key
            self.tensors[key] = tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        return {_TAG: "tensor", "key": key, "dtype": dtype, "shape": list(tensor.shape)}


def _decode_tagged(name: str, encoded: dict[str, Any], make: MakeTensor) -> Any:
    tag = encoded[_TAG]
    if tag == "tensor":
        return make(name, _reference(encoded))
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](decode(name, list(encoded["items"]), make))
    if tag in _DICTIONARIES:
        keys = [decode(name, key, make) for key, _ in encoded["items"]]
        values = [decode(f"{name}.{key}", encoded["items"][index][1], make) for index, key in enumerate(keys)]
        decoded = _DICTIONARIES[tag](zip(keys, values, strict=True))
        if tag == "Counter":  # which would count the pairs
            decoded = Counter(dict(zip(keys, values, strict=True)))
        if "_metadata" in encoded:
            cast("Any", decoded)._metadata = decode(f"{name}._metadata", encoded["_metadata"], make)
        return decoded
    if tag in ("array", "scalar"):
        dtype = np.dtype(encoded["dtype"])
        if dtype.kind not in _ARRAYS:
            raise ValueError(f"{name} is a NumPy array of {dtype}")
        if tag == "scalar":
            return np.frombuffer(bytes.fromhex(encoded["hex"]), dtype)[0]
        return decode(name, encoded["content"], make).numpy().view(dtype).reshape(encoded["shape"])
    if tag == "float":
        return struct.unpack(">d", bytes.fromhex(encoded["bits"]))[0]
    if tag == "complex":
        return complex(*struct.unpack(">dd", bytes.fromhex(encoded["bits"])))
    if tag == "int":
        return int(encoded["hex"], 16)
    if tag == "bytes":
        return bytes.fromhex(encoded["hex"])
    if tag == "device":
        return torch.device(encoded["name"])
    if tag == "dtype" and isinstance(dtype := getattr(torch, encoded["name"], None), torch.dtype):
        return dtype
    raise ValueError(f"{tag!r} is not a kind of value that a checkpoint holds")


def _reference(encoded: Mapping[str, Any]) -> Reference:
    shape, stride, placements = encoded["shape"], encoded.get("stride"), encoded.get("placements")
    lengths: list[Any] = [*shape, *(stride or [])]
    if not all(type(length) is int and length >= 0 for length in lengths):
        raise ValueError(f"{encoded['key']} has the shape {shape} and the strides {stride}")
    if stride is not None:
        last = sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
        if 0 in shape or last >= math.prod(shape):
            raise ValueError(
                f"{encoded['key']} has the strides {stride}, which the shape {shape} does not fill"
            )
    if placements is not None and not all(
        dim is None or (type(dim) is int and 0 <= dim < len(shape)) for dim in placements
    ):
        raise ValueError(f"{encoded['key']} has the placements {placements}")
    return Reference(encoded["key"], DTYPES[encoded["dtype"]], shape, stride, placements)
