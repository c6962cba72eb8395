"""DTensors: tensors that torch shards or replicates over the ranks of a device mesh."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torch_bridge.training.distributed.subclasses import map_inner, wraps_tensors


def mesh_of(tensor: Tensor) -> Any:
    """Return the device mesh of a DTensor, or None for a plain tensor."""
    return getattr(tensor, "device_mesh", None)


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, in the same memory, or a plain tensor itself."""
    # Not `to_local()`, which is an operator of autograd. Just one attribute look-up, since it runs
    # for every gradient of every update.
    return getattr(tensor, "_local_tensor", tensor)


def host_copier() -> Callable[[Tensor], Tensor]:
    """Return a function that copies tensors to host memory, and tied plain tensors only once."""
    copies: dict[object, Tensor] = {}
    # Not a recursive function in here: it would refer to itself, so that the copies would stay in
    # memory until Python collects garbage.
    return lambda tensor: _copy_to_host(tensor, copies)


def _copy_to_host(tensor: Tensor, copies: dict[object, Tensor]) -> Tensor:
    if wraps_tensors(local_shard(tensor)):
        return map_inner(tensor, lambda inner: _copy_to_host(inner, copies))
    # Tied DTensors are copied under every name: a rank whose shard is empty can't tell that they
    # are tied. Empty tensors all have the same address.
    if mesh_of(tensor) is not None or not tensor.numel():
        return tensor.detach().to("cpu", copy=True)
    layout = tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
    memory = tensor.device, tensor.data_ptr(), *layout
    if memory not in copies:
        copies[memory] = tensor.detach().to("cpu", copy=True)
    return copies[memory]


def clone(tensor: Tensor) -> Tensor:
    """Return a copy without gradients, on the same device."""
    if wraps_tensors(local_shard(tensor)):
        return map_inner(tensor, clone)
    return tensor.detach().clone()


def mesh_coordinates(tensor: Any) -> str | None:
    """Return this rank's coordinates in the mesh of a DTensor; None for a plain tensor."""
    mesh = mesh_of(tensor)
    if mesh is None:
        return None
    return f"{tuple(mesh.shape)} ranks at {mesh.get_coordinate()}"


def is_first_copy(tensor: Any) -> bool:
    """Return True on the first of the ranks that have the same shard of a DTensor."""
    coordinates = mesh_of(tensor).get_coordinate()
    pairs = zip(tensor.placements, coordinates, strict=True)
    return not any(placement.is_replicate() and coordinate for placement, coordinate in pairs)


def shard_like(like: Tensor, value: Tensor) -> Tensor:
    """Return the value, sharded as `like` is. A DTensor stays as it is."""
    mesh = mesh_of(like)
    if mesh is None or mesh_of(value) is not None:
        return value
    from torch.distributed.tensor import distribute_tensor  # start-up: a third of a second

    # With src_data_rank=None each rank cuts its shard from its own copy, without a collective.
    return distribute_tensor(value, mesh, cast("Any", like).placements, src_data_rank=None)


def placements_of(tensor: Tensor) -> list[int | None] | None:
    """Return, for each mesh dimension, the tensor dimension that is sharded over it.

    None stands for a mesh dimension over which the DTensor is replicated. A matrix whose rows are
    sharded over the second dimension of a mesh has [None, 0]. The result is None for a plain
    tensor, and for a DTensor with a different kind of placement.
    """
    if mesh_of(tensor) is None:
        return None
    dims: list[int | None] = []
    for placement in cast("Any", tensor).placements:
        name = type(placement).__name__
        if name == "Shard":
            dims.append(placement.dim)
        elif name == "Replicate":
            dims.append(None)
        else:
            return None
    return dims


def empty_dtensor(
    mesh: Any, shape: Sequence[int], dtype: torch.dtype, placements: Sequence[int | None]
) -> Tensor:
    """Create an uninitialized DTensor in host memory. `placements` are those of `placements_of`."""
    from torch.distributed import tensor  # start-up: a third of a second

    torch_placements: list[Any] = []
    for dim in placements:
        if dim is None:
            torch_placements.append(tensor.Replicate())
        else:
            torch_placements.append(tensor.Shard(dim))
    empty = cast("Any", tensor).empty(
        shape, dtype=dtype, device_mesh=mesh, placements=torch_placements
    )
    return empty.to("cpu")
