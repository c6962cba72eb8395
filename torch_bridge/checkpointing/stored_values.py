"""The tensors of a saved state before they are read, and how each is rebuilt.

A tensor that wraps inner tensors (`distributed.subclasses`) is stored as these, under its path and
their names, and its context is in the structure. If a DTensor has such a shard on any rank, each
rank stores its own shard, since no general way exists to join them:

    exp_avg, 4096 × 64, of 2 ranks with a shard of an 8-bit class each
        StoredShard of StoredSubclass of {codes: 2048 × 64, scale: 512, qmap: 256}

Nothing in a checkpoint calls anything but the `__tensor_unflatten__` of a class in torch's list of
safe globals.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from torch_bridge.checkpointing import numpy_values
from torch_bridge.distributed.dtensors import shard_of

TENSOR = "tensor"


@dataclass(frozen=True)
class StoredTensor:
    """A plain tensor, a plain DTensor, or a NumPy value."""

    name: str
    kind: str
    """"tensor", or one of the kinds of `numpy_values`."""
    meta: Tensor
    """An empty tensor or parameter with its dtype, shape, stride, and `requires_grad`."""
    placements: list[int | None] | None
    """The `placements_of` the saved DTensor; None for a plain tensor."""


@dataclass(frozen=True)
class StoredSubclass:
    """A tensor that wraps inner tensors."""

    class_name: str
    """The name of its class in torch's list of safe globals."""
    context: Any
    """What `__tensor_flatten__` returned, plain data."""
    inner: "dict[str, Stored | Tensor]"
    """The inner tensors by name. Those that a file can't hold are in the structure."""
    meta: Tensor
    """As in `StoredTensor`."""


@dataclass(frozen=True)
class StoredShard:
    """A DTensor of which each rank has stored its shard."""

    name: str
    """The name that its whole tensor would have."""
    local: "Stored | Tensor"
    """This rank's shard."""
    coordinates: str | None
    """The `mesh_coordinates` of the rank."""
    meta: Tensor
    """As in `StoredTensor`, of the whole tensor."""
    placements: list[int | None] | None
    """As in `StoredTensor`."""
    like: Tensor | None = None
    """A DTensor of the loading run that is sharded in the same way; None before that is known."""

    @property
    def class_name(self) -> str:
        """The class of the shard, as in `StoredSubclass`."""
        return getattr(self.local, "class_name", "torch.Tensor")


Stored = StoredTensor | StoredSubclass | StoredShard


def empty_meta(tensor: Tensor) -> Tensor:
    """Return an empty tensor of the same dtype, shape and stride."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def with_flags_of(leaf: Tensor, tensor: Tensor) -> Tensor:
    """Return the tensor, as a parameter if the leaf is one, and with its `requires_grad`."""
    if isinstance(leaf, nn.Parameter):
        return nn.Parameter(tensor, leaf.requires_grad)
    if leaf.requires_grad:
        return tensor.detach().requires_grad_()  # a tied tensor may have it under one name only
    return tensor


def map_tensors(leaf: Any, change: Callable[[StoredTensor], StoredTensor]) -> Any:
    """Return a leaf of a structure, with each `StoredTensor` in it changed."""
    if isinstance(leaf, StoredTensor):
        return change(leaf)
    if isinstance(leaf, StoredShard):
        return replace(leaf, local=map_tensors(leaf.local, change))
    if isinstance(leaf, StoredSubclass):
        inner = {name: map_tensors(value, change) for name, value in leaf.inner.items()}
        return replace(leaf, inner=inner)
    return leaf


def walk(leaf: Any) -> "Generator[Stored]":
    """Yield all stored values in a leaf of a structure, itself first; none for a plain value."""
    if isinstance(leaf, Stored):
        yield leaf
    if isinstance(leaf, StoredShard):
        yield from walk(leaf.local)
    if isinstance(leaf, StoredSubclass):
        for value in leaf.inner.values():
            yield from walk(value)


def rebuild(leaf: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value of a leaf of a structure, from the tensors of these names."""
    if isinstance(leaf, StoredTensor):
        tensor = tensors[leaf.name]
        if leaf.kind == TENSOR:
            return with_flags_of(leaf.meta, tensor)
        return numpy_values.from_bytes(leaf.kind, tensor)
    if isinstance(leaf, StoredSubclass):
        value_type = class_in_safe_globals(leaf.class_name)
        inner = {name: rebuild(value, tensors) for name, value in leaf.inner.items()}
        shape, stride = leaf.meta.shape, leaf.meta.stride()
        tensor = value_type.__tensor_unflatten__(inner, leaf.context, shape, stride)
        return _with_flags_of_meta(leaf.meta, tensor)
    if isinstance(leaf, StoredShard):
        assert leaf.like is not None
        local = rebuild(leaf.local, tensors)
        tensor = shard_of(leaf.like, local, leaf.meta)
        return _with_flags_of_meta(leaf.meta, tensor)
    return leaf


def _with_flags_of_meta(meta: Tensor, rebuilt: Tensor) -> Tensor:
    if isinstance(meta, nn.Parameter):
        return nn.Parameter(rebuilt, meta.requires_grad)
    return rebuilt.requires_grad_(meta.requires_grad)  # its class may lack `detach`


# Wrapped tensors in a structure as plain values: dictionaries that torch.load reads.


def to_plain(stored: "Stored | Tensor") -> Any:
    """Return a stored tensor as dictionaries. A tensor in the structure stays as it is."""
    match stored:
        case StoredTensor(name=name, meta=meta):
            return {"name": name, "meta": meta}
        case StoredSubclass():
            inner = {name: to_plain(value) for name, value in stored.inner.items()}
            return {
                "class": stored.class_name,
                "context": stored.context,
                "inner": inner,
                "meta": stored.meta,
            }
        case StoredShard():
            return {
                "whole": stored.name,
                "local": to_plain(stored.local),
                "coordinates": stored.coordinates,
                "placements": stored.placements,
                "meta": stored.meta,
            }
        case _:
            return stored


def from_plain(plain: Any) -> "Stored | Tensor":
    """Undo `to_plain`."""
    match plain:
        case {"name": name, "meta": meta}:
            return StoredTensor(name, TENSOR, meta, None)
        case {"class": class_name, "context": context, "inner": inner, "meta": meta}:
            stored = {name: from_plain(value) for name, value in inner.items()}
            return StoredSubclass(class_name, context, stored, meta)
        case {"whole": name, "local": local, "coordinates": coordinates, "meta": meta}:
            return StoredShard(name, from_plain(local), coordinates, meta, plain["placements"])
        case _:
            return plain


# Torch's list of safe globals.


def name_in_safe_globals(value_type: type[Any]) -> str | None:
    """Return the name of a class in torch's list of safe globals, or None if it is not there."""
    for name, safe in _safe_tensor_classes():
        if safe is value_type:
            return name
    return None


def class_in_safe_globals(name: str) -> Any:
    """Return the class of this name in torch's list of safe globals, or None if it is not there."""
    for safe_name, safe in _safe_tensor_classes():
        if safe_name == name:
            return safe
    return None


def _safe_tensor_classes() -> list[tuple[str, Any]]:
    """Return the tensor classes in torch's list of safe globals, by the names that it has."""
    classes: list[tuple[str, Any]] = []
    safe_globals = cast("list[Any]", torch.serialization.get_safe_globals())
    for safe in safe_globals:
        name = ""
        value_type = safe
        if isinstance(safe, tuple):
            value_type, name = cast("tuple[Any, str]", safe)
        if isinstance(value_type, type) and issubclass(value_type, Tensor):
            classes.append(
                (name or f"{value_type.__module__}.{value_type.__qualname__}", value_type)
            )
    return classes
