"""CUDA graphs: an update captured for each shape of batch, and guards of what it depends on."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from plateau_jax.arguments.curve_warning import warn
from torch_bridge.groups.optimizers import groups_of
from torch_bridge.training.distributed.parallelism import Parallelism
from torch_bridge.training.train_step.status import Status

_WARM_UPS = 3
# Further signatures run eagerly: a number in the batch that always changes gives new ones.
_MAX_SIGNATURES = 8
_MAX_DROPS = 3
_PLAIN_TYPES = (int, float, bool, str, bytes, type(None))
_NOTE = (
    "This error came while the update was captured in a CUDA graph. During capture loss_fn must "
    "not read the device (.item(), boolean masks) or move data between host and device; to run it "
    "anyway, build the step with cuda_graph=False. A 'stale reference' (before torch 2.13: 'the "
    "legacy stream') is a loss, or another result of the model, that was computed outside of the "
    "step and still exists: delete it, or compute it under torch.no_grad(). Before torch 2.13, an "
    "aborted capture damages torch's random numbers and memory pools: restart the process from the "
    "last checkpoint."
)

# Every captured update pays for the comparisons: `map` runs these without Python's interpreter.
_requires_grad = operator.attrgetter("requires_grad")
_training = operator.attrgetter("training")

# A graph bakes the settings of an optimizer in, except for the learning rate, which it reads from a
# tensor. This tensor and the parameters are compared as objects.
_NOT_COMPARED = ("lr", "initial_lr", "params")


def check_graph(model: nn.Module, parallelism: Parallelism, device: torch.device) -> None:
    """Reject what a CUDA graph cannot capture."""
    if parallelism.is_distributed:
        raise ValueError("cuda_graph=True needs a model that is not wrapped for several ranks")
    if any(isinstance(module, CheckpointWrapper) for module in model.modules()):
        raise ValueError(
            "cuda_graph=True needs a model without activation checkpointing, which reads the "
            "random state"
        )
    if device.type != "cuda":
        raise ValueError(f"cuda_graph=True needs parameters on a CUDA device; they are on {device}")


class Guards:
    """Detect changes to what a captured update depends on, apart from the shapes of its batches.

    Compared are each module's mode, submodules, parameters and buffers; the optimizers' settings
    and states; and the memory and `requires_grad` of all their tensors. Other changes go unnoticed:
    to plain values that a forward pass reads (a dropout probability, a variable of `loss_fn`), to
    hooks, to torch's global switches, to a setting that is a list and changes in place, and to
    `.data` if it becomes a new view of the same memory.

    Args:
        model: The module that is trained.
        optimizers: Its optimizers.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model = model
        self._optimizers = optimizers
        self.record()

    def record(self) -> None:
        """Record the current state, to compare later states with it."""
        self._modules = list(self._model.modules())
        # The objects are kept alive: a new object could otherwise get the id of one that was freed.
        self._recorded_objects = self._objects()
        self._recorded_settings = self._settings()
        self._tensors: list[Tensor] = []
        for item in self._recorded_objects:
            if isinstance(item, Tensor) and item.layout == torch.strided:
                self._tensors.append(item)
        self._recorded_values = self._values()

    def failed(self) -> bool:
        """Return True if anything differs from the recorded state.

        Synchronizes only if a setting has become a different tensor.
        """
        objects = self._objects()
        recorded = self._recorded_objects
        if len(objects) != len(recorded) or not all(map(operator.is_, objects, recorded)):
            return True
        # Only now are the recorded tensors known to be in use, so that their memory is meaningful.
        is_same = self._settings() == self._recorded_settings
        return not is_same or self._values() != self._recorded_values

    def what_changed(self) -> str:
        """Describe the first change since the last record."""
        for before, now in zip(self._recorded_settings, self._settings(), strict=False):
            for name, setting in now.items():
                if name not in before or setting != before[name]:
                    return f"the optimizer's {name}"
        return "a module, parameter, buffer or optimizer state"

    def _settings(self) -> list[dict[str, Any]]:
        """Return the settings that a graph bakes in, by name, for each parameter group."""
        settings: list[dict[str, Any]] = []
        for group in groups_of(self._optimizers):
            compared = {name: group[name] for name in group if name not in _NOT_COMPARED}
            settings.append(compared)
        return settings

    def _objects(self) -> list[Any]:
        """Return all submodules, parameters, buffers, learning rates and values of states."""
        objects: list[Any] = []
        for module in self._modules:
            objects += module._modules.values()
            objects += module._parameters.values()
            objects += module._buffers.values()
        for group in groups_of(self._optimizers):
            objects.append(group["lr"])
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                objects += state.values()
        return objects

    def _values(self) -> list[Any]:
        """Return what neither objects nor settings show: modes, the memory of the tensors."""
        values: list[Any] = [*map(Tensor.data_ptr, self._tensors)]
        values += map(_requires_grad, self._tensors)
        values += map(_training, self._modules)
        return values


class _CapturedGraph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]
    """The leaves of the result."""
    structure: Any


class GraphedUpdate:
    """An update that runs eagerly at first, and later from one CUDA graph per shape of batch.

    Args:
        update: Takes the micro-batches and returns a pytree of tensors, whose structure depends
            only on the shape of the batches. It works on the same tensors at every call.
        status: Is set to complete after a capture, which executes nothing.
        guards: If they fail, all graphs are dropped, and captured again after new warm-ups.
        device: The CUDA device.
    """

    # A graph replays the same kernels on the same memory. For each shape of batch:
    #
    # 1. The first three updates are warm-ups: real updates, which train and count. They run eagerly
    #    on the side stream that is captured later, so that compilation and the optimizers' states
    #    precede the capture.
    # 2. Capture records an update on static inputs, empty tensors of the batch's layout. It
    #    executes nothing: neither parameters nor counters move, and the first replay follows at
    #    once.
    # 3. A replay copies the batch into the static inputs, runs the graph, and clones its outputs,
    #    which the next replay would overwrite.
    #
    # All graphs share one memory pool: only one runs at a time, and nothing in it is needed after a
    # replay.

    def __init__(
        self,
        update: Callable[[Sequence[Any]], Any],
        status: Status,
        guards: Guards,
        device: torch.device,
    ) -> None:
        self._update = update
        self._status = status
        self._guards = guards
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)
        self._drops = 0
        """How often the guards failed since the last replay."""
        self.drop()

    def drop(self) -> None:
        """Drop all graphs: each shape warms up and is captured again."""
        self.captured: dict[Any, _CapturedGraph] = {}
        """The graphs by the shape of their batches."""
        self._warm_ups: dict[Any, int] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, micro_batches: Sequence[Any]) -> Any:
        if self._warm_ups and self._guards.failed():
            self._count_drop()
            self.drop()
        leaves: list[Any] = []
        structures: list[Any] = []
        for micro_batch in micro_batches:
            leaves_of_batch, structure = pytree.tree_flatten(micro_batch)
            for leaf in leaves_of_batch:
                _check_leaf(leaf, self._stream.device)
            if _has_shared_memory(leaves_of_batch):
                return self._update(micro_batches)
            leaves += leaves_of_batch
            structures.append(structure)
        signature = (*structures, *map(_signature_of, leaves))
        captured = self.captured.get(signature)
        if captured is None:
            if signature not in self._warm_ups and len(self._warm_ups) == _MAX_SIGNATURES:
                return self._update(micro_batches)
            if self._warm_ups.get(signature, 0) < _WARM_UPS:
                return self._warm_up(signature, micro_batches)
            captured = self._capture(micro_batches)
            self.captured[signature] = captured
        self._drops = 0
        return _replay(captured, leaves)

    def _count_drop(self) -> None:
        self._drops += 1
        if self._drops == _MAX_DROPS:
            warn(
                f"{self._guards.what_changed()} keeps changing, so that updates run eagerly in "
                "spite of cuda_graph=True: keep it constant, or build the step with "
                "cuda_graph=False"
            )

    def _warm_up(self, signature: Any, micro_batches: Sequence[Any]) -> Any:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                result = self._update(micro_batches)
        finally:
            current.wait_stream(self._stream)
        for output in pytree.tree_leaves(result):
            output.record_stream(current)  # the side stream must not reuse its memory too early
        self._warm_ups[signature] = self._warm_ups.get(signature, 0) + 1
        if not self.captured:
            self._guards.record()  # optimizers create states during warm-ups: not a change
        return result

    def _capture(self, micro_batches: Sequence[Any]) -> _CapturedGraph:
        static_batches = pytree.tree_map_only(Tensor, _empty_like, micro_batches)
        inputs = _tensors_of(pytree.tree_leaves(static_batches))
        graph = torch.cuda.CUDAGraph()
        try:
            # "thread_local": another thread, such as a loader's that pins memory, may use CUDA
            # meanwhile. The outer context restores the stream if capture fails: torch.cuda.graph
            # would stay on its own.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                result = self._update(static_batches)
        except Exception as error:
            # If leaving the context raised it, its `__context__` is the cause.
            error.add_note(_NOTE)
            # A tensor may still live in this pool, and torch does not reuse such a pool.
            self._pool = torch.cuda.graph_pool_handle()
            raise
        finally:
            self._status.complete()  # capture has moved nothing
        return _CapturedGraph(graph, inputs, *pytree.tree_flatten(result))


def _replay(captured: _CapturedGraph, leaves: Sequence[Any]) -> Any:
    if captured.inputs:
        torch._foreach_copy_(captured.inputs, _tensors_of(leaves))
    captured.graph.replay()
    return pytree.tree_unflatten(map(Tensor.clone, captured.outputs), captured.structure)


def _check_leaf(leaf: Any, device: torch.device) -> None:
    """Reject a leaf whose first value a graph would keep, or whose gradients it would cut off."""
    if isinstance(leaf, _PLAIN_TYPES):
        return
    if not isinstance(leaf, Tensor):
        fault = (
            f"a {type(leaf).__name__}, whose first value every replay would use: give tensors and "
            "plain values"
        )
    elif leaf.device != device:
        fault = (
            f"a tensor on {leaf.device}, whose first value every replay would use: put all tensors "
            f"on {device}"
        )
    elif leaf.grad_fn is not None:
        fault = (
            "a tensor that another model computed, which would get no gradients: detach the "
            "tensor, or make both models one"
        )
    else:
        return
    raise ValueError(f"with cuda_graph=True, a batch contains {fault}")


def _has_shared_memory(leaves: Sequence[Any]) -> bool:
    """Return True if a tensor of a batch occurs twice or is expanded; a loader yields neither."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return len(set(map(id, tensors))) < len(tensors) or any(0 in leaf.stride() for leaf in tensors)


def _signature_of(leaf: Any) -> tuple[Any, ...]:
    """Return what must be equal for a replay: the layout of a tensor, or a plain value."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad
    return cast("type[Any]", type(leaf)), leaf


def _empty_like(leaf: Tensor) -> Tensor:
    """Return an empty tensor of the same strides, with gaps."""
    empty = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    return empty.requires_grad_(leaf.requires_grad)


def _tensors_of(leaves: Sequence[Any]) -> list[Tensor]:
    return [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
