"""CUDA graphs: an update recorded once for each shape of batch, and replayed."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

_WARM_UPS = 3
_MOST_GRAPHS = 8
_MOST_SHAPES = 64  # met at all: a number in the batch that always changes is one each time
_PLAIN = (int, float, bool, str, bytes, type(None))


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: tuple[Tensor, ...]


class Graphs:
    """Calls an update, first eagerly, then from a graph, one for each shape of its batches.

    The first updates of a shape run on the stream that is captured later, and count; capturing
    executes nothing. Past a few shapes further ones run eagerly. When the model's mode, a
    parameter's storage or `requires_grad`, or an optimizer setting changes, all graphs are dropped.

    Args:
        update: Takes the micro-batches and returns tensors; works on the same tensors at every call.
        is_steady: Whether the last update ran without a look at the device.
        model: The module whose mode and parameters the update depends on.
        optimizer: The optimizer whose settings it depends on.
        device: The CUDA device.
    """

    def __init__(
        self,
        update: Callable[[Sequence[Any]], tuple[Tensor, ...]],
        is_steady: Callable[[], bool],
        model: nn.Module,
        optimizer: Optimizer,
        device: torch.device,
    ) -> None:
        self._update, self._is_steady = update, is_steady
        self._modules, self._parameters = list(model.modules()), list(model.parameters())
        self._optimizer = optimizer
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)
        self.drop()

    def drop(self) -> None:
        """Forget all graphs: the next update of each shape is captured anew."""
        self._recorded: dict[Any, _Recorded] = {}
        self._warm_ups: dict[Any, int] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._built_for = self._conditions()

    def __call__(self, micro_batches: Sequence[Any]) -> tuple[Tensor, ...]:
        if self._built_for != self._conditions():
            self.drop()
        leaves, structure = pytree.tree_flatten(list(micro_batches))
        shape = (structure, *map(_shape, leaves))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        for tensor in tensors:
            if tensor.device != self._stream.device:
                raise ValueError(
                    f"a batch has a tensor on {tensor.device}, of which a CUDA graph would keep the first "
                    f"value; with cuda_graph=True all of a batch has to be on {self._stream.device}"
                )
        recorded = self._recorded.get(shape)
        if recorded is None:
            warm_ups = self._warm_ups.get(shape, 0)
            if len(self._recorded) == _MOST_GRAPHS or (not warm_ups and len(self._warm_ups) == _MOST_SHAPES):
                return self._update(micro_batches)
            if warm_ups < _WARM_UPS or not self._is_steady():
                self._warm_ups[shape] = warm_ups + 1
                return self._warm_up(micro_batches)
            recorded = self._recorded[shape] = self._record(leaves, structure)
        if tensors:
            torch._foreach_copy_(recorded.inputs, tensors, non_blocking=True)
        recorded.graph.replay()
        # The next replay overwrites the graph's own outputs.
        return tuple(output.clone() for output in recorded.outputs)

    def _warm_up(self, micro_batches: Sequence[Any]) -> tuple[Tensor, ...]:
        present = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            outputs = self._update(micro_batches)
        present.wait_stream(self._stream)
        for output in outputs:
            output.record_stream(present)
        return outputs

    def _record(self, leaves: list[Any], structure: Any) -> _Recorded:
        inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads stay free to use CUDA meanwhile: a loader's, which pins memory.
            # The outer context is there for a capture that fails: torch's own then stays on its stream.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                outputs = self._update(pytree.tree_unflatten(inputs, structure))
        except RuntimeError as error:
            raise RuntimeError(
                "the update could not be captured in a CUDA graph: loss_fn must not read the device "
                "(.item(), boolean masks), nor move data between host and device; build the step with "
                "cuda_graph=False to run it all the same"
            ) from error
        return _Recorded(graph, [leaf for leaf in inputs if isinstance(leaf, Tensor)], outputs)

    def _conditions(self) -> tuple[Any, ...]:
        """What is baked into a graph, besides the shapes of the batches."""
        return (
            [module.training for module in self._modules],
            [(parameter.requires_grad, parameter.data_ptr()) for parameter in self._parameters],
            [
                {name: value for name, value in group.items() if name not in ("params", "lr")}
                for group in self._optimizer.param_groups
            ],
        )


def _shape(leaf: Any) -> Any:
    """What has to be the same for a replay: of a tensor its layout, of a plain value the value."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    if not isinstance(leaf, _PLAIN):
        raise TypeError(
            f"a batch holds a {type(leaf).__name__}, of which a CUDA graph would keep the first value; "
            "with cuda_graph=True it may hold tensors and plain values"
        )
    return type(leaf), leaf
