"""Captured updates on a GPU, and on the CPU with a stand-in for CUDA graphs."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from support.training.cuda_graphs.graphs import CPU, Tape
from torch import Tensor
from torch.utils import _pytree as pytree

from torch_bridge.training.train_step import step


class FakeGraph(Tape):
    """Records the operators of a capture, and what they overwrite."""

    def __init__(self):
        super().__init__()
        self.overwritten = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        parameters = func._schema.arguments
        arguments = dict(kwargs or {})
        for parameter, argument in zip(parameters, args, strict=False):
            arguments[parameter.name] = argument
        for parameter in parameters:
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                self.keep(arguments.get(parameter.name))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def keep(self, argument):
        for tensor in pytree.tree_leaves(argument):
            if tensor is not None:
                self.overwritten.append((tensor, tensor.clone()))

    def undo(self):
        """Restore what the recorded operators overwrote, since a capture executes nothing."""
        with torch.no_grad():
            for tensor, value in reversed(self.overwritten):
                tensor.detach().copy_(value)
        self.overwritten.clear()


@contextmanager
def fake_capture(graph, **_):
    try:
        with graph:
            yield
    finally:
        graph.undo()


def replace_cuda(monkeypatch):
    def nothing(*_): ...

    def the_stream(_):
        return stream

    stream = SimpleNamespace(device=CPU, wait_stream=nothing)
    monkeypatch.setattr(step, "check_graph", nothing)
    monkeypatch.setattr(torch.cuda, "Stream", the_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", the_stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", fake_capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(Tensor, "record_stream", nothing)


@pytest.fixture
def without_cuda(monkeypatch):
    """Replace CUDA's streams and graphs by the stand-in."""
    replace_cuda(monkeypatch)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """The device of steps whose updates are captured."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "cpu":
            replace_cuda(monkeypatch)
        yield request.param
