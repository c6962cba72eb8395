"""A state as tensors by name, and a structure that contains everything else.

The structure is the state with an empty tensor on the meta device in place of each tensor and each
NumPy value. For the part `part`:

    {"at": (3, 0.5), "best": {1: w}}

    structure  {"at": (3, 0.5), "best": {1: an empty tensor of w's dtype, shape and stride}}
    tensors    {"part.best.1": w}

The structure is stored as bytes, next to a list of how its tensors are stored (`stored_values`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from plateau_jax.arguments import checks
from torch_bridge.training.checkpointing import file_format, stored_values
from torch_bridge.training.checkpointing.stored_values import (
    ARRAY,
    BYTES,
    SCALAR,
    StoredValue,
    unsupported,
)
from torch_bridge.training.distributed.dtensors import mesh_of, placements_of

_CONTAINERS = (dict, OrderedDict, Counter, list, tuple)
_PLAIN_TYPES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.Size,
)
_MAX_INT_BITS = 2032  # `torch.load(weights_only=True)` reads no integer of more than 255 bytes


@dataclass
class SplitState:
    """A copy of a state, split into its tensors and its structure."""

    structure: Any = None
    stored: list[StoredValue] = field(default_factory=list[StoredValue])
    """How each empty tensor in the structure is stored, in the order of `map_leaves`. Tied tensors
    share a name."""
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The copied tensors, by name."""
    _names: dict[int, str] = field(default_factory=dict[int, str])
    """The names of plain tensors by the ids of their copies, which `tensors` keeps alive."""

    def add_tensor(self, path: str, copied: Tensor, kind: str) -> Tensor:
        """Add a copied tensor; return an empty one for the structure."""
        meta = stored_values.empty_meta(copied)
        name = self._names.get(id(copied))
        if name is None:
            name = _free_name(path, self.tensors)
            self.tensors[name] = copied
            # Tied DTensors are stored under every name: all ranks must use the same names, and a
            # rank whose shard is empty can't tell that they are tied.
            if mesh_of(copied) is None:
                self._names[id(copied)] = name
        self.stored.append(StoredValue(meta, name, kind, placements_of(copied)))
        return meta

    def encode_tensors(self, part: str) -> dict[str, Tensor]:
        """Return the tensors of a file, by name: the structure, and all others."""
        entries = [(stored.name, stored.kind, stored.placements) for stored in self.stored]
        plain = {"structure": self.structure, "stored": entries}
        tensors = {file_format.structure_name(part): stored_values.to_bytes(plain)}
        for stored in self.stored:
            if stored.name not in tensors:
                tensor = self.tensors[stored.name]
                if stored.kind == BYTES:
                    tensor = stored_values.to_bytes(tensor)
                tensors[stored.name] = tensor
        return tensors


def split_state(name: str, state: Any, copy_tensor: Callable[[Tensor], Tensor]) -> SplitState:
    """Split a state into its tensors, which are copied, and its structure.

    A tensor's name is its path, such as `step.model.0.weight`. Plain tensors for which
    `copy_tensor` returns the same copy in host memory are stored once. A value that a checkpoint
    can't hold is a TypeError.
    """
    split = SplitState()

    def split_leaf(path: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            stored_values.check_tensor(path, leaf)
            return split.add_tensor(path, copy_tensor(leaf), stored_values.kind_of(leaf))
        if isinstance(leaf, np.ndarray | np.generic):
            tensor = stored_values.to_tensor(path, leaf)
            kind = ARRAY
            if isinstance(leaf, np.generic):
                kind = SCALAR
            return split.add_tensor(path, tensor, kind)
        _check_plain(path, leaf)
        return leaf

    split.structure = map_leaves(name, state, split_leaf)
    return split


def read_structure(name: str, content: Tensor, stored_name: Callable[[str], str]) -> Any:
    """Return a state with a `StoredValue` in place of each stored one.

    `stored_name` returns the name that the files have for a name in the structure.
    """
    plain = stored_values.from_bytes(content)
    entries = iter(plain["stored"])

    def restore_leaf(_: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        tensor_name, kind, placements = next(entries)
        return StoredValue(leaf, stored_name(tensor_name), kind, placements)

    return map_leaves(name, plain["structure"], restore_leaf)


def map_leaves(path: str, value: Any, change: Callable[[str, Any], Any]) -> Any:
    """Return a copy of nested containers, with `change(path, leaf)` in place of each leaf."""
    if type(value) not in _CONTAINERS:
        return change(path, value)
    if isinstance(value, dict):
        mapping = cast("Any", value)
        mapped: Any = type(mapping)()
        for key, item in mapping.items():
            if type(key) is not str:
                _check_plain(f"the key {checks.short_repr(key)} of {path}", key)
            mapped[key] = map_leaves(f"{path}.{key}", item, change)
        if hasattr(mapping, "_metadata"):  # torch's, of a module's state
            mapped._metadata = map_leaves(f"{path}._metadata", mapping._metadata, change)
        return mapped
    items = [map_leaves(f"{path}.{index}", item, change) for index, item in enumerate(value)]
    if isinstance(value, tuple):
        return tuple(items)
    return items


def _free_name(path: str, used: Mapping[str, Tensor]) -> str:
    """Return a path as a name that a file can hold, and that is not used."""
    name = path.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair is not UTF-8
    while name in used:  # {"a.b": …} and {"a": {"b": …}} give the same path
        name += "~"
    return name


def _check_plain(path: str, value: Any) -> None:
    """Raise a TypeError if `torch.load(weights_only=True)` can't read a value."""
    value_type = cast("type[Any]", type(value))
    if value_type not in _PLAIN_TYPES:
        raise unsupported(path, f"of {stored_values.full_name(value_type)}")
    if value_type is int and value.bit_length() > _MAX_INT_BITS:
        raise unsupported(path, f"an integer of more than {_MAX_INT_BITS} bits")
