"""Warm-ups, captures and replays, with a stand-in for CUDA graphs."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, strategies as st
from support.training.cuda_graphs.graphs import WARM_UPS, Sums, graphs_for
from support.trees import assert_equal_trees

pytestmark = pytest.mark.usefixtures("without_cuda")

MAX_SHAPES = 8


# The number of captures, and of the runs in Python: each shape has warm-ups, and then a capture.


def batch(rows=2, value=1.0, **more):
    return {"x": torch.full((rows,), value), **more}


def sum_of(micro_batch):
    return micro_batch["x"].sum().item() * micro_batch.get("times", 1)


def check_captures(updates, *, captures, runs):
    """Check that each update takes effect once, and that no later one writes into its results."""
    sums = Sums()
    results = [sums.graphs(micro_batches) for micro_batches in updates]
    expected = []
    total = 0.0
    for count, micro_batches in enumerate(updates, start=1):
        total += sum(map(sum_of, micro_batches))
        expected.append((torch.tensor(total), torch.tensor(count)))
    assert_equal_trees(results, expected)
    assert len(sums.graphs.captured) == captures
    assert sums.runs == runs


CAPTURED = [[batch()]] * 5
"""Updates after which one shape has a graph."""


@pytest.mark.parametrize(
    "micro_batches",
    [
        [batch(), batch()],
        [batch(times=3)],
        [{"x": torch.ones(2, dtype=torch.float64)}],
        [{"x": torch.ones(2, 1)}],
        [{"x": torch.ones(4)[::2]}],
    ],
    ids=["more micro-batches", "entry", "dtype", "dimension", "stride"],
)
def test_update_of_another_shape(micro_batches):
    check_captures([*CAPTURED, micro_batches], captures=1, runs=WARM_UPS + 2)


def test_equal_numbers_of_different_types():
    updates = []
    for times in (1, True, 1.0):
        updates += [[batch(times=times)]] * 6
    check_captures(updates, captures=3, runs=3 * (WARM_UPS + 1))


def test_too_many_shapes_for_graphs():
    updates = []
    for turn in range(6):
        updates.extend([batch(rows, turn)] for rows in range(MAX_SHAPES + 3))
    runs = MAX_SHAPES * (WARM_UPS + 1) + 3 * 6
    check_captures(updates, captures=MAX_SHAPES, runs=runs)


NUMBERS = [[batch(times=number)] for number in range(2 * MAX_SHAPES)]
"""Updates with a number that changes. The warm-ups of the first shapes are counted, no others."""


@pytest.mark.parametrize("number", [1, MAX_SHAPES - 1])
def test_number_whose_warm_ups_are_counted(number):
    updates = NUMBERS + [NUMBERS[number]] * 5
    check_captures(updates, captures=1, runs=len(NUMBERS) + WARM_UPS)


# The graph sees the layout and the values of the batch.


@dataclass
class Layout:
    """A slice, or a transposed, overlapping or empty tensor, at any offset."""

    sizes: list[int]
    strides: list[int]
    offset: int
    dtype: torch.dtype
    requires_grad: bool

    def tensor(self, seed):
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(80, generator=generator, dtype=torch.complex64)
        if not self.dtype.is_complex:
            values = (values.real * 100).abs().to(self.dtype)
        tensor = values.as_strided(self.sizes, self.strides, self.offset)
        return tensor.requires_grad_(self.requires_grad)


@st.composite
def layouts(draw):
    sizes = draw(st.lists(st.integers(0, 4), max_size=3))
    dimensions = len(sizes)
    strides = draw(st.lists(st.integers(1, 6), min_size=dimensions, max_size=dimensions))
    dtypes = [torch.float32, torch.int64, torch.bool, torch.uint8, torch.complex64]
    layout = Layout(
        sizes=sizes,
        strides=strides,
        offset=draw(st.integers(0, 3)),
        dtype=draw(st.sampled_from(dtypes)),
        requires_grad=False,
    )
    if layout.dtype.is_floating_point:
        layout.requires_grad = draw(st.booleans())
    return layout


def layout_of(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_leaf


def contents(tensors):
    return tuple(tensor.detach().reshape(-1) * 1 for tensor in tensors)


@given(layouts(), layouts())
def test_graph_sees_layout_and_values_of_batch(first, second):
    layouts_seen = []

    def update(micro_batches):
        layouts_seen.append(list(map(layout_of, micro_batches)))
        return contents(micro_batches)

    graphs = graphs_for(update)
    tensors = []
    for seed in range(WARM_UPS + 3):
        tensors = [first.tensor(2 * seed), second.tensor(2 * seed + 1)]
        assert_equal_trees(graphs(tensors), contents(tensors))
    layouts_of_batch = list(map(layout_of, tensors))
    assert layouts_seen == [layouts_of_batch] * (WARM_UPS + 1)


@pytest.mark.parametrize("kind", ["repeated", "expanded"])
def test_batch_with_shared_memory_runs_eagerly(kind):
    """Also after a capture. In two micro-batches, one tensor may be the same."""
    seen = []

    def update(micro_batches):
        seen.append(micro_batches)
        return (sum(micro_batch["x"] + micro_batch["y"] for micro_batch in micro_batches),)

    graphs = graphs_for(update)
    one = torch.ones(2)
    captured = [{"x": one, "y": torch.full((2,), 2.0)}, {"x": one, "y": torch.zeros(2)}]
    shared = [captured[0], {"x": one, "y": one if kind == "repeated" else one[:1].expand(2)}]
    for _ in range(WARM_UPS + 3):
        assert_equal_trees(graphs(captured), (torch.full((2,), 4.0),))
        assert_equal_trees(graphs(shared), (torch.full((2,), 5.0),))
    assert len(graphs.captured) == 1
    assert sum(micro_batches is shared for micro_batches in seen) == WARM_UPS + 3


def test_loss_writing_to_batch_grows_no_history():
    """The static inputs must not collect an autograd history that grows with every replay."""
    weight = torch.ones((), requires_grad=True)

    def update(micro_batches):
        (inputs,) = micro_batches
        inputs.mul_(weight)
        return (inputs.detach() * 1,)

    graphs = graphs_for(update)
    for value in range(WARM_UPS + 3):
        graphs([torch.full((2,), float(value))])
    (recorded,) = graphs.captured.values()
    assert not any(memory.requires_grad for memory in recorded.inputs)
