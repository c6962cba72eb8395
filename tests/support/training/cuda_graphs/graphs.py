"""CUDA graphs without CUDA: a capture records operators, a replay runs them; steps on a GPU."""

import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.training.models import Batch, Net, mean_loss
from support.training.optimizers import FUSED, make_optimizer
from support.training.steps import CURVE, step_over
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.torch_version import TorchVersion
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_bridge import TrainStep
from torch_bridge.training.cuda_graphs import GraphedUpdate, Guards
from torch_bridge.training.status import Status

CPU = torch.device("cpu")
WARM_UPS = 3


class Tape(TorchDispatchMode):
    """Records operators with their arguments and results, as a graph would, to run them again."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, list[Any], pytree.TreeSpec, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outcome = func(*args, **kwargs)
        inputs, spec = pytree.tree_flatten((args, kwargs))
        self.operators.append((func, inputs, spec, pytree.tree_leaves(outcome)))
        return outcome

    def replay(self) -> None:
        """Run the operators on the contents of their inputs; write into the recorded results."""
        now: dict[int, tuple[Tensor, Tensor]] = {}

        def current(leaf: Any) -> Any:
            if id(leaf) in now:
                return now[id(leaf)][1]
            return leaf

        # The tape was recorded below autograd, the backward pass included.
        with torch._C._AutoDispatchBelowAutograd():
            for func, inputs, spec, outcome in self.operators:
                args, kwargs = pytree.tree_unflatten(map(current, inputs), spec)
                again = pytree.tree_leaves(func(*args, **kwargs))
                for old, new in zip(outcome, again, strict=True):
                    if isinstance(old, Tensor):
                        now[id(old)] = old, new
            for old, new in now.values():
                if old.is_contiguous() and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class FakeGraph(Tape):
    """Records the operators of a capture, and what they overwrite."""

    captures = 0

    def __init__(self) -> None:
        super().__init__()
        self.overwritten: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        parameters = func._schema.arguments
        arguments: dict[str, Any] = dict(kwargs or {})
        for parameter, argument in zip(parameters, args, strict=False):
            arguments[parameter.name] = argument
        for parameter in parameters:
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                self.keep(arguments.get(parameter.name))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def keep(self, argument: Any) -> None:
        for tensor in pytree.tree_leaves(argument):
            if tensor is not None:
                self.overwritten.append((tensor, tensor.clone()))

    def undo(self) -> None:
        """Restore what the recorded operators overwrote, since a capture executes nothing."""
        with torch.no_grad():
            for tensor, value in reversed(self.overwritten):
                tensor.detach().copy_(value)
        self.overwritten.clear()


def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace CUDA's streams and graphs by fakes."""

    @contextmanager
    def graph(graph: FakeGraph, **_: Any) -> Generator[None]:
        FakeGraph.captures += 1
        try:
            with graph:
                yield
        finally:
            graph.undo()

    def nothing(*_: Any) -> None: ...

    def the_stream(_: Any) -> SimpleNamespace:
        return stream

    stream = SimpleNamespace(device=CPU, wait_stream=nothing)
    FakeGraph.captures = 0
    monkeypatch.setattr(torch.cuda, "Stream", the_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", the_stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(Tensor, "record_stream", nothing)


def graphs_for(update: Callable[[Sequence[Any]], tuple[Any, ...]]) -> GraphedUpdate:
    """Return the graphed form of an update that does not depend on a model."""
    status = Status(is_distributed=False)
    return GraphedUpdate(update, status, Guards(nn.Identity(), []), CPU)


def captured_step(device: str, *arguments: Any, **options: Any) -> TrainStep:
    """Return a step with captured updates; on the CPU, captured by the fakes."""
    step = gpu_step(*arguments, device=device, cuda_graph=device == "cuda", **options)
    if device == "cpu":
        step._steppers._cuda_graph = True
        step._clock._is_captured = True
        step._clock._updates_within_table = 0
        guards = Guards(step.model, step.optimizers)
        step._graphs = GraphedUpdate(step._update, step._status, guards, CPU)
    return step


class Sums:
    """An update that adds up its batches and counts how often Python ran it."""

    def __init__(self) -> None:
        self.total = torch.zeros(())
        self.count = torch.zeros((), dtype=torch.int64)
        self.runs = 0
        self.graphs = graphs_for(self)

    def __call__(self, micro_batches: Sequence[Any]) -> tuple[Tensor, ...]:
        self.runs += 1
        for batch in micro_batches:
            self.total.add_(batch["x"].sum() * batch.get("times", 1))
        self.count.add_(1)
        return self.total * 1, self.count * 1


# Training steps whose updates a CUDA graph can hold, on a GPU, and a guard against waiting for it.

# Before torch 2.13, fused Adagrad does not take CUDA tensors.
FUSED_ON_GPU = list(FUSED)
if TorchVersion(torch.__version__) < "2.13":
    FUSED_ON_GPU.remove("adagrad")


def on_gpu(data: Iterable[Batch], device: str = "cuda") -> list[Batch]:
    return [(inputs.to(device), targets.to(device)) for inputs, targets in data]


def gpu_step(
    name: str = "adamw",
    model: nn.Module | None = None,
    loss_fn: Any = mean_loss,
    optimizers: Callable[[nn.Module], Any] | None = None,
    curve: Any = CURVE,
    device: str = "cuda",
    **options: Any,
) -> TrainStep:
    """Return a step over optimizers of this constructor, or the one of this name."""
    if model is None:
        model = Net()
    model = model.to(device)
    built: Any
    if optimizers is None:
        built = make_optimizer(name, model)
    else:
        built = optimizers(model)
    if not isinstance(built, Optimizer) and len(built) == 1:
        (built,) = built
    step_optimizers: Sequence[Any] = [built] if isinstance(built, Optimizer) else built
    for optimizer in step_optimizers:
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
    return step_over(model, built, loss_fn, curve, **options)


def graphs_of(step: TrainStep) -> GraphedUpdate:
    assert step._graphs is not None
    return step._graphs


@contextmanager
def no_waiting() -> Generator[None]:
    """Make torch raise an error if anything waits for the device."""
    try:
        with warnings.catch_warnings():
            # Torch warns once per process.
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
