"""How a model is wrapped for several ranks, and what an update needs of the wrapper."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, cast
from weakref import WeakSet

from torch import Tensor, distributed, nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from torch_bridge.core import warn
from torch_bridge.distributed import processes
from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.distributed.fsdp_internals import (
    divide_factors,
    forget_pass,
    is_sharded,
    may_reduce_fp16,
    sharded_modules,
)
from torch_bridge.distributed.recovery import Recovery
from torch_bridge.distributed.replicated import Replicated

# Optimizers of torch 2.13 that raise in the middle of an update of DTensors.
_NOT_SHARDED = ("Adafactor", "Muon", "Rprop")
_NOT_SHARDED_FUSED = ("Adagrad", "SGD")

_MEANT_UNWRAPPED: WeakSet[nn.Module] = WeakSet()


class Wrapper(Protocol):
    """What an update needs of a model's wrapper."""

    module: nn.Module
    """The module under whose names parameters and buffers are saved."""
    size: int
    """The number of ranks that train the model."""
    copies: int
    """The number of ranks that hold the same gradient."""
    has_means_alone: bool | None
    """Whether all ranks had means, not pairs, in their first update; None before it, or where nobody asks."""

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

    def start(self) -> None:
        """Begin an update.

        Raises:
            RuntimeError: An error broke off the one before, and the ranks can't go on together.
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

    def reset(self) -> None:
        """Note an error inside an update, and forget what it has left."""
        ...


class Unwrapped:
    """A plain module, on one rank."""

    size = copies = 1
    may_send_fp16 = False

    def __init__(self, model: nn.Module) -> None:
        self.module = model
        self.has_means_alone: bool | None = None

    def check(self, parameters: Sequence[nn.Parameter]) -> None:
        """There is nothing to average."""

    def start(self) -> None:
        """There is nothing to begin."""

    def micro_batch(self, is_last: bool) -> None:
        """There is nothing to average."""

    def reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        """There is one rank."""

    def reset(self) -> None:
        """There is nothing to forget."""


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
        device = next(model.parameters()).device
        self._recovery = Recovery(self._groups, mesh.mesh.flatten().tolist(), device)

    def check(self, parameters: Sequence[nn.Parameter]) -> None:
        """All are averaged: `wrapper_of` refuses a model with parameters left out."""

    def start(self) -> None:
        self._recovery.start()

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

    def reset(self) -> None:
        self._recovery.note_error()
        forget_pass(self.module)


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
        _check_sharded(inner)
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


def reshard(model: nn.Module) -> None:
    """Shard again the parameters that a forward pass without a backward pass leaves gathered."""
    for module in sharded_modules(model):
        module.reshard()


def check_unwrapped(model: nn.Module) -> None:
    """Refuse a model that is wrapped for several ranks, or has a part that is.

    Raises:
        ValueError: It names the wrapper.
    """
    for module in model.modules():
        if found := _kinds(module) & {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}:
            raise ValueError(
                f"the model, or a part of it, is wrapped for several processes ({found.pop()}). A TrainStep "
                "takes a model that is wrapped as a whole: by DistributedDataParallel(model), or by "
                "fully_shard of its blocks and then of the model; distribute does either to a plain model"
            )
    if any(map(mesh_of, model.parameters())):
        raise ValueError("parameters of the model are DTensors, but it is not under fully_shard")


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


def _kinds(module: nn.Module) -> set[str]:
    return {kind.__name__ for kind in type(module).__mro__}


def _check_sharded(model: nn.Module) -> None:
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
