"""`fully_shard` (FSDP2) in an update: what it can train, and when gradients are averaged."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from torch import Tensor, distributed, nn
from torch.distributed import ReduceOp
from torch.optim import Optimizer

from torch_bridge.core import warn
from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.fsdp_internals import (
    divide_factors,
    may_reduce_fp16,
    sharded_modules,
)

# Optimizers of torch 2.13 that raise in the middle of an update of DTensors.
_NOT_SHARDED = ("Adafactor", "Muon", "Rprop")
_NOT_SHARDED_FUSED = ("Adagrad", "SGD")


class Sharded:
    """A model under `fully_shard` (FSDP2): every rank holds a shard of each parameter and gradient.

    Over two mesh dimensions the shards are replicated along the first.
    """

    def __init__(self, model: nn.Module, every_micro_batch: bool) -> None:
        self.module, self._model = model, cast("Any", model)
        # An earlier training loop may have left them off, in parts of the model too.
        self._model.set_requires_gradient_sync(True)
        self._model.set_requires_all_reduce(True)
        mesh = mesh_of(next(model.parameters()))
        self._groups = mesh.get_all_groups()
        self.size: int = mesh.size()
        self.copies: int = mesh.size(0) if mesh.ndim == 2 else 1
        # On one rank averaging costs nothing, and unaveraged gradients are not in `parameter.grad`.
        self._every_micro_batch = every_micro_batch or self.size == 1
        self.may_send_fp16 = may_reduce_fp16(model)
        self.has_means_alone: bool | None = None

    def check(self, parameters: Sequence[nn.Parameter]) -> None:
        """All are averaged: `wrapper_of` refuses a model with parameters left out."""

    def micro_batch(self, is_last: bool) -> AbstractContextManager[Any] | None:
        return None if is_last or self._every_micro_batch else self._unsynchronized()

    @contextmanager
    def _unsynchronized(self) -> Generator[None]:
        self._model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._model.set_requires_gradient_sync(True)

    def reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        for group in self._groups:
            distributed.all_reduce(values, operation, group=group)


def check_sharded(model: nn.Module) -> None:
    """Refuse a model that `fully_shard` has sharded in a way that an update can't work with.

    Warns:
        CurveWarning: This release of torch does not tell what gradients are divided by.

    Raises:
        ValueError: Sharded in part, over several meshes, along other dimensions, with an offload policy, or
            with gradients that are no averages over the ranks.
    """
    reshard(model)
    meshes = set(map(mesh_of, model.parameters()))
    if len(meshes) != 1 or None in meshes:
        raise ValueError(
            "the model is sharded in part, or over several meshes: apply fully_shard to its blocks and then "
            "to the model, over one mesh"
        )
    (mesh,) = meshes
    placements = {str(cast("Any", parameter).placements) for parameter in model.parameters()}
    *replicated, sharded = cast("Any", next(model.parameters())).placements
    if len(replicated) > 1 or not all(each.is_replicate() for each in replicated) or not sharded.is_shard():
        raise ValueError(
            f"the model's parameters are placed as {sorted(placements)}; a training step takes fully_shard "
            "over one mesh dimension, or over two for hybrid sharding, and nothing beside it"
        )
    if (device := next(model.parameters()).device.type) != mesh.device_type:
        raise ValueError(
            f"the model's parameters are kept on {device} beside a mesh on {mesh.device_type}: a training "
            "step needs fully_shard without an offload policy"
        )
    if (factors := divide_factors(model)) is None:
        warn(
            "this release of torch does not tell whether set_gradient_divide_factor was called on the model. "
            f"A training step needs averages of gradients over the {mesh.size()} ranks: leave that call out"
        )
        return
    # Where ranks hold copies of whole parameters, torch may divide by the factor twice.
    is_doubtful = mesh.ndim == 2 and mesh.size(1) == 1 < mesh.size()
    if wrong := factors - ({None} if is_doubtful else {None, mesh.size()}):
        raise ValueError(
            f"set_gradient_divide_factor({wrong.pop()}) was called on the model or a part of it, and then "
            f"gradients are not averages over the {mesh.size()} ranks, which a training step needs. Leave "
            "that call out, or call set_gradient_divide_factor(None) wherever it was called; for a loss per "
            "token of all ranks return (loss.sum(), number of tokens) from loss_fn"
        )


def check_shardable(optimizer: Optimizer) -> None:
    """Refuse an optimizer that torch cannot run on sharded parameters.

    Raises:
        ValueError: It names the optimizer.
    """
    name = type(optimizer).__name__
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    if name in _NOT_SHARDED or (name in _NOT_SHARDED_FUSED and is_fused):
        raise ValueError(
            f"torch cannot run {name}{' with fused=True' if is_fused else ''} on parameters under fully_shard"
        )


def reshard(model: nn.Module) -> None:
    """Shard again the parameters that a forward pass without a backward pass leaves gathered."""
    for module in sharded_modules(model):
        module.reshard()
