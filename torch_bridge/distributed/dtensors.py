"""DTensors: tensors that torch spreads over the ranks of a device mesh."""

from typing import Any, cast

from torch import Tensor


def mesh_of(tensor: Tensor) -> Any:
    """The device mesh of a DTensor; None for a plain tensor."""
    return getattr(tensor, "device_mesh", None)


def local_part(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this rank holds, in the same memory; a plain tensor as it is.

    Not `to_local()`, which is an operator of autograd. One look-up of an attribute, since it runs for every
    gradient of every update.
    """
    return getattr(tensor, "_local_tensor", tensor)


def placed_as(like: Tensor, value: Tensor) -> Tensor:
    """The value, sharded as `like` is. A plain tensor is cut without a collective; a DTensor stays."""
    if not (mesh := mesh_of(like)) or mesh_of(value):
        return value
    from torch.distributed.tensor import distribute_tensor  # start-up: a third of a second

    return distribute_tensor(value, mesh, cast("Any", like).placements, src_data_rank=None)
