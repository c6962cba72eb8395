"""`fully_shard` (FSDP2) in an update: which models it trains, and when gradients are averaged."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ReduceOp
from torch.optim import Optimizer

from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.parallelism import Parallelism

# Optimizers that, in torch 2.13, raise in the middle of an update if parameters are DTensors.
_NOT_SHARDABLE = ("Adafactor", "Muon", "Rprop")
_NOT_SHARDABLE_IF_FUSED = ("Adagrad", "SGD")


class Sharded(Parallelism):
    """A model under `fully_shard` (FSDP2): every rank holds a shard of each parameter and gradient.

    On a mesh of two dimensions the shards are replicated along the first.
    """

    is_distributed = True

    def __init__(self, model: nn.Module, every_micro_batch: bool) -> None:
        super().__init__(model)
        self._model = cast("Any", model)
        # An earlier training loop may have switched these off, perhaps only in parts of the model.
        self._model.set_requires_gradient_sync(True)
        self._model.set_requires_all_reduce(True)
        mesh = mesh_of(next(model.parameters()))
        self._groups = mesh.get_all_groups()
        self.size = mesh.size()
        ranks = mesh.mesh.flatten().tolist()
        self.rank = ranks.index(distributed.get_rank())
        if mesh.ndim == 2:
            self.replicas = mesh.size(0)
        # Gradients reach `parameter.grad` only when they are averaged, which costs nothing on one
        # rank.
        self._every_micro_batch = every_micro_batch or self.size == 1
        self.may_send_fp16 = any(_sends_fp16(module) for module in _sharded_modules(model))

    def micro_batch_context(self, is_last: bool) -> AbstractContextManager[Any] | None:
        if is_last or self._every_micro_batch:
            return None
        return self._unsynchronized()

    @contextmanager
    def _unsynchronized(self) -> Generator[None]:
        self._model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._model.set_requires_gradient_sync(True)

    def all_reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        for group in self._groups:  # one for each mesh dimension; together they reach all ranks
            distributed.all_reduce(values, operation, group=group)


def check_sharded(model: nn.Module) -> None:
    """Reject a model that `fully_shard` has sharded in a way that an update does not support.

    Raises:
        ValueError: Only a part of the model is sharded, or it is sharded over several meshes or
            with another kind of parallelism; it has an offload policy; or its gradients may not be
            averages over ranks.
    """
    reshard(model)
    parameters = list(model.parameters())
    if not _are_sharded_as_one(parameters):
        places = {_place_of(parameter) for parameter in parameters}
        raise ValueError(
            "the model is sharded in part, over several meshes, with an offload policy or with "
            f"another kind of parallelism: its parameters are {sorted(places)}. Apply fully_shard "
            "to its blocks and then to the model, over one mesh of one dimension, or of two for "
            "hybrid sharding"
        )
    # Hybrid sharding divides by a given factor twice, so only torch's default, None, is sure to
    # average.
    if any(group.gradient_divide_factor is not None for group in _parameter_groups(model)):
        size = mesh_of(parameters[0]).size()
        raise ValueError(
            "set_gradient_divide_factor was called on the model or a part of it, so gradients may "
            f"not be averages over the {size} ranks, which a training step needs. Leave that call "
            "out; for a loss per token of all ranks return (loss.sum(), number of tokens) from "
            "loss_fn"
        )


def _are_sharded_as_one(parameters: Sequence[nn.Parameter]) -> bool:
    """Return True if one mesh holds all parameters: sharded, or sharded and then replicated."""
    if not parameters:
        return False
    first: Any = parameters[0]
    mesh = mesh_of(first)
    if mesh is None or any(mesh_of(parameter) != mesh for parameter in parameters):
        return False
    if first.device.type != mesh.device_type:  # an offload policy keeps shards in host memory
        return False
    match first.placements:
        case [sharded]:
            return sharded.is_shard()
        case [replicated, sharded]:  # hybrid sharding
            return replicated.is_replicate() and sharded.is_shard()
        case _:
            return False


def _place_of(parameter: nn.Parameter) -> str:
    placements = getattr(parameter, "placements", "plain")
    return f"{placements} on {parameter.device.type}"


def check_shardable(optimizer: Optimizer) -> None:
    """Reject an optimizer that torch cannot run on sharded parameters.

    Raises:
        ValueError: Torch cannot run it; the message names the optimizer.
    """
    kind = type(optimizer).__name__
    if kind in _NOT_SHARDABLE:
        unsupported = kind
    elif kind in _NOT_SHARDABLE_IF_FUSED and _is_fused(optimizer):
        unsupported = f"{kind} with fused=True"
    else:
        return
    raise ValueError(f"torch cannot run {unsupported} on parameters under fully_shard")


def _is_fused(optimizer: Optimizer) -> bool:
    return any(group.get("fused") for group in optimizer.param_groups)


def is_sharded(module: nn.Module) -> bool:
    """Return True if `fully_shard` was called on this module itself."""
    # By the class's name, since importing torch.distributed.fsdp takes most of a second.
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def reshard(model: nn.Module) -> None:
    """Reshard parameters that a forward pass without a backward pass has left gathered."""
    for module in _sharded_modules(model):
        module.reshard()


def _sharded_modules(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if is_sharded(module)]


def _parameter_groups(model: nn.Module) -> list[Any]:
    """Return FSDP2's groups of parameters, each gathered and reduced by one collective."""
    groups: list[Any] = []
    for module in _sharded_modules(model):
        state = module._get_fsdp_state()
        if hasattr(state, "_fsdp_param_groups"):
            groups += state._fsdp_param_groups
        elif state._fsdp_param_group:  # before torch 2.13
            groups.append(state._fsdp_param_group)
    return groups


def _sends_fp16(module: Any) -> bool:
    policy = module._get_fsdp_state()._mp_policy
    return torch.float16 in (policy.param_dtype, policy.reduce_dtype)
