"""CUDA graphs without CUDA: a capture records its operators and undoes them; a replay runs them again."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.training.operators import Tape
from torch import Tensor, nn

from torch_bridge import TrainStep
from torch_bridge.training.cuda_graphs.capture import GraphedUpdate
from torch_bridge.training.cuda_graphs.guards import Guards

CPU = torch.device("cpu")
WARM_UPS = 3


class FakeGraph:
    """Records the operators of a capture, and undoes their changes to tensors that outlive it."""

    captures = 0

    def __init__(self) -> None:
        self.tape = Tape()

    def replay(self) -> None:
        self.tape.replay()


def without_cuda(monkeypatch: pytest.MonkeyPatch, kept: list[Tensor]) -> None:
    """Replace CUDA's streams and graphs by fakes. `kept`: the tensors that outlive a capture."""

    @contextmanager
    def graph(graph: FakeGraph, **_: Any) -> Generator[None]:
        FakeGraph.captures += 1
        before = [tensor.clone() for tensor in kept]
        with graph.tape:
            yield
        with torch.no_grad():
            for tensor, value in zip(kept, before, strict=True):
                tensor.copy_(value)

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


def graphs_for(update: Callable[[Sequence[Any]], tuple[Any, ...]], steppers: Any) -> GraphedUpdate:
    """Return the graphed form of an update that does not depend on a model."""
    return GraphedUpdate(update, steppers, Guards(nn.Identity(), []), CPU)


def capture(step: TrainStep) -> None:
    """Make a step on the CPU capture its updates."""
    step._steppers._cuda_graph = step._clock._is_captured = True
    step._clock._updates_within_table = 0
    step._graphs = GraphedUpdate(step._update, step._steppers, Guards(step.model, step.optimizers), CPU)


class Sums:
    """An update that adds up its batches and counts how often Python ran it."""

    def __init__(self, kept: list[Tensor]) -> None:
        self.kept, self.runs = kept, 0
        self.graphs = graphs_for(self, self)

    def __call__(self, micro_batches: Sequence[Any]) -> tuple[Tensor, ...]:
        self.runs += 1
        total, count = self.kept
        for batch in micro_batches:
            total.add_(batch["x"].sum() * batch.get("times", 1))
        count.add_(1)
        return total * 1, count * 1
