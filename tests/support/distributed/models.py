"""Models over several ranks: under torch's wrappers, and from `distribute`."""

from typing import Any, cast

import torch
from support.training.models import seeded
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_bridge import distribute


def wrapped(wrapper: str, model: nn.Module) -> nn.Module:
    """Return the model under a wrapper of torch for all ranks."""
    if wrapper == "plain":
        return model
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    if wrapper == "static ddp":
        return DistributedDataParallel(model, static_graph=True)
    if wrapper == "ddp by fp16":
        replicated = DistributedDataParallel(model)
        replicated.register_comm_hook(None, fp16_compress_hook)
        return replicated
    if wrapper == "fsdp by fp16":
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float16)
        return cast("Any", fully_shard)(model, mp_policy=policy)
    size = distributed.get_world_size()
    if wrapper == "hybrid":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("copy", "shard"))
    else:
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))
    first_layer = next(iter(model.children()))
    fully_shard(first_layer, mesh=mesh)
    sharded: Any = fully_shard(model, mesh=mesh)
    if wrapper == "fsdp left off":  # by an earlier training loop
        sharded.set_requires_gradient_sync(False)
    return sharded


def net(seed: int) -> nn.Module:
    """Return layers with a counting buffer; one of them has fewer rows than there are ranks."""
    with seeded(seed):
        model = nn.Sequential(
            nn.Linear(3, 5),
            nn.BatchNorm1d(5),
            nn.Linear(5, 1),
            nn.Linear(1, 2),
        )
    model[1].get_buffer("num_batches_tracked").add_(seed)
    return model


def distributed_net(parallelism: str, seed: int = 0) -> Any:
    """Return the net over two ranks, as `distribute` returns it."""
    model = net(seed)
    if parallelism == "ddp":
        return distribute(model, "ddp", device="cpu")
    if parallelism == "fsdp":
        return distribute(model, "fsdp", device="cpu")
    if parallelism == "blocks":
        return distribute(model, "fsdp", device="cpu", blocks=[nn.Linear])
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copy", "shard"))
    return distribute(model, "fsdp", device="cpu", blocks=[nn.Linear], mesh=mesh)
