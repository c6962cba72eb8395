"""DTensors, which torch spreads over ranks: told apart from plain tensors, and taken apart."""

from typing import Any, cast

from torch import Tensor


def mesh_of(tensor: Tensor) -> Any:
    """The device mesh that a DTensor is spread over; None for a plain tensor."""
    return getattr(tensor, "device_mesh", None)


def local_part(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this rank holds, which shares its memory; a plain tensor as it is.

    Not `to_local()`, which is an operator of autograd.
    """
    return cast("Any", tensor)._local_tensor if mesh_of(tensor) else tensor


def placed_as(own: Tensor, value: Tensor) -> Tensor:
    """The value, sharded if `own` is. A whole tensor is cut without a collective."""
    if not (mesh := mesh_of(own)) or mesh_of(value):
        return value
    from torch.distributed.tensor import distribute_tensor  # a third of a second, for sharded models alone

    return distribute_tensor(value, mesh, cast("Any", own).placements, src_data_rank=None)
