"""The static inputs of a graph have the layout of the captured batch, whatever it is."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.training.cuda_graphs.graphs import WARM_UPS, graphs_for, without_cuda
from support.training.trees import equal_trees
from torch import Tensor
from torch._dynamo.testing import CompileCounter

_STEPPERS: Any = SimpleNamespace()


@pytest.fixture(autouse=True, scope="module")
def graphs_without_cuda() -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_cuda(monkeypatch, [])
        yield


@st.composite
def _layouts(draw: st.DrawFn) -> Any:
    """Draw slices, and transposed, expanded, overlapping and empty tensors, at any offset."""
    sizes = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = draw(st.lists(st.integers(0, 6), min_size=len(sizes), max_size=len(sizes)))
    offset = draw(st.integers(0, 3))
    dtype = draw(st.sampled_from([torch.float32, torch.int64, torch.bool, torch.uint8, torch.complex64]))
    change = draw(st.sampled_from(["none", "conj", "negative"])) if dtype.is_complex else "none"
    needs_gradient = dtype.is_floating_point and draw(st.booleans())

    def make(seed: int) -> Tensor:
        values = torch.randn(80, generator=torch.Generator().manual_seed(seed), dtype=torch.complex64)
        tensor = values if dtype.is_complex else (values.real * 100).abs().to(dtype)
        tensor = tensor.as_strided(sizes, strides, offset)
        tensor = tensor if change == "none" else tensor.conj()
        return (tensor.imag if change == "negative" else tensor).requires_grad_(needs_gradient)

    return make


def _layout(tensor: Tensor) -> Any:
    flags = tensor.requires_grad, tensor.is_leaf, tensor.is_conj(), tensor.is_neg()
    return tensor.shape, tensor.stride(), tensor.dtype, flags


@given(_layouts(), _layouts())
def test_graph_sees_layout_and_values_of_batch(one: Any, other: Any) -> None:
    layouts: list[Any] = []

    def update(micro_batches: Any) -> tuple[Tensor, ...]:
        layouts.append([_layout(tensor) for tensor in micro_batches])
        return tuple(tensor.detach().reshape(-1) * 1 for tensor in micro_batches)

    graphs = graphs_for(update, _STEPPERS)
    for seed in range(WARM_UPS + 3):
        batch = [one(2 * seed), other(2 * seed + 1)]
        expected = tuple(tensor.detach().reshape(-1) * 1 for tensor in batch)
        assert equal_trees(graphs(batch), expected)
    assert layouts == [list(map(_layout, batch))] * (WARM_UPS + 1)


@pytest.mark.parametrize(
    ("layout", "copied"),
    [
        (lambda wide: wide[:, 3], 5),
        (lambda wide: wide[:, 3:5].t(), 10),
        (lambda wide: wide[:, 3].expand(7, 5), 5),
        (lambda wide: wide[::2, ::100], 30),
        (lambda wide: wide[:2].unfold(1, 4, 2), 2000),  # it overlaps itself: all of the range
    ],
)
def test_gaps_are_not_copied(layout: Any, copied: int) -> None:
    graphs = graphs_for(lambda micro_batches: (micro_batches[0] * 1,), _STEPPERS)
    for _ in range(WARM_UPS + 1):
        graphs([layout(torch.ones(5, 1000))])
    (recorded,) = graphs.captured.values()
    assert [memory.numel() for memory in recorded.inputs] == [copied]


def test_tensor_used_twice_stays_one() -> None:
    are_one: list[bool] = []

    def update(micro_batches: Any) -> tuple[Tensor, ...]:
        (one, other), _ = micro_batches
        are_one.append(one is other)
        return (one + other,)

    graphs = graphs_for(update, _STEPPERS)
    for value in range(WARM_UPS + 3):
        tensor, twice = torch.full((2,), float(value)), torch.full((2,), 2.0 * value)
        assert equal_trees(graphs([(tensor, tensor), (tensor, tensor)]), (2 * tensor,))
        assert equal_trees(graphs([(tensor, twice), (tensor, tensor)]), (3 * tensor,))
    assert are_one == [True, False] * (WARM_UPS + 1)


def test_tensor_in_two_micro_batches_keeps_shape() -> None:
    graphs = graphs_for(lambda micro_batches: (micro_batches[0] + micro_batches[1],), _STEPPERS)
    for value in range(WARM_UPS + 3):
        tensor = torch.full((2,), float(value))
        assert equal_trees(graphs([tensor, tensor]), (2 * tensor,))
        assert equal_trees(graphs([tensor, 2 * tensor]), (3 * tensor,))
    assert len(graphs.captured) == 1


def test_loss_writing_to_batch_grows_no_history() -> None:
    """The static inputs must not collect an autograd history that grows with every replay."""
    weight = torch.ones((), requires_grad=True)

    def update(micro_batches: Any) -> tuple[Tensor, ...]:
        (inputs,) = micro_batches
        inputs.mul_(weight)
        return (inputs.detach() * 1,)

    graphs = graphs_for(update, _STEPPERS)
    for value in range(WARM_UPS + 3):
        graphs([torch.full((2,), float(value))])
    (recorded,) = graphs.captured.values()
    assert not any(memory.requires_grad for memory in recorded.inputs)


_COMPILED = {
    "slice": lambda x: (x[:, :-1], x[:, 1:]),
    "expanded": lambda x: (x[:, :1].expand(4, 6), x[0].expand(4, 6)),
    "transposed": lambda x: (x.t(), x.t()[1:]),
    "overlapping": lambda x: (x.unfold(1, 3, 1), x.as_strided((2, 3), (1, 1))),
    "twice the same": lambda x: (x, x),
    "no row": lambda x: (x[:0], x[:, :0]),
    "a scalar": lambda x: (x[0, 0], x[1, 1]),
    "complex": lambda x: (x.to(torch.complex64).conj(), x.to(torch.complex64).conj().imag),
    "bool": lambda x: (x > 0, (x > 0)[:, ::2]),
    "with a gradient": lambda x: (x.clone().requires_grad_(), x[:, 1:].detach().requires_grad_()),
    "misaligned": lambda x: (x.view(-1)[1:], x.view(-1)[3:7]),
}


@pytest.mark.parametrize("layout", _COMPILED.values(), ids=_COMPILED)
def test_capture_compiles_nothing(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo compares its inputs with those that it compiled for, and would recompile."""
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: nullcontext())
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(lambda one, other: one.sum() + other.sum(), backend=counter)
    graphs = graphs_for(lambda micro_batches: (compiled(*micro_batches[0]).detach(),), _STEPPERS)
    for _ in range(WARM_UPS):
        graphs([layout(torch.randn(4, 6))])
    before = counter.frame_count
    graphs([layout(torch.randn(4, 6))])
    assert len(graphs.captured) == 1
    assert counter.frame_count == before > 0
