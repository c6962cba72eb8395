"""Turn a state into JSON and tensors, and back.

A value that JSON would change, such as a tuple, becomes a dictionary whose entry "$" names its type. A tensor
becomes a reference, a dictionary with the key under which the tensor is stored. With the name "part":

    {"at": (3, 0.5), "best": {1: w}, "last": w}

    {"at": {"$": "tuple", "items": [3, 0.5]},
     "best": {"$": "dict", "items": [[1, {"$": "tensor", "key": "part.best.1", …}]]},
     "last": {"$": "tensor", "key": "part.best.1", …}}

The second `w` refers to the same key as the first: a tied tensor is stored once. Decoding makes a separate
tensor for each reference, and a model's `load_state_dict` copies both into its tied parameter.
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

from torch_bridge.curve_api import checks
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import local_shard, mesh_of, placements_of

_TAG = "$"  # a dictionary that has this key itself is encoded as items, so the two never mix
_MAX_DEPTH = 100  # fixed, because the depth that Python's stack allows differs between a save and a load
_INT_LIMIT = 2**63  # larger ones as hex: Python does not parse decimals of several thousand digits
_DICT_TYPES: dict[str, Any] = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
_SEQUENCE_TYPES: dict[str, Any] = {kind.__name__: kind for kind in (tuple, torch.Size, set, frozenset)}
_ARRAY_KINDS = "?biufcSUMm"  # the kinds of NumPy dtypes whose bytes are their values, unlike those of objects
_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
)
_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda encoded: struct.unpack(">d", bytes.fromhex(encoded["bits"]))[0],
    "int": lambda encoded: int(encoded["hex"], 16),
    "bytes": lambda encoded: bytes.fromhex(encoded["hex"]),
    "device": lambda encoded: torch.device(encoded["name"]),
}
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _DTYPES}
"""The dtypes that a checkpoint can hold, by name."""


class Reference(NamedTuple):
    """A tensor in an encoded state."""

    key: str
    dtype: torch.dtype
    shape: list[int]
    stride: list[int] | None
    """None if the tensor is contiguous."""
    placements: list[int | None] | None
    """The `placements_of` the saved DTensor; None for a plain tensor."""


MakeTensor = Callable[[str, Reference], Tensor]
"""Returns the tensor for a path of the state and its reference."""


def encode_state(
    name: str, state: Any, copy_tensor: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> tuple[Any, dict[str, Tensor]]:
    """Return the state as JSON, and its tensors by key.

    A tensor's key is its path, such as `step.model.0.weight`. Plain tensors for which `copy_tensor` returns
    the same copy share one key.

    A state may hold: None, booleans, integers, floats (to the bit), strings, bytes; lists, tuples, sets, and
    dictionaries with any of these as keys; dtypes, devices, sizes; NumPy's arrays and numbers; dense tensors
    and DTensors over all ranks, also parameters, without their gradients.

    Args:
        name: The first component of all paths.
        state: The state.
        copy_tensor: Returns the tensor to store in place of a tensor. By default the tensor itself.

    Raises:
        TypeError: The state holds anything else, and the message has its path; or its containers are nested
            more than 100 levels deep.
    """
    encoder = _Encoder(copy_tensor)
    return encoder.encode_value(name, state), encoder.tensors


def decode_state(name: str, structure: Any, make: MakeTensor) -> Any:
    """Return the state that `encode_state` turned into this JSON, with tensors from `make`.

    Raises:
        ValueError: It has a kind of value that this version does not know.
    """
    if isinstance(structure, list):
        items = enumerate(cast("list[Any]", structure))
        return [decode_state(f"{name}.{index}", item, make) for index, item in items]
    if not isinstance(structure, dict):
        return structure
    encoded = cast("dict[str, Any]", structure)
    if _TAG in encoded:
        return _decode_tagged(name, encoded, make)
    return {key: decode_state(f"{name}.{key}", value, make) for key, value in encoded.items()}


def to_json(structure: Any) -> str:
    """Return JSON text without whitespace."""
    return json.dumps(structure, allow_nan=False, separators=(",", ":"))


class _Encoder:
    def __init__(self, copy_tensor: Callable[[Tensor], Tensor]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._copy_tensor = copy_tensor
        self._keys: dict[int, str] = {}  # by the id of the stored tensor, which `tensors` keeps alive
        self._depth = 0  # of the container that is being encoded

    def encode_value(self, path: str, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if value is None or kind is bool or kind is str:
            return value
        if kind is float:
            return value if math.isfinite(value) else {_TAG: "float", "bits": struct.pack(">d", value).hex()}
        if kind is int:
            return value if -_INT_LIMIT < value < _INT_LIMIT else {_TAG: "int", "hex": hex(value)}
        if kind is list or kind in _DICT_TYPES.values() or kind in _SEQUENCE_TYPES.values():
            return self._encode_container(path, value)
        if isinstance(value, Tensor):
            return self._encode_tensor(path, value)
        is_number = issubclass(kind, np.generic) and not issubclass(kind, np.character)
        if is_number or kind in (np.ndarray, np.memmap):
            return self._encode_array(path, value)
        if kind is bytes:
            return {_TAG: "bytes", "hex": value.hex()}
        if kind in (torch.dtype, torch.device):
            return {_TAG: kind.__name__, "name": str(value).removeprefix("torch.")}
        raise TypeError(
            f"{path} is of {kind.__module__}.{kind.__qualname__}, which a checkpoint does not hold"
        )

    def _encode_container(self, path: str, value: Any) -> Any:
        if self._depth == _MAX_DEPTH:
            raise TypeError(f"{path.partition('.')[0]} is nested more than {_MAX_DEPTH} levels deep")
        self._depth += 1
        if isinstance(value, dict):
            encoded = self._encode_dictionary(path, cast("dict[Any, Any]", value))
        else:
            encoded = self._encode_sequence(path, value)
        self._depth -= 1
        return encoded

    def _encode_sequence(self, path: str, value: Any) -> Any:
        items = [self.encode_value(f"{path}.{index}", item) for index, item in enumerate(value)]
        if type(value) is list:
            return items
        if type(value) in (set, frozenset):
            items.sort(key=to_json)  # the order of a set of strings differs between processes
        return {_TAG: type(value).__name__, "items": items}

    def _encode_dictionary(self, path: str, value: Mapping[Any, Any]) -> Any:
        kind = type(value)
        values = [self.encode_value(f"{path}.{key}", item) for key, item in value.items()]
        if kind is dict and _TAG not in value and all(type(key) is str for key in value):
            return dict(zip(value, values, strict=True))
        stored = len(self.tensors)
        keys = [self.encode_value(f"the key {checks.short_repr(key)} of {path}", key) for key in value]
        if len(self.tensors) > stored:
            raise TypeError(f"{path} has a tensor in a key, which a checkpoint does not hold")
        encoded: dict[str, Any] = {
            _TAG: kind.__name__,
            "items": list(map(list, zip(keys, values, strict=True))),
        }
        # torch keeps the versions of the submodules in this attribute of a module's state dict.
        if (versions := getattr(value, "_metadata", None)) is not None:
            encoded["_metadata"] = self.encode_value(f"{path}._metadata", versions)
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
            or local.is_nested  # its sizes can't be read, though its layout is strided
            or local.is_meta
            or local.dtype not in DTYPES.values()
        ):
            layout = "nested" if local.is_nested else local.layout
            what = f"{layout} {type(local).__name__} of {local.dtype} on {local.device}"
            raise TypeError(f"{path} is a {what}, which a checkpoint does not hold")
        if tensor.grad_fn is not None:
            raise TypeError(
                f"{path} was computed with gradients, which a checkpoint does not hold: save tensor.detach()"
            )
        stored = self._copy_tensor(tensor)
        reference = self._store_tensor(path, stored)
        if isinstance(tensor, nn.Parameter):
            reference["parameter"] = True
        if tensor.requires_grad:
            reference["requires_grad"] = True
        if not mesh and not stored.is_contiguous():
            reference["stride"] = list(stored.stride())
        if (placements := placements_of(tensor)) is not None:
            reference["placements"] = placements
        return reference

    def _encode_array(self, path: str, value: Any) -> Any:
        array: np.ndarray[Any, Any] = np.asarray(value)
        if array.dtype.kind not in _ARRAY_KINDS:
            raise TypeError(f"{path} is a NumPy array of {array.dtype}, which a checkpoint does not hold")
        content = array.tobytes()
        if isinstance(value, np.generic):
            return {_TAG: "scalar", "dtype": array.dtype.str, "hex": content.hex()}
        # torch.frombuffer rejects an empty buffer, so it always gets a byte.
        values = torch.frombuffer(bytearray(content or b"-"), dtype=torch.uint8)[: len(content)]
        return {
            _TAG: "array",
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "content": self._store_tensor(path, values),
        }

    def _store_tensor(self, path: str, tensor: Tensor) -> dict[str, Any]:
        """Store a tensor, unless a tied one is stored already, and return a reference to it."""
        key = self._keys.get(id(tensor))
        # Tied DTensors are stored under every name: all ranks must use the same keys, and a rank whose shard
        # is empty can't tell that they are tied.
        if key is None or mesh_of(tensor):
            # safetensors needs UTF-8, which cannot hold half of a surrogate pair.
            key = path = path.encode("utf-8", "backslashreplace").decode()
            # {"a.b": …} and {"a": {"b": …}} give the same path: the second tensor becomes "a.b~1".
            number = 1
            while key in self.tensors:
                key, number = f"{path}~{number}", number + 1
            self._keys[id(tensor)] = key
            self.tensors[key] = tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        return {_TAG: "tensor", "key": key, "dtype": dtype, "shape": list(tensor.shape)}


def _decode_tagged(name: str, encoded: dict[str, Any], make: MakeTensor) -> Any:
    tag = encoded[_TAG]
    if tag == "tensor":
        tensor, requires_grad = make(name, _reference_in(encoded)), encoded.get("requires_grad", False)
        if encoded.get("parameter", False):
            return nn.Parameter(tensor, requires_grad)
        return tensor.detach().requires_grad_() if requires_grad else tensor  # `make` may return one twice
    if tag in _SEQUENCE_TYPES:
        return _SEQUENCE_TYPES[tag](decode_state(name, list(encoded["items"]), make))
    if tag in _DICT_TYPES:
        items: dict[Any, Any] = {}
        for encoded_key, value in encoded["items"]:
            key = decode_state(name, encoded_key, make)
            items[key] = decode_state(f"{name}.{key}", value, make)
        decoded = _DICT_TYPES[tag](items)  # not of pairs, which a Counter would count
        if "_metadata" in encoded:
            decoded._metadata = decode_state(f"{name}._metadata", encoded["_metadata"], make)
        return decoded
    if tag in ("array", "scalar"):
        dtype = np.dtype(encoded["dtype"])
        # The bytes of an array of objects would be taken for their addresses.
        if dtype.kind not in _ARRAY_KINDS:
            raise ValueError(f"{name} is a NumPy array of {dtype}")
        if tag == "scalar":
            return np.frombuffer(bytes.fromhex(encoded["hex"]), dtype)[0]
        return decode_state(name, encoded["content"], make).numpy().view(dtype).reshape(encoded["shape"])
    if tag == "dtype" and isinstance(dtype := getattr(torch, encoded["name"], None), torch.dtype):
        return dtype
    if tag not in _DECODERS:
        raise ValueError(f"{checks.short_repr(tag)} is not a kind of value that a checkpoint holds")
    return _DECODERS[tag](encoded)


def _reference_in(encoded: Mapping[str, Any]) -> Reference:
    dtype = DTYPES[encoded["dtype"]]
    return Reference(
        encoded["key"], dtype, encoded["shape"], encoded.get("stride"), encoded.get("placements")
    )
