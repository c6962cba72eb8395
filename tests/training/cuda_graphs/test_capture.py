"""Warm-ups, captures and replays, with a stand-in for CUDA graphs."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.training.cuda_graphs.graphs import WARM_UPS, FakeGraph, Sums, graphs_for, without_cuda
from support.training.steps import equal_trees
from torch import Tensor

MAX_GRAPHS, MAX_SHAPES = 8, 64


@pytest.fixture(autouse=True)
def _without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cuda(monkeypatch)


def batch(rows: int = 2, value: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"x": torch.full((rows,), value), **more}


_FIVE = [[batch()]] * 5
_NUMBERS = [[batch(times=number)] for number in range(2 * MAX_SHAPES)]
# The micro-batches of each call; how often an update is captured, and how often Python runs it.
CALLS: dict[str, tuple[Sequence[Any], int, int]] = {
    "one shape": ([[batch(value=number)] for number in range(10)], 1, WARM_UPS + 1),
    "no tensors": ([[]] * 6, 1, WARM_UPS + 1),
    "more micro-batches": ([*_FIVE, [batch(), batch()]], 1, WARM_UPS + 2),
    "another entry": ([*_FIVE, [batch(times=3)]], 1, WARM_UPS + 2),
    "another dtype": ([*_FIVE, [{"x": torch.ones(2, dtype=torch.float64)}]], 1, WARM_UPS + 2),
    "another stride": ([*[[{"x": torch.ones(2, 2)}]] * 5, [{"x": torch.ones(2, 2).t()}]], 1, WARM_UPS + 2),
    "another dimension": ([*_FIVE, [{"x": torch.ones(2, 1)}]], 1, WARM_UPS + 2),
    "equal numbers of different types": (
        [[batch(times=times)] for times in (1, True, 1.0) for _ in range(6)], 3, 3 * (WARM_UPS + 1),
    ),
    "too many shapes for graphs": (
        [[batch(rows, turn)] for turn in range(6) for rows in range(MAX_GRAPHS + 3)],
        MAX_GRAPHS, MAX_GRAPHS * (WARM_UPS + 1) + 3 * 6,
    ),
    # The warm-ups of the first shapes are counted; those of later ones are forgotten.
    "a number that changes": (_NUMBERS, 0, len(_NUMBERS)),
    "an early number again": ([*_NUMBERS, *[_NUMBERS[1]] * 5], 1, len(_NUMBERS) + WARM_UPS),
    "the last counted number again": ([*_NUMBERS, *[_NUMBERS[63]] * 5], 1, len(_NUMBERS) + WARM_UPS),
    "a late number again": ([*_NUMBERS, *[_NUMBERS[64]] * 5], 0, len(_NUMBERS) + 5),
}  # fmt: skip


@pytest.mark.parametrize(("calls", "captures", "runs"), CALLS.values(), ids=CALLS)
def test_update_is_captured_once_per_shape(calls: Sequence[Any], captures: int, runs: int) -> None:
    """Each call takes effect once, and no later one writes into its results."""
    sums, total, expected = Sums(), 0.0, []
    results = [sums.graphs(micro_batches) for micro_batches in calls]
    for count, micro_batches in enumerate(calls, 1):
        total += sum(one["x"].sum().item() * one.get("times", 1) for one in micro_batches)
        expected.append((torch.tensor(total), torch.tensor(count)))
    assert equal_trees(results, expected)
    assert (FakeGraph.captures, sums.runs) == (captures, runs)


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

    graphs = graphs_for(update)
    for seed in range(WARM_UPS + 3):
        tensors = [one(2 * seed), other(2 * seed + 1)]
        expected = tuple(tensor.detach().reshape(-1) * 1 for tensor in tensors)
        assert equal_trees(graphs(tensors), expected)
    assert layouts == [list(map(_layout, tensors))] * (WARM_UPS + 1)


@pytest.mark.parametrize(
    ("arrange", "graphs_needed"),
    [(lambda one, other: [(one, other), (one, one)], 2), (lambda one, other: [one, other], 1)],
    ids=["in one batch", "in two micro-batches"],
)
def test_tensor_used_twice_stays_one(arrange: Any, graphs_needed: int) -> None:
    """A compiled loss_fn depends on which tensors of a batch are one."""
    identities: list[bool] = []

    def update(micro_batches: Any) -> tuple[Tensor, ...]:
        one, other = micro_batches[0] if isinstance(micro_batches[0], tuple) else micro_batches
        identities.append(one is other)
        return (one + other,)

    graphs = graphs_for(update)
    for value in range(WARM_UPS + 3):
        one, other = torch.full((2,), float(value)), torch.full((2,), 2.0 * value)
        assert equal_trees(graphs(arrange(one, one)), (2 * one,))
        assert equal_trees(graphs(arrange(one, other)), (3 * one,))
    assert len(graphs.captured) == graphs_needed
    assert graphs_needed == 1 or identities == [True, False] * (WARM_UPS + 1)


def test_loss_writing_to_batch_grows_no_history() -> None:
    """The static inputs must not collect an autograd history that grows with every replay."""
    weight = torch.ones((), requires_grad=True)

    def update(micro_batches: Any) -> tuple[Tensor, ...]:
        (inputs,) = micro_batches
        inputs.mul_(weight)
        return (inputs.detach() * 1,)

    graphs = graphs_for(update)
    for value in range(WARM_UPS + 3):
        graphs([torch.full((2,), float(value))])
    (recorded,) = graphs.captured.values()
    assert not any(memory.requires_grad for memory in recorded.inputs)
