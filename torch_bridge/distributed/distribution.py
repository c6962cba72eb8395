"""A model wrapped for all ranks, in one call."""

import inspect
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from torch_bridge.curve_api import checks
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.wrappers import check_unwrapped, mark_independent

Mode = Literal["ddp", "fsdp"]
Model = TypeVar("Model", bound=nn.Module)

_RESERVED = {"module", "self"}


def distribute(
    model: Model,
    mode: Mode | None = "ddp",
    *,
    blocks: type[nn.Module] | Sequence[type[nn.Module]] = (),
    device: torch.device | str | None = None,
    **options: Any,
) -> Model:
    """Move the model to this process's device and, with several processes, wrap it for all of them.

    Under `torchrun` it starts the process group (NCCL for CUDA, gloo for a CPU) unless there is one, gives
    every rank the weights and buffers of rank 0, and wraps the model. An update of a `TrainStep` over it is
    then one update over all ranks. With one process, or with `mode=None`, the model is moved and returned;
    its arguments are checked all the same.

    A model that is too large for one device may come in host memory: `"fsdp"` moves and shards one block
    at a time. Build the optimizer afterwards, over `model.parameters()`: sharding replaces them.

    Sources: DDP, Li et al. 2020 (arXiv:2006.15704); sharded parameters, gradients and optimizer states,
    ZeRO, Rajbhandari et al. 2020 (arXiv:1910.02054); FSDP, Zhao et al. 2023 (arXiv:2304.11277).

    Args:
        model: A module that is not wrapped yet.
        mode: `"ddp"`: `torch.nn.parallel.DistributedDataParallel`, every rank holds the whole model.
            `"fsdp"`: `torch.distributed.fsdp.fully_shard`, every rank holds a shard of each parameter.
            None: every rank trains a model of its own, and a `TrainStep` over it does not warn of that.
        blocks: Module classes, such as a transformer's block. `"fsdp"` shards each of their modules for
            itself, and gathers it only while it computes. `"ddp"` ignores them.
        device: By default the CUDA device of this process's `LOCAL_RANK`, or the CPU where there is no CUDA
            device.
        **options: Keyword arguments of torch's wrapper, such as `find_unused_parameters=True`, or `mesh=`
            of two dimensions for hybrid sharding.

    Returns:
        The model; for `"ddp"` a `DistributedDataParallel` around it.

    Raises:
        TypeError: `model` is no module, a block is no module class, or torch's wrapper has no such option.
        ValueError: An unknown mode; a block class that no module of the model has; a model that is wrapped
            already; a device that is neither a CPU nor CUDA, or that is not there.
        RuntimeError: torch does not know the device.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> model is distribute(model, "fsdp", blocks=nn.Linear, device="cpu")  # on one process
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model = {model!r} must be a torch.nn.Module")
    if mode is not None:
        checks.one_of("mode", mode, get_args(Mode))
    check_unwrapped(model)
    found = modules_of(model, blocks)
    _check_options(mode, options)
    chosen = _device(device)
    if mode is None:
        mark_independent(model)
    if mode is None or processes.world_size() == 1:
        return model.to(chosen)
    if not distributed.is_initialized():
        on_cuda = chosen.type == "cuda"
        distributed.init_process_group("nccl" if on_cuda else "gloo", device_id=chosen if on_cuda else None)
    if mode == "ddp":
        return cast("Model", DistributedDataParallel(model.to(chosen), **options))
    from torch.distributed.device_mesh import init_device_mesh  # start-up: with the next, most of a second
    from torch.distributed.fsdp import fully_shard  # start-up

    if options.get("mesh") is None:
        options["mesh"] = init_device_mesh(chosen.type, (processes.world_size(),))
    for module in [*reversed(found), model]:  # inner modules first
        module.to(chosen)
        _broadcast_from_main(chain(module.parameters(), module.buffers()))
        fully_shard(module, **options)
    return model


def modules_of(model: nn.Module, blocks: Any) -> list[nn.Module]:
    """The modules of these classes, each before those inside it, without the model itself."""
    classes = classes_of(model, blocks)
    return [module for module in model.modules() if module is not model and isinstance(module, classes)]


def classes_of(model: nn.Module, blocks: Any) -> tuple[type[nn.Module], ...]:
    """One class of blocks, or a sequence of them, as a tuple.

    Raises:
        TypeError: Neither a module class nor a sequence of module classes.
        ValueError: No module of the model has one of the classes.
    """
    if not isinstance(blocks, type) and not checks.is_ordered(blocks):
        raise TypeError(f"blocks = {blocks!r} must be a class of modules, or several")
    classes: tuple[Any, ...] = (blocks,) if isinstance(blocks, type) else tuple(blocks)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise TypeError(f"blocks has {kind!r}; it must be a class of modules")
        if not any(isinstance(module, kind) for module in model.modules()):
            raise ValueError(f"blocks has {kind.__name__}, and no module of the model is one")
    return classes


def _check_options(mode: Mode | None, options: dict[str, Any]) -> None:
    if not options:
        return
    from torch.distributed.fsdp import fully_shard  # start-up: most of a second

    known: dict[str, Any] = {"ddp": DistributedDataParallel.__init__, "fsdp": fully_shard}
    wrappers = [known[name] for name in known if mode in (None, name)]
    names = {name for wrapper in wrappers for name in inspect.signature(wrapper).parameters} - _RESERVED
    if unknown := options.keys() - names:
        raise TypeError(f"{sorted(unknown)} are not options of torch's wrapper, which has {sorted(names)}")


def _device(device: torch.device | str | None) -> torch.device:
    """The device of this process, checked; a CUDA device becomes torch's current one."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device = {device!r} must be the CPU, or a CUDA device")
    if chosen.type == "cpu":
        return chosen
    if not torch.cuda.is_available():
        raise ValueError(f"device = {device!r}, and torch sees no CUDA device")
    if chosen.index is None:  # pyright: ignore[reportUnnecessaryComparison]  (it is None for "cuda")
        local = int(os.environ.get("LOCAL_RANK", processes.rank() % torch.cuda.device_count()))
        chosen = torch.device("cuda", local)
    if chosen.index >= torch.cuda.device_count():
        raise ValueError(f"device = {chosen}, and there are {torch.cuda.device_count()} CUDA devices")
    torch.cuda.set_device(chosen)
    return chosen


@torch.no_grad()
def _broadcast_from_main(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        if not mesh_of(tensor):  # what is a DTensor was sent before it was sharded
            whole = tensor.contiguous()
            distributed.broadcast(whole, 0)
            if whole is not tensor:
                tensor.copy_(whole)
