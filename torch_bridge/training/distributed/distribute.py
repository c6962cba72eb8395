"""Wrap a model for all ranks, and detect how it is wrapped."""

import os
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal, TypeVar, cast, get_args
from weakref import WeakSet

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from torch_bridge.training.distributed import processes
from torch_bridge.training.distributed.dtensors import mesh_of
from torch_bridge.training.distributed.parallelism import (
    DDPParallelism,
    FSDPParallelism,
    Parallelism,
    check_sharded,
    is_sharded,
    reshard,
)

Mode = Literal["ddp", "fsdp"]
Model = TypeVar("Model", bound=nn.Module)

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")

_INDEPENDENT: WeakSet[nn.Module] = WeakSet()
"""The models, and their parts, that each rank trains alone on purpose."""


def distribute(
    model: Model,
    mode: Mode | None = "ddp",
    *,
    blocks: type[nn.Module] | Sequence[type[nn.Module]] = (),
    device: torch.device | str | None = None,
    **options: Any,
) -> Model:
    """Move the model to this process's device and, with several processes, wrap it for all of them.

    Under `torchrun` it starts the process group (NCCL for CUDA, gloo for a CPU) unless there is
    one, gives every rank the weights and buffers of rank 0, and wraps the model. An update of a
    `TrainStep` over this model is then one update over all ranks. With one process, or with
    `mode=None`, the model is only moved.

    If a model is too large for one device, pass it in host memory: `"fsdp"` moves and shards one
    block at a time. Build the optimizer afterwards, over `model.parameters()`, because sharding
    replaces them.

    Sources: DDP, Li et al. 2020 (arXiv:2006.15704); sharded parameters, gradients and optimizer
    states, ZeRO, Rajbhandari et al. 2020 (arXiv:1910.02054); FSDP, Zhao et al. 2023
    (arXiv:2304.11277).

    Args:
        model: A module that is not wrapped yet.
        mode: `"ddp"` wraps the model in `torch.nn.parallel.DistributedDataParallel`: every rank has
            the whole model. `"fsdp"` applies `torch.distributed.fsdp.fully_shard`: every rank has a
            shard of each parameter. With None, every rank trains its own model, and a `TrainStep`
            does not warn about that.
        blocks: Module classes, such as a transformer's block. `"fsdp"` shards each module of these
            classes separately, and gathers it only while it computes. `"ddp"` ignores them.
        device: By default the CUDA device of this process's `LOCAL_RANK`, or the CPU if there is no
            CUDA device.
        **options: Keyword arguments of torch's wrapper, such as `find_unused_parameters=True`, or
            `mesh=` of two dimensions for hybrid sharding. One process ignores them.

    Returns:
        The model; for `"ddp"` a `DistributedDataParallel` around it.

    Raises:
        TypeError: A block is not a module class; or, with several processes, torch's wrapper has no
            such option.
        ValueError: The mode is unknown; no module of the model has a class of `blocks`; the model
            is already wrapped; the device is neither a CPU nor CUDA.
        RuntimeError: torch does not know the device, or it does not exist.

    >>> from torch import nn
    >>> from torch_bridge import distribute
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> model is distribute(model, "fsdp", blocks=nn.Linear, device="cpu")  # on one process
    True
    """
    if mode is not None:
        checks.one_of("mode", mode, get_args(Mode))
    check_unwrapped(model)
    classes: tuple[Any, ...] = (blocks,) if isinstance(blocks, type | str) else tuple(blocks)
    for block in classes:
        if not isinstance(block, type):
            raise TypeError(f"blocks has {checks.short_repr(block)}; it must be a class of modules")
        if not any(isinstance(module, block) for module in model.modules()):
            raise ValueError(f"blocks has {block.__name__}, but no module of the model is one")
    target = _select_device(device)
    if mode is None:
        _INDEPENDENT.update(model.modules())
        return model.to(target)
    if processes.world_size() == 1:
        return model.to(target)

    if not distributed.is_initialized():
        if target.type == "cuda":
            distributed.init_process_group("nccl", device_id=target)
        else:
            distributed.init_process_group("gloo")
    if mode == "ddp":
        return cast("Model", DistributedDataParallel(model.to(target), **options))
    _shard(model, classes, target, options)
    return model


def _select_device(device: torch.device | str | None) -> torch.device:
    """Return the checked device of this process; a CUDA device becomes torch's current one."""
    has_cuda = torch.cuda.is_available()
    if device is None:
        device = "cuda" if has_cuda else "cpu"
    target = torch.device(device)
    if target.type == "cpu":
        return target
    if target.type != "cuda" or not has_cuda:
        raise ValueError(checks.must("device", device, "be the CPU or an available CUDA device"))

    count = torch.cuda.device_count()
    if target.index is None:  # pyright: ignore[reportUnnecessaryComparison]  (it is None for "cuda")
        local_rank = int(os.environ.get("LOCAL_RANK", processes.rank() % count))
        target = torch.device("cuda", local_rank)
    torch.cuda.set_device(target)
    return target


def _shard(
    model: nn.Module,
    classes: tuple[type[nn.Module], ...],
    device: torch.device,
    options: dict[str, Any],
) -> None:
    """Move the model to the device and shard it, one block at a time."""
    # Start-up: these imports take most of a second.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if options.get("mesh") is None:
        options["mesh"] = init_device_mesh(device.type, (processes.world_size(),))
    # Inner modules first, as fully_shard requires. One at a time, so that the whole model
    # is never on the device: by the time the next one moves, this one is sharded.
    for module in reversed(list(model.modules())):
        if module is model or isinstance(module, classes):
            module.to(device)
            _broadcast_from_main(chain(module.parameters(), module.buffers()))
            fully_shard(module, **options)


@torch.no_grad()
def _broadcast_from_main(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        # A DTensor belongs to an inner module, and was sent before it was sharded.
        if mesh_of(tensor) is None:
            contiguous = tensor.contiguous()  # as collectives require
            distributed.broadcast(contiguous, 0)
            if contiguous is not tensor:
                tensor.copy_(contiguous)


def parallelism_of(model: nn.Module, *, every_micro_batch: bool) -> Parallelism:
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
    inner = getattr(model, "_orig_mod", model)  # the module that torch.compile has wrapped
    if isinstance(inner, DistributedDataParallel):
        check_unwrapped(cast("nn.Module", inner.module))
        return DDPParallelism(inner, every_micro_batch=every_micro_batch)
    if is_sharded(inner):
        reshard(inner)
        check_sharded(inner)
        return FSDPParallelism(inner, every_micro_batch=every_micro_batch)
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


def check_unwrapped(model: nn.Module) -> None:
    """Reject a model that is wrapped for several ranks, or has a part that is.

    Raises:
        ValueError: The model is wrapped, or a part is; the message names the wrapper.
    """
    # By the class's name, since importing torch.distributed.fsdp takes most of a second.
    classes = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    wrappers = sorted(classes.intersection(_WRAPPERS))
    if wrappers or any(mesh_of(parameter) is not None for parameter in model.parameters()):
        raise ValueError(
            "the model, or a part of it, is wrapped for several processes: it has "
            f"{wrappers or 'DTensors'}. A TrainStep takes a model that is wrapped as a whole: by "
            "DistributedDataParallel(model), or by fully_shard of its blocks and then of the "
            "model; distribute does either to a plain model"
        )
