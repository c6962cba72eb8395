"""How a model is wrapped for several ranks, and what an update needs of the wrapper."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast
from weakref import WeakSet

from torch import Tensor, distributed, nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

from torch_bridge.core import warn
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.replicated import Replicated
from torch_bridge.distributed.sharded import Sharded, check_sharded, is_sharded

_MEANT_UNWRAPPED: WeakSet[nn.Module] = WeakSet()


class Wrapper(Protocol):
    """What an update needs of a model's wrapper."""

    module: nn.Module
    """The module under whose names parameters and buffers are saved."""
    size: int
    """The number of ranks that train the model."""
    copies: int
    """The number of ranks that hold the same gradient."""

    @property
    def may_send_fp16(self) -> bool:
        """Whether a collective may get gradients as fp16, where large ones overflow."""
        ...

    def check(self, parameters: Sequence[nn.Parameter]) -> None:
        """Refuse optimized parameters whose gradients are not averaged over the ranks.

        Raises:
            ValueError: There are some.
        """
        ...

    def micro_batch(self, is_last: bool) -> AbstractContextManager[Any] | None:
        """The context of a micro-batch's forward and backward pass, which may average the gradients.

        None where it would do nothing.
        """
        ...

    def reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        """Replace the values by their sum over all ranks, or by another operation, in place."""
        ...


class Unwrapped:
    """A plain module, on one rank."""

    size = copies = 1
    may_send_fp16 = False

    def __init__(self, model: nn.Module) -> None:
        self.module = model

    def check(self, parameters: Sequence[nn.Parameter]) -> None:
        """There is nothing to average."""

    def micro_batch(self, is_last: bool) -> None:
        """There is nothing to average."""

    def reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        """There is one rank."""


def wrapper_of(model: nn.Module, every_micro_batch: bool) -> Wrapper:
    """The wrapper of a model.

    Args:
        model: The module, compiled or not.
        every_micro_batch: Whether gradients are averaged after each micro-batch, or once an update.

    Warns:
        CurveWarning: A module without a wrapper, in a group of several ranks.

    Raises:
        ValueError: A wrapper that is not torch's `DistributedDataParallel` or `fully_shard`, or not around
            the whole model.
    """
    inner = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if isinstance(inner, DistributedDataParallel):
        check_unwrapped(cast("nn.Module", inner.module))
        return Replicated(inner, every_micro_batch)
    if is_sharded(inner):
        check_sharded(inner)
        return Sharded(inner, every_micro_batch)
    check_unwrapped(model)
    if inner not in _MEANT_UNWRAPPED and processes.has_group() and distributed.get_world_size() > 1:
        warn(
            f"the model is not wrapped, but {distributed.get_world_size()} ranks run: each rank trains its "
            "own model. Pass what distribute(model) returns to the step; if you want one model per rank, "
            "write distribute(model, None)"
        )
    return Unwrapped(model)


def mean_unwrapped(model: nn.Module) -> None:
    """Take it as meant that each rank trains this model, or a part of it, for itself."""
    _MEANT_UNWRAPPED.update(model.modules())


def check_unwrapped(model: nn.Module) -> None:
    """Refuse a model that is wrapped for several ranks, or has a part that is.

    Raises:
        ValueError: It names the wrapper.
    """
    for module in model.modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if found := kinds & {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}:
            raise ValueError(
                f"the model, or a part of it, is wrapped for several processes ({found.pop()}). A TrainStep "
                "takes a model that is wrapped as a whole: by DistributedDataParallel(model), or by "
                "fully_shard of its blocks and then of the model; distribute does either to a plain model"
            )
    if any(map(mesh_of, model.parameters())):
        raise ValueError("parameters of the model are DTensors, but it is not under fully_shard")
