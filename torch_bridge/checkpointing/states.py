"""A state as tensors by name, and a structure that contains everything else.

The structure is the state with an empty tensor on the meta device in place of each tensor. For the
part `part`:

    {"at": (3, 0.5), "best": {1: w}}

    structure  {"at": (3, 0.5), "best": {1: an empty tensor of w's dtype, shape and stride}}
    tensors    {"part.best.1": w}

`torch.save` turns the structure into bytes. `torch.load(weights_only=True)` reads them without
running code. A NumPy array is stored as a tensor of bytes (`numpy_values`), and a tensor of a
subclass as its inner tensors (`stored_values`).
"""

import copy
import io
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from torch_bridge.checkpointing import file_format, numpy_values, stored_values
from torch_bridge.checkpointing.stored_values import (
    TENSOR,
    Stored,
    StoredShard,
    StoredSubclass,
    StoredTensor,
    empty_meta,
    with_flags_of,
)
from torch_bridge.curve_api import checks
from torch_bridge.distributed import processes, subclasses
from torch_bridge.distributed.dtensors import (
    local_shard,
    mesh_coordinates,
    mesh_of,
    placements_of,
)

_CONTAINERS = (dict, OrderedDict, Counter, list, tuple)
_PLAIN_TYPES = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device, torch.Size),
)
_MAX_INT_BITS = 2032  # `torch.load(weights_only=True)` reads no integer of more than 255 bytes

_SAFE_GLOBALS: list[Any] = [frozenset, bytes]


@dataclass
class SplitState:
    """A copy of a state, split into its tensors and its structure."""

    structure: Any = None
    leaves: list[Stored] = field(default_factory=list[Stored])
    """How each empty tensor in the structure is stored, in the order of `map_leaves`. Tied tensors
    share a name."""
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The copied tensors, by name."""

    def names_of_shards(self) -> list[str]:
        """Return the names of the DTensors of which each rank stores its own shard."""
        return [leaf.name for leaf in self.leaves if isinstance(leaf, StoredShard)]

    def store_shards(self, names: Collection[str]) -> None:
        """Store only this rank's shard of each of these DTensors, as for a shard of a subclass."""
        for index, leaf in enumerate(self.leaves):
            if isinstance(leaf, StoredTensor) and leaf.name in names:
                dtensor = self.tensors[leaf.name]
                shard = local_shard(dtensor)
                self.tensors[leaf.name] = shard
                self.leaves[index] = StoredShard(
                    leaf.name,
                    StoredTensor(leaf.name, TENSOR, empty_meta(shard), None),
                    mesh_coordinates(dtensor),
                    leaf.meta,
                    leaf.placements,
                )

    def structure_bytes(self) -> Tensor:
        """Return everything but the tensors as a uint8 tensor."""
        names: list[str] = []
        kinds: list[str] = []
        placements: list[list[int | None] | None] = []
        wrapped: list[Any] = []
        for leaf in self.leaves:
            if isinstance(leaf, StoredTensor):
                names.append(leaf.name)
                kinds.append(leaf.kind)
                placements.append(leaf.placements)
                wrapped.append(None)
            else:
                names.append("")
                kinds.append(TENSOR)
                placements.append(None)
                wrapped.append(stored_values.to_plain(leaf))
        content = io.BytesIO()
        plain = {
            "structure": self.structure,
            "names": names,
            "kinds": kinds,
            "placements": placements,
            "wrapped": wrapped,
        }
        torch.save(plain, content)
        return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


def split_state(name: str, state: Any, copy_tensor: Callable[[Tensor], Tensor]) -> SplitState:
    """Split a state into its tensors, which are copied, and its structure.

    A tensor's name is its path, such as `step.model.0.weight`. Plain tensors for which
    `copy_tensor` returns the same copy are stored once.

    Args:
        name: The first component of all paths.
        state: The state.
        copy_tensor: Returns a copy of a tensor in host memory.

    Raises:
        TypeError: The state has a value that a checkpoint can't hold; the message has its path.
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
        if numpy_values.is_of_numpy(leaf):
            return self._split_array(path, leaf)
        _check_plain(path, leaf)
        return copy.copy(leaf)  # a set may change before it is written

    def _split_array(self, path: str, value: Any) -> Tensor:
        _check_array(path, value)
        kind, content = numpy_values.to_bytes(value)
        name = _free_name(path, self.split.tensors)
        self.split.tensors[name] = content
        return self._add_leaf(StoredTensor(name, kind, empty_meta(content), None))

    def _split_tensor(self, path: str, tensor: Tensor) -> Tensor:
        stored = self._store(path, tensor)
        if not isinstance(stored, Tensor):
            stored = self._add_leaf(stored)
        return with_flags_of(tensor, stored)

    def _add_leaf(self, stored: Stored) -> Tensor:
        """Return the empty tensor of the structure that stands for the next stored tensor."""
        self.split.leaves.append(stored)
        return stored.meta

    def _store(self, path: str, tensor: Tensor) -> Stored | Tensor:
        """Copy a tensor; return how it is stored, or the copy itself if the structure has it."""
        _check_tensor(path, tensor)
        local = local_shard(tensor)
        if subclasses.wraps_tensors(local):
            if local is not tensor:
                name = _free_name(path, self.split.tensors)
                shard = self._store(path, local)
                coordinates = mesh_coordinates(tensor)
                placements = placements_of(tensor)
                return StoredShard(name, shard, coordinates, empty_meta(tensor), placements)
            return self._store_inner(path, tensor)

        copied = self._copy_tensor(tensor)
        if tensor.dtype in file_format.UNSTORED_DTYPES:
            return copied
        name = self._names_by_copy.get(id(copied))
        # Tied DTensors are stored under every name: all ranks must use the same names, and a rank
        # whose shard is empty can't tell that they are tied.
        if name is None or mesh_of(copied) is not None:
            name = _free_name(path, self.split.tensors)
            self._names_by_copy[id(copied)] = name
            self.split.tensors[name] = copied
        return StoredTensor(name, TENSOR, empty_meta(copied), placements_of(tensor))

    def _store_inner(self, path: str, tensor: Tensor) -> StoredSubclass:
        """Copy the inner tensors of a subclass; return how it is stored."""
        class_name = _checked_class(path, tensor)
        values, context = subclasses.flatten(tensor)
        inner: dict[str, Stored | Tensor] = {}
        for name, value in values.items():
            inner_path = f"{path}.{name}"
            if not isinstance(value, Tensor) or mesh_of(value) is not None:
                value_type = cast("type[Any]", type(value))
                raise _unsupported(inner_path, f"of {_full_name(value_type)}, within a tensor")
            inner[name] = self._store(inner_path, value)
        context = map_leaves(f"the context of {path}", context, _copy_plain)
        return StoredSubclass(class_name, context, inner, empty_meta(tensor))


def read_structure(name: str, content: Tensor) -> Any:
    """Return the state of `structure_bytes`, with a `Stored` value for each stored tensor."""
    # Permanent: the end of a `safe_globals` block would also end it for a load in another thread.
    torch.serialization.add_safe_globals(_SAFE_GLOBALS)
    plain: Any = torch.load(io.BytesIO(content.numpy().data), map_location="cpu", weights_only=True)
    columns = plain["kinds"], plain["placements"], plain["wrapped"]
    stored = zip(plain["names"], *columns, strict=True)

    def restore_leaf(_: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_meta:
            return leaf
        stored_name, kind, placements, wrapped = next(stored)
        if wrapped is None:
            return StoredTensor(stored_name, kind, leaf, placements)
        # `leaf`, unlike the tensor in `wrapped`, may be a parameter.
        return replace(cast("Any", stored_values.from_plain(wrapped)), meta=leaf)

    return map_leaves(name, plain["structure"], restore_leaf)


def meta_of(leaf: Any) -> Tensor | None:
    """Return a tensor of the leaf's dtype and shape, or None if the leaf is not a tensor."""
    if isinstance(leaf, StoredTensor) and leaf.kind != TENSOR:
        return None
    if isinstance(leaf, Stored):
        return leaf.meta
    if isinstance(leaf, Tensor):
        return leaf
    return None


def fill_structure(structure: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a structure with its stored values rebuilt from the tensors of these names."""
    return map_leaves("", structure, lambda _, leaf: stored_values.rebuild(leaf, tensors))


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


def _free_name(path: str, used: dict[str, Tensor]) -> str:
    """Return a path as a name that a file can hold, and that is not used."""
    name = file_format.tensor_name(path)
    while name in used:  # {"a.b": …} and {"a": {"b": …}} give the same path
        name += "~"
    return name


def _check_key(path: str, key: Any) -> None:
    if type(key) is not str:
        _check_plain(f"the key {checks.short_repr(key)} of {path}", key)


def _copy_plain(path: str, value: Any) -> Any:
    _check_plain(path, value)
    return copy.copy(value)


def _check_plain(path: str, value: Any) -> None:
    """Raise a TypeError if `torch.load(weights_only=True)` can't read a value."""
    value_type = cast("type[Any]", type(value))
    if value_type in (set, frozenset, tuple):
        for item in value:
            _check_plain(f"{checks.short_repr(item)} in {path}", item)
    elif value_type is int and value.bit_length() > _MAX_INT_BITS:
        raise _unsupported(path, f"an integer of more than {_MAX_INT_BITS} bits")
    elif value_type not in _PLAIN_TYPES:
        raise _unsupported(path, f"of {_full_name(value_type)}")


def _check_array(path: str, value: Any) -> None:
    """Raise a TypeError if NumPy's file format does not keep an array or a scalar."""
    if not numpy_values.is_plain(value):
        value_type = cast("type[Any]", type(value))
        raise _unsupported(path, f"of {_full_name(value_type)}")
    dtype = value.dtype
    is_from_elsewhere = dtype.isbuiltin == 2
    if dtype.kind not in numpy_values.KIND_CODES or is_from_elsewhere:
        what = "array"
        if isinstance(value, np.generic):
            what = "scalar"
        raise _unsupported(path, f"a NumPy {what} of {dtype}")


def _check_tensor(path: str, tensor: Tensor) -> None:
    """Raise a TypeError if a checkpoint can't hold a tensor."""
    if tensor.grad_fn is not None:
        raise TypeError(
            f"{path} was computed with gradients, which a checkpoint can't hold: save "
            "tensor.detach()"
        )
    mesh = mesh_of(tensor)
    if not _is_supported(tensor):
        local = local_shard(tensor)
        layout = "nested" if local.is_nested else local.layout
        what = f"a {layout} {type(tensor).__name__} of {local.dtype} on {local.device}"
        raise _unsupported(path, what)
    if mesh is None:
        return
    if mesh.size() != processes.world_size():
        raise _unsupported(path, f"a DTensor over {mesh}, not over all ranks")
    if any(placement.is_partial() for placement in cast("Any", tensor).placements):
        raise _unsupported(path, "a DTensor of partial sums")


def _is_supported(tensor: Tensor) -> bool:
    """Return False if a tensor has a class, a layout or a dtype that a checkpoint can't hold."""
    local = local_shard(tensor)
    if subclasses.wraps_tensors(local):
        return True  # its inner tensors are checked instead
    if type(local) not in (Tensor, nn.Parameter):
        return False
    if local.layout != torch.strided or local.is_nested or local.is_meta:
        return False
    if local.dtype in file_format.STORED_DTYPES:
        return True
    is_sharded = local is not tensor
    return local.dtype in file_format.UNSTORED_DTYPES and not is_sharded


def _checked_class(path: str, tensor: Tensor) -> str:
    """Return the name of a tensor's class in torch's list of safe globals.

    Raises:
        TypeError: It is not there.
    """
    value_type = type(tensor)
    name = stored_values.name_in_safe_globals(value_type)
    if name is None:
        raise TypeError(
            f"{path} is of {_full_name(value_type)}, which is not in torch's list of safe globals: "
            "if you trust the class, call "
            f"torch.serialization.add_safe_globals([{value_type.__name__}]) before you save and "
            "load, or keep the tensor in a separate file, with torch.save"
        )
    return name


def _full_name(value_type: type[Any]) -> str:
    return f"{value_type.__module__}.{value_type.__qualname__}"


def _unsupported(path: str, what: str) -> TypeError:
    return TypeError(
        f"{path} is {what}, which a checkpoint can't hold: keep it in a separate file, with "
        "torch.save"
    )
