"""DTensors: tensors that torch spreads over the ranks of a device mesh."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor


def mesh_of(tensor: Tensor) -> Any:
    """The device mesh of a DTensor; None for a plain tensor."""
    return getattr(tensor, "device_mesh", None)


def local_shard(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this rank holds, in the same memory; a plain tensor as it is.

    Not `to_local()`, which is an operator of autograd. One look-up of an attribute, since it runs for every
    gradient of every update.
    """
    return getattr(tensor, "_local_tensor", tensor)


def memory_key(tensor: Tensor) -> object:
    """Equal for tensors that show the same memory in the same way, as tied parameters do."""
    local = local_shard(tensor)
    if not local.numel():
        return id(tensor)  # none of these has memory
    layout = local.dtype, local.shape, local.stride(), local.is_conj(), local.is_neg()
    return local.device, local.data_ptr(), *layout


def host_copier() -> Callable[[Tensor], Tensor]:
    """Return a function that copies tensors to host memory, and plain tensors that are tied only once.

    Each rank saves its shards of tied DTensors under every name: one without a share can't tell that they are
    tied.
    """
    copies: dict[object, Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        if mesh_of(tensor):
            return _host_copy(tensor)
        memory = memory_key(tensor)
        if memory not in copies:
            copies[memory] = _host_copy(tensor)
        return copies[memory]

    return copy


def _host_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg()


def shard_like(like: Tensor, value: Tensor) -> Tensor:
    """The value, sharded as `like` is. A plain tensor is cut without a collective; a DTensor stays."""
    if not (mesh := mesh_of(like)) or mesh_of(value):
        return value
    from torch.distributed.tensor import distribute_tensor  # start-up: a third of a second

    return distribute_tensor(value, mesh, cast("Any", like).placements, src_data_rank=None)


def placements_of(tensor: Tensor) -> list[int | None] | None:
    """For each mesh dimension the tensor dimension that a DTensor is sharded along, None if it is replicated.

    None for a plain tensor, and for a DTensor with another kind of placement.
    """
    if not mesh_of(tensor):
        return None
    found: list[int | None] = []
    for placement in cast("Any", tensor).placements:
        if type(placement).__name__ not in ("Shard", "Replicate"):
            return None
        found.append(placement.dim if placement.is_shard() else None)
    return found


def empty_dtensor(
    parameter: Tensor, shape: Sequence[int], dtype: torch.dtype, placements: Sequence[int | None]
) -> Tensor:
    """A DTensor in host memory over the mesh of a parameter, with what `placements_of` told of another one.

    Where that one's mesh had another number of dimensions, the tensor is sharded over the mesh dimensions
    that the parameter is sharded over.
    """
    from torch.distributed import tensor  # start-up: a third of a second

    own = placements_of(parameter) or []
    if len(own) != len(placements):
        dim = next((each for each in placements if each is not None), None)
        placements = [None if each is None else dim for each in own]
    chosen = [tensor.Replicate() if each is None else tensor.Shard(each) for each in placements]
    make = cast("Any", tensor).empty
    return make(shape, dtype=dtype, device_mesh=mesh_of(parameter), placements=chosen).to("cpu")


def local_region(tensor: Tensor) -> tuple[list[int], list[int]]:
    """Return the offsets and the shape of this rank's part of a DTensor."""
    from torch.distributed.tensor import _utils  # start-up: a third of a second

    found = cast("Any", tensor)
    shape, offsets = _utils.compute_local_shape_and_global_offset(
        found.shape, found.device_mesh, found.placements
    )
    return list(offsets), list(shape)
