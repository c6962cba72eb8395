"""How an update works with the ranks that train its model: alone, under DDP, or under FSDP2."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

from torch_bridge.training.distributed.dtensors import mesh_of

_LEFT_OUT = (
    "DistributedDataParallel does not average the gradients of some of the optimizer's parameters: "
    "when it was built they were frozen, missing, or to be ignored. Wrap the model after you "
    "freeze or add parameters"
)

_NOT_AVERAGED = (
    "DistributedDataParallel has not averaged the gradients. In the micro-batch whose backward "
    "pass averages, loss_fn must call its argument, model(inputs), not model.module, and not under "
    "torch.no_grad() or no_sync(). Every parameter must get a gradient there: otherwise freeze it "
    "before you wrap the model, or pass find_unused_parameters=True to the wrapper or distribute"
)

_NO_CONTEXT = nullcontext()  # shared, since every micro-batch enters one


class Parallelism:
    """The interface between an update and the model's parallelism.

    The class itself serves a plain module.
    """

    is_distributed = False
    """True if an update runs collectives, even in a group of one rank."""
    size = 1
    """The number of ranks that train the model."""
    rank = 0
    """The index of this rank among them."""
    replicas = 1
    """The number of ranks that have the same gradient."""
    may_send_fp16 = False
    """True if a collective may receive gradients as fp16, in which large ones overflow."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        """The module under whose names parameters and buffers are saved."""

    def check_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        """Reject optimized parameters whose gradients are not averaged over the ranks.

        Raises:
            ValueError: There is such a parameter.
        """

    def micro_batch_context(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context for a micro-batch's passes, which decides if gradients are averaged."""
        return _NO_CONTEXT

    def all_reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        """All-reduce the values in place: their sum over all ranks, or another operation."""


class DDPParallelism(Parallelism):
    """A `DistributedDataParallel`: every rank has all parameters and gets the same gradient.

    If gradients were not averaged, the replicas would drift apart, and torch raises no error, at
    least not in the same update. So each update checks that DDP was called and that its reducer has
    finished.
    """

    is_distributed = True

    def __init__(self, model: DistributedDataParallel, *, every_micro_batch: bool) -> None:
        super().__init__(cast("nn.Module", model.module))
        self._model = cast("Any", model)
        # With static_graph torch can't postpone the averaging of the first backward pass.
        self._every_micro_batch = every_micro_batch or model.static_graph
        self._group = cast("distributed.ProcessGroup", model.process_group)
        self.size = self._group.size()
        self.replicas = self.size
        self.rank = self._group.rank()
        # Only a communication hook knows what it compresses gradients to.
        self.may_send_fp16 = bool(self._model._comm_hooks)
        self._frozen: list[nn.Parameter] = []
        self._was_called = False
        self._forward_hook: Any = torch.compiler.disable(self._note_call)

    def check_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        # DDP knows all parameters that the model had when it was built, but those to be ignored,
        # and averages those of them that were not frozen then.
        known: set[nn.Parameter] = set(self._model._module_parameters)
        num_averaged = self._model._get_ddp_logging_data()["num_parameter_tensors"]
        trained = {parameter for parameter in parameters if parameter.requires_grad}
        if trained - known or sum(item.requires_grad for item in known) > num_averaged:
            raise ValueError(_LEFT_OUT)
        self._frozen = [parameter for parameter in parameters if not parameter.requires_grad]

    def micro_batch_context(self, *, is_last: bool) -> AbstractContextManager[Any]:
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ValueError(_LEFT_OUT)
        if is_last or self._every_micro_batch:
            return self._averaged()
        return self._model.no_sync()

    @contextmanager
    def _averaged(self) -> Generator[None]:
        self._was_called = False
        with self._model.register_forward_hook(self._forward_hook):
            yield
        if not self._was_called:
            raise RuntimeError(_NOT_AVERAGED)
        # Torch itself would raise only in the next forward pass, one update later.
        try:
            self._model._check_reducer_finalized()
        except RuntimeError as error:
            raise RuntimeError(_NOT_AVERAGED) from error

    def _note_call(self, *_: Any) -> None:
        # Torch makes the same test before it prepares for the backward pass.
        if torch.is_grad_enabled() and self._model.require_backward_grad_sync:
            self._was_called = True

    def all_reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        distributed.all_reduce(values, operation, group=self._group)


class FSDPParallelism(Parallelism):
    """A model under `fully_shard` (FSDP2): every rank has a shard of each parameter and gradient.

    On a mesh of two dimensions the shards are replicated along the first.
    """

    is_distributed = True

    def __init__(self, model: nn.Module, *, every_micro_batch: bool) -> None:
        super().__init__(model)
        self._model = cast("Any", model)
        # An earlier training loop may have switched these off, perhaps only in parts of the model.
        self._model.set_requires_gradient_sync(True)
        self._model.set_requires_all_reduce(True)
        for module in _sharded_modules(model):
            module.set_gradient_divide_factor(None)  # torch's default: an average over the ranks
        mesh = mesh_of(next(model.parameters()))
        self._groups = mesh.get_all_groups()
        self.size = mesh.size()
        ranks = mesh.mesh.flatten().tolist()
        self.rank = ranks.index(distributed.get_rank())
        if mesh.ndim == 2:
            self.replicas = mesh.size(0)
        # Gradients reach `parameter.grad` only when they are averaged, which costs nothing on one
        # rank. There the last micro-batch may be empty, and then has no backward pass.
        self._every_micro_batch = every_micro_batch or self.size == 1
        self.may_send_fp16 = any(map(_sends_fp16, _sharded_modules(model)))

    def micro_batch_context(self, *, is_last: bool) -> AbstractContextManager[Any]:
        if is_last or self._every_micro_batch:
            return _NO_CONTEXT
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
        ValueError: Only a part of the model is sharded; it is sharded over several meshes, or also
            with a different kind of parallelism; or it has an offload policy.
    """
    parameters = list(model.parameters())
    if not _are_sharded_as_one(parameters):
        places = set(map(_place_of, parameters))
        raise ValueError(
            "the model is sharded in part, over several meshes, with an offload policy or with "
            f"another kind of parallelism: its parameters are {sorted(places)}. Apply fully_shard "
            "to its blocks and then to the model, over one mesh of one dimension, or of two for "
            "hybrid sharding"
        )


def _are_sharded_as_one(parameters: Sequence[nn.Parameter]) -> bool:
    """Return True if all parameters are sharded over one mesh, or sharded and replicated."""
    first: Any = parameters[0]
    mesh = mesh_of(first)
    if mesh is None or any(mesh_of(parameter) != mesh for parameter in parameters):
        return False
    if first.device.type != mesh.device_type:  # an offload policy keeps shards in host memory
        return False
    kinds = [type(placement).__name__ for placement in first.placements]
    return kinds in (["Shard"], ["Replicate", "Shard"])  # the second one is hybrid sharding


def _place_of(parameter: nn.Parameter) -> str:
    placements = getattr(parameter, "placements", "plain")
    return f"{placements} on {parameter.device.type}"


def is_sharded(module: nn.Module) -> bool:
    """Return True if `fully_shard` was called on this module itself."""
    # By the class's name, since importing torch.distributed.fsdp takes most of a second.
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


def reshard(model: nn.Module) -> None:
    """Reshard parameters that a forward pass without a backward pass has left gathered."""
    for module in _sharded_modules(model):
        module.reshard()


def _sharded_modules(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if is_sharded(module)]


def _sends_fp16(module: Any) -> bool:
    policy = module._get_fsdp_state()._mp_policy
    return torch.float16 in (policy.param_dtype, policy.reduce_dtype)
