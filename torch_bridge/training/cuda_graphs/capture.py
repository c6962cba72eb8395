"""CUDA graphs: an update captured once for each shape of batch, and replayed."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.torch_version import TorchVersion
from torch.utils import _pytree as pytree

from torch_bridge.training.cuda_graphs.guards import Guards
from torch_bridge.training.optimizers.steppers import OptimizerSteppers

_WARM_UPS = 3
_MOST_GRAPHS = 8
_MOST_SHAPES = 64  # met at all: a number in the batch that always changes is one each time
_PLAIN = (int, float, bool, str, bytes, type(None))
_NOTE = (
    "This error came while the update was captured in a CUDA graph. During capture loss_fn must not read "
    "the device (.item(), boolean masks) or move data between host and device; to run it anyway, build the "
    "step with cuda_graph=False. A 'stale reference' (before torch 2.13: 'the legacy stream') is a loss, or "
    "another result of the model, that was computed outside of the step and still exists: delete it, or "
    "compute it under torch.no_grad()."
)
_NOTE_BEFORE_2_13 = (
    "Before torch 2.13 a failed capture damages torch's random numbers and memory pools: restart the "
    "process from the last checkpoint."
)


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: tuple[Any, ...]


class GraphedUpdate:
    """Calls an update, first eagerly, then from a graph, one for each shape of its batches.

    The first updates of a shape run on the stream that is captured later, and count; capturing
    executes nothing. Past a few shapes further ones run eagerly.

    Args:
        update: Takes the micro-batches and returns tensors, and things that are the same for each batch of a
            shape; works on the same tensors at every call.
        steppers: Of the optimizers. Graphs are captured only after an update that did not synchronize.
        guards: When they fail, everything warms up and is captured again.
        device: The CUDA device.
    """

    def __init__(
        self,
        update: Callable[[Sequence[Any]], tuple[Any, ...]],
        steppers: OptimizerSteppers,
        guards: Guards,
        device: torch.device,
    ) -> None:
        self._update, self._steppers, self._guards = update, steppers, guards
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)
        self.drop()

    def drop(self) -> None:
        """Forget all graphs: the next updates of each shape warm up again, and it is captured anew."""
        self.captured: dict[Any, _Captured] = {}
        """The graphs, by the shape of their batches."""
        self._warm_ups: dict[Any, int] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, micro_batches: Sequence[Any]) -> tuple[Any, ...]:
        if self._warm_ups and self._guards.failed():
            self.drop()
        flat = [pytree.tree_flatten(batch) for batch in micro_batches]
        for leaf in chain.from_iterable(leaves for leaves, _ in flat):
            _check(leaf, self._stream.device)
        shape = tuple((structure, *_shapes(leaves)) for leaves, structure in flat)
        captured = self.captured.get(shape)
        if captured is None:
            warm_ups = self._warm_ups.get(shape, 0)
            is_new = shape not in self._warm_ups
            if len(self.captured) == _MOST_GRAPHS or (is_new and len(self._warm_ups) == _MOST_SHAPES):
                return self._update(micro_batches)
            if warm_ups < _WARM_UPS:
                outputs = self._warm_up(micro_batches)
                # An update that synchronized with the device does not count: the next one may do so again.
                self._warm_ups[shape] = warm_ups + self._steppers.steady
                if not self.captured:
                    self._guards.record()  # the states that optimizers make in it are no change
                return outputs
            captured = self.captured[shape] = self._capture(flat)
        if captured.inputs:
            tensors = chain.from_iterable(_tensors(leaves).values() for leaves, _ in flat)
            torch._foreach_copy_(captured.inputs, list(map(_memory, tensors)))
        captured.graph.replay()
        # The next replay overwrites the graph's own outputs.
        return tuple(map(_copied, captured.outputs))

    def _warm_up(self, micro_batches: Sequence[Any]) -> tuple[Any, ...]:
        present = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(present)
        try:
            with torch.cuda.stream(self._stream):
                outputs = self._update(micro_batches)
        finally:
            present.wait_stream(self._stream)
        for output in outputs:
            if isinstance(output, Tensor):
                output.record_stream(present)
        return outputs

    def _capture(self, flat: list[tuple[list[Any], Any]]) -> _Captured:
        inputs: list[Tensor] = []
        batches: list[Any] = []
        for leaves, structure in flat:
            own = {key: _empty_like(tensor) for key, tensor in _tensors(leaves).items()}
            inputs += map(_memory, own.values())
            batches.append(pytree.tree_unflatten([own.get(id(leaf), leaf) for leaf in leaves], structure))
        graph = torch.cuda.CUDAGraph()
        outputs: tuple[Any, ...] = ()
        failure: Exception | None = None
        try:
            # Other threads stay free to use CUDA meanwhile: a loader's, which pins memory.
            # The outer context is there for a capture that fails: torch's own then stays on its stream.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                try:
                    outputs = self._update(batches)
                except Exception as error:
                    failure = error
        except Exception as error:
            failure = failure or error  # what CUDA objects to it says again at the end
            if TorchVersion(torch.__version__) < "2.13":
                failure.add_note(_NOTE_BEFORE_2_13)
        finally:
            self._steppers.is_partial = False  # while an update is captured nothing moves
        if failure is not None:
            # Something may have kept a tensor of it, and torch takes no such pool again.
            self._pool = torch.cuda.graph_pool_handle()
            failure.add_note(_NOTE)
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame, and all that was captured
        return _Captured(graph, inputs, outputs)


def _copied(output: Any) -> Any:
    return output.clone() if isinstance(output, Tensor) else output


def _check(leaf: Any, device: torch.device) -> None:
    """Refuse what a graph would keep at its first value, or cut off."""
    if not isinstance(leaf, Tensor):
        if not isinstance(leaf, _PLAIN):
            raise TypeError(
                f"a batch holds a {type(leaf).__name__}, and a CUDA graph would use its first value in every "
                "replay; with cuda_graph=True a batch may hold tensors and plain values"
            )
        return
    if leaf.device != device:
        raise ValueError(
            f"a batch has a tensor on {leaf.device}, and a CUDA graph would use its first value in every "
            f"replay; with cuda_graph=True all tensors of a batch must be on {device}"
        )
    if leaf.layout != torch.strided:
        raise ValueError(f"a batch has a tensor of layout {leaf.layout}; cuda_graph=True needs dense ones")
    if leaf.grad_fn is not None:
        raise ValueError(
            "a batch has a tensor that another model computed, and a CUDA graph would give that model no "
            "gradients; with cuda_graph=True detach the tensor, or make both models one"
        )


def _tensors(leaves: Sequence[Any]) -> dict[int, Tensor]:
    """Each tensor of a batch once, by its identity: a compiled loss_fn is compiled for which are one."""
    return {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}


def _shapes(leaves: Sequence[Any]) -> Iterator[Any]:
    """What has to be the same for a replay: which tensors there are, their layout, other leaves."""
    numbers = {key: number for number, key in enumerate(_tensors(leaves))}
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            marks = leaf.requires_grad, leaf.is_conj(), leaf.is_neg()
            yield numbers[id(leaf)], leaf.shape, leaf.stride(), leaf.dtype, marks
        else:
            yield type(leaf), leaf


def _empty_like(tensor: Tensor) -> Tensor:
    """A tensor of the same layout, gaps and all: a compiled loss_fn is compiled for it."""
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return _flip_as(tensor, empty).detach().requires_grad_(tensor.requires_grad)


def _memory(tensor: Tensor) -> Tensor:
    """Every element in memory, to be copied: each once, or, where some may be the same, all of the range."""
    tensor = _flip_as(tensor, tensor.detach())
    if tensor.is_contiguous() or not tensor.numel():
        return tensor
    strides = tensor.stride()
    sizes = [size if stride else 1 for size, stride in zip(tensor.shape, strides, strict=True)]
    last, are_apart = 0, True
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        are_apart = are_apart and (size == 1 or stride > last)
        last += (size - 1) * stride
    return tensor.as_strided(sizes, strides) if are_apart else tensor.as_strided((last + 1,), (1,))


def _flip_as(tensor: Tensor, other: Tensor) -> Tensor:
    """The other tensor, its marks "conjugate" and "negative" turned over where the first has them."""
    other = other.conj() if tensor.is_conj() else other
    return torch._neg_view(other) if tensor.is_neg() else other
