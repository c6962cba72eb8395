"""Detect how a model is wrapped for several ranks."""

from typing import Any, cast
from weakref import WeakSet

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from torch_bridge.curve_api import checks, warn
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.parallelism import Parallelism
from torch_bridge.distributed.replicated import Replicated
from torch_bridge.distributed.sharded import Sharded, check_sharded, is_sharded

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")

_INDEPENDENT: WeakSet[nn.Module] = WeakSet()


def check_module(model: Any) -> None:
    """Raise a TypeError if a model is not a module, as after arguments in the wrong order."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model = {checks.short_repr(model)} must be a torch.nn.Module; it comes first"
        )


def parallelism_of(model: nn.Module, every_micro_batch: bool) -> Parallelism:
    """Return the interface to the model's parallelism.

    Args:
        model: The module, compiled or not.
        every_micro_batch: Average gradients after each micro-batch, not once per update.

    Warns:
        CurveWarning: The model has no wrapper, but there are several ranks.

    Raises:
        ValueError: The wrapper is not torch's `DistributedDataParallel` or `fully_shard`, or is not
            around the whole model.
    """
    inner = getattr(model, "_orig_mod", model)  # the module inside that of torch.compile
    if isinstance(inner, DistributedDataParallel):
        check_unwrapped(cast("nn.Module", inner.module))
        return Replicated(inner, every_micro_batch)
    if is_sharded(inner):
        check_sharded(inner)
        return Sharded(inner, every_micro_batch)
    check_unwrapped(model)
    _warn_if_independent(inner)
    return Parallelism(model)


def _warn_if_independent(model: nn.Module) -> None:
    """Warn if each rank trains its own model, unless `distribute` was called with `mode=None`."""
    if model in _INDEPENDENT or not processes.has_group():
        return
    size = distributed.get_world_size()
    if size > 1:
        warn(
            f"the model is not wrapped, but {size} ranks run: each rank trains its own model. Pass "
            "what distribute(model) returns to the step; if you want one model per rank, write "
            "distribute(model, None)"
        )


def mark_independent(model: nn.Module) -> None:
    """Mark the ranks' models as intentionally independent; silences the warning."""
    _INDEPENDENT.update(model.modules())


def check_unwrapped(model: nn.Module) -> None:
    """Reject a model that is wrapped for several ranks, or has a part that is.

    Raises:
        ValueError: The model is wrapped, or a part is; the message names the wrapper.
    """
    for module in model.modules():
        # By the class's name, since importing torch.distributed.fsdp takes most of a second.
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                raise ValueError(
                    f"the model, or a part of it, is wrapped for several processes "
                    f"({kind.__name__}). A TrainStep takes a model that is wrapped as a whole: by "
                    "DistributedDataParallel(model), or by fully_shard of its blocks and then of "
                    "the model; distribute does either to a plain model"
                )
    if any(mesh_of(parameter) is not None for parameter in model.parameters()):
        raise ValueError("parameters of the model are DTensors, but it is not under fully_shard")
