"""A state as tensors by name, and a structure that holds everything else.

The structure is the state with an empty tensor on the meta device in place of each tensor. For the
part `part`:

    {"at": (3, 0.5), "best": {1: w}}

    structure  {"at": (3, 0.5), "best": {1: an empty tensor of w's dtype, shape and stride}}
    tensors    {"part.best.1": w}

`torch.save` turns the structure into bytes. `torch.load(weights_only=True)` reads them without
running code. A NumPy array is stored as a tensor of bytes in NumPy's file format: pickles of NumPy
could be crafted to follow any memory address.
"""

import copy
import io
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from torch_bridge.curve_api import checks
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import local_shard, mesh_of, placements_of

# What both safetensors and DCP's reader support. A tensor of any other dtype stays in the
# structure.
_STORED_DTYPES = {
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
}
_UNSTORED_DTYPES = {torch.float8_e8m0fnu, torch.complex32, torch.complex128}
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple)
_PLAIN_TYPES = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device, torch.Size),
)
_MAX_INT_BITS = 2032  # `torch.load(weights_only=True)` reads no integer of more than 255 bytes

_SAFE_GLOBALS: list[Any] = [frozenset, bytes]

_ARRAY_KINDS = "biufcmMSU"  # booleans, numbers, times, bytes and text

_TENSOR = "tensor"
_ARRAY = "array"
_SCALAR = "scalar"


@dataclass
class SplitState:
    """A copy of a state, split into its tensors and its structure."""

    structure: Any = None
    names: list[str] = field(default_factory=list[str])
    """The name of each empty tensor in the structure, in the order of `map_leaves`. Tied tensors
    share it."""
    kinds: list[str] = field(default_factory=list[str])
    """The kind of each of these leaves in the state: "tensor", or a NumPy "array" or "scalar"."""
    placements: list[list[int | None] | None] = field(default_factory=list[list[int | None] | None])
    """The `placements_of` each of these tensors: None for a plain tensor."""
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The copied tensors, by name."""

    def add_tensor(
        self, name: str, kind: str, tensor: Tensor, placements: list[int | None] | None
    ) -> Tensor:
        """Add the next tensor of the state, and return an empty one for the structure."""
        self.names.append(name)
        self.kinds.append(kind)
        self.placements.append(placements)
        self.tensors[name] = tensor
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    def structure_bytes(self) -> Tensor:
        """Return everything but the tensors as a uint8 tensor."""
        content = io.BytesIO()
        record = {
            "structure": self.structure,
            "names": self.names,
            "kinds": self.kinds,
            "placements": self.placements,
        }
        torch.save(record, content)
        return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a saved state that has not been read."""

    name: str
    kind: str
    """Its kind in the state: see `SplitState.kinds`."""
    meta: Tensor
    """An empty tensor or parameter with its dtype, shape, stride, and `requires_grad`."""
    placements: list[int | None] | None
    """The `placements_of` the saved DTensor; None for a plain tensor."""


def split_state(name: str, state: Any, copy_tensor: Callable[[Tensor], Tensor]) -> SplitState:
    """Split a state into its tensors, which are copied, and its structure.

    A tensor's name is its path, such as `step.model.0.weight`. Plain tensors for which
    `copy_tensor` returns the same copy are stored once.

    Args:
        name: The first component of all paths.
        state: The state.
        copy_tensor: Returns a copy of a tensor in host memory.

    Raises:
        TypeError: The state holds a value that a checkpoint can't hold; the message has its path.
    """
    splitter = _Splitter(copy_tensor)
    splitter.split.structure = map_leaves(name, state, splitter.split_leaf)
    return splitter.split


class _Splitter:
    """Collects the tensors of a state, leaf by leaf."""

    def __init__(self, copy_tensor: Callable[[Tensor], Tensor]) -> None:
        self.split = SplitState()
        self._copy_tensor = copy_tensor
        self._names_by_copy: dict[int, str] = {}
        """By the id of the copy, which `split.tensors` keeps alive."""

    def split_leaf(self, path: str, leaf: Any) -> Any:
        """Return what stands for a leaf in the structure."""
        if isinstance(leaf, Tensor):
            return self._split_tensor(path, leaf)
        if isinstance(leaf, np.generic):
            return self._split_array(path, _SCALAR, leaf)
        if type(leaf) is np.ndarray:
            return self._split_array(path, _ARRAY, leaf)
        _check_plain(path, leaf)
        return copy.copy(leaf)  # a set may change before it is written

    def _split_array(self, path: str, kind: str, array: Any) -> Tensor:
        content = _array_to_bytes(path, array)
        stored_name = _free_name(path, self.split.tensors)
        return self.split.add_tensor(stored_name, kind, content, placements=None)

    def _split_tensor(self, path: str, tensor: Tensor) -> Tensor:
        _check_tensor(path, tensor)
        copied = self._copy_tensor(tensor)
        if tensor.dtype in _UNSTORED_DTYPES:
            return _with_flags_of(tensor, copied)
        stored_name = self._names_by_copy.get(id(copied))
        # Tied DTensors are stored under every name: all ranks must use the same names, and a rank
        # whose shard is empty can't tell that they are tied.
        if stored_name is None or mesh_of(copied) is not None:
            stored_name = _free_name(path, self.split.tensors)
            self._names_by_copy[id(copied)] = stored_name
        placements = placements_of(tensor)
        return _with_flags_of(
            tensor, self.split.add_tensor(stored_name, _TENSOR, copied, placements)
        )


def read_structure(name: str, content: Tensor) -> Any:
    """Return the state of `structure_bytes`, with a `StoredTensor` for each stored tensor."""
    # Permanent: the end of a `safe_globals` block would also end it for a load in another thread.
    torch.serialization.add_safe_globals(_SAFE_GLOBALS)
    record: Any = torch.load(
        io.BytesIO(content.numpy().data), map_location="cpu", weights_only=True
    )
    stored = zip(record["names"], record["kinds"], record["placements"], strict=True)

    def restore_leaf(_: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_meta:
            stored_name, kind, placements = next(stored)
            return StoredTensor(stored_name, kind, leaf, placements)
        return leaf

    return map_leaves(name, record["structure"], restore_leaf)


def meta_of(leaf: Any) -> Tensor | None:
    """Return a tensor of the leaf's dtype and shape, or None if the leaf is not a tensor."""
    if isinstance(leaf, StoredTensor) and leaf.kind == _TENSOR:
        return leaf.meta
    if isinstance(leaf, Tensor):
        return leaf
    return None


def fill_structure(structure: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a structure with the tensors of these names in place of its `StoredTensor`s."""

    def fill_leaf(_: str, leaf: Any) -> Any:
        if not isinstance(leaf, StoredTensor):
            return leaf
        tensor = tensors[leaf.name]
        if leaf.kind == _TENSOR:
            return _with_flags_of(leaf.meta, tensor)
        array = _array_from_bytes(tensor)
        if leaf.kind == _SCALAR:
            return array[()]
        return array

    return map_leaves("", structure, fill_leaf)


def map_leaves(path: str, value: Any, change: Callable[[str, Any], Any]) -> Any:
    """Return a copy of nested containers, with `change(path, leaf)` in place of each leaf."""
    if type(value) not in _CONTAINERS:
        return change(path, value)
    if isinstance(value, dict):
        mapping = cast("Any", value)
        mapped: Any = type(mapping)()
        for key, item in mapping.items():
            _check_key(path, key)
            mapped[key] = map_leaves(f"{path}.{key}", item, change)
        if hasattr(mapping, "_metadata"):  # torch's, of a module's state
            mapped._metadata = map_leaves(f"{path}._metadata", mapping._metadata, change)
        return mapped
    items: list[Any] = []
    for index, item in enumerate(cast("list[Any]", value)):
        items.append(map_leaves(f"{path}.{index}", item, change))
    if isinstance(value, tuple):
        return tuple(items)
    return items


def _array_to_bytes(path: str, array: "np.ndarray[Any, Any]") -> Tensor:
    """Return a NumPy array or scalar in NumPy's file format.

    Raises:
        TypeError: It has a dtype that this format does not keep.
    """
    dtype = array.dtype
    if dtype.kind not in _ARRAY_KINDS or dtype.isbuiltin == 2:  # 2: not NumPy's own
        raise TypeError(f"{path} is a NumPy array of {dtype}, which a checkpoint does not hold")
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


def _array_from_bytes(content: Tensor) -> "np.ndarray[Any, Any]":
    return np.lib.format.read_array(io.BytesIO(content.numpy().data), allow_pickle=False)


def _with_flags_of(leaf: Tensor, tensor: Tensor) -> Tensor:
    """Return the tensor, as a parameter if the leaf is one, and with its `requires_grad`."""
    if isinstance(leaf, nn.Parameter):
        return nn.Parameter(tensor, leaf.requires_grad)
    if leaf.requires_grad:
        return tensor.detach().requires_grad_()  # a tied tensor may have it under one name only
    return tensor


def _free_name(path: str, used: dict[str, Tensor]) -> str:
    """Return a path as a name that safetensors can hold, and that is not used."""
    # Half of a surrogate pair is not UTF-8.
    name = path.encode("utf-8", "backslashreplace").decode()
    while name in used:  # {"a.b": …} and {"a": {"b": …}} give the same path
        name += "~"
    return name


def _check_key(path: str, key: Any) -> None:
    if type(key) is not str:
        _check_plain(f"the key {checks.short_repr(key)} of {path}", key)


def _check_plain(path: str, value: Any) -> None:
    """Raise a TypeError if `torch.load(weights_only=True)` can't read a value."""
    kind = cast("type[Any]", type(value))
    if kind in (set, frozenset, tuple):
        for item in value:
            _check_plain(f"{checks.short_repr(item)} in {path}", item)
        return
    if kind is int and value.bit_length() > _MAX_INT_BITS:
        what = f"an integer of more than {_MAX_INT_BITS} bits"
    elif kind not in _PLAIN_TYPES:
        what = f"of {kind.__module__}.{kind.__qualname__}"
    else:
        return
    raise TypeError(f"{path} is {what}, which a checkpoint does not hold")


def _check_tensor(path: str, tensor: Tensor) -> None:
    """Raise a TypeError if a checkpoint can't hold a tensor."""
    fault = _fault_of(tensor)
    if fault:
        raise TypeError(f"{path} {fault}")


def _fault_of(tensor: Tensor) -> str:
    """Return why a checkpoint can't hold a tensor, or an empty string."""
    if tensor.grad_fn is not None:
        return "was computed with gradients, which a checkpoint does not hold: save tensor.detach()"

    local = local_shard(tensor)
    mesh = mesh_of(tensor)
    allowed = _STORED_DTYPES
    if mesh is None:
        allowed = _STORED_DTYPES | _UNSTORED_DTYPES
    is_dense = local.layout == torch.strided and not local.is_nested and not local.is_meta
    is_plain = type(local) in (Tensor, nn.Parameter)
    if not is_dense or not is_plain or local.dtype not in allowed:
        layout = "nested" if local.is_nested else local.layout
        what = f"{layout} {type(tensor).__name__} of {local.dtype} on {local.device}"
        return f"is a {what}, which a checkpoint does not hold"

    if mesh is None:
        return ""
    if mesh.size() != processes.world_size():
        return f"is a DTensor over {mesh}, not over all ranks"
    if any(placement.is_partial() for placement in cast("Any", tensor).placements):
        return "is a DTensor of partial sums, which a checkpoint does not hold"
    return ""
