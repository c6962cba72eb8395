"""Warm-ups, captures, replays and eager updates, with a stand-in for CUDA graphs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.holds.held import CURVE as HELD_CURVE, PATIENT
from support.training.cuda_graphs.graphs import WARM_UPS, FakeGraph, Sums, capture, graphs_for, without_cuda
from support.training.models import batches, nonfinite
from support.training.steps import make_step
from support.training.trees import equal_trees
from torch import Tensor

from plateau_jax import HoldBelow

_MAX_GRAPHS, _MAX_SHAPES = 8, 64


@pytest.fixture(autouse=True)
def graphs_without_cuda(monkeypatch: pytest.MonkeyPatch, kept: list[Tensor]) -> None:
    without_cuda(monkeypatch, kept)


@pytest.fixture
def kept() -> list[Tensor]:
    """The sum of all values added so far, and their number."""
    return [torch.zeros(()), torch.zeros((), dtype=torch.int64)]


def _batch(rows: int, value: float, **more: Any) -> dict[str, Any]:
    return {"x": torch.full((rows,), value), **more}


def test_update_warms_up_captures_once_and_replays(kept: list[Tensor]) -> None:
    sums = Sums(kept)
    results = [sums.graphs([_batch(2, float(number))]) for number in range(10)]
    assert sums.runs == WARM_UPS + 1
    assert FakeGraph.captures == 1
    assert [result[0].item() for result in results] == [number * (number + 1) for number in range(10)]
    assert [result[1].item() for result in results] == list(range(1, 11))


def test_each_shape_has_graph_up_to_limit(kept: list[Tensor]) -> None:
    sums, total = Sums(kept), 0.0
    for turn in range(6):
        for rows in range(1, _MAX_GRAPHS + 4):
            total += rows * (turn + 1)
            assert sums.graphs([_batch(rows, turn + 1.0)])[0] == total
    assert FakeGraph.captures == _MAX_GRAPHS
    eager = 3 * 6
    assert sums.runs == _MAX_GRAPHS * (WARM_UPS + 1) + eager
    assert kept[1] == 6 * (_MAX_GRAPHS + 3)


@pytest.mark.parametrize(
    "other",
    [
        [_batch(2, 1.0), _batch(2, 1.0)],
        [_batch(2, 1.0, times=3)],
        [{"x": torch.ones(2, dtype=torch.float64)}],
        [{"x": torch.ones(2, 1)}],
    ],
)
def test_batch_of_another_layout_runs_eagerly_first(kept: list[Tensor], other: Any) -> None:
    sums = Sums(kept)
    for _ in range(5):
        sums.graphs([_batch(2, 1.0)])
    before, runs = kept[0].item(), sums.runs
    sums.graphs(other)
    assert sums.runs == runs + 1
    expected = sum(batch["x"].sum().item() * batch.get("times", 1) for batch in other)
    assert kept[0] == before + expected


def test_dropped_graphs_are_captured_again(kept: list[Tensor]) -> None:
    sums = Sums(kept)
    for _ in range(6):
        sums.graphs([_batch(2, 1.0)])
    sums.graphs.drop()
    for _ in range(6):
        sums.graphs([_batch(2, 1.0)])
    assert (FakeGraph.captures, sums.runs) == (2, 2 * (WARM_UPS + 1))
    assert kept[0] == 24


def test_changing_setting_delays_capture(kept: list[Tensor]) -> None:
    """Its graph would be dropped at once."""
    step, captures = make_step("sgd"), list[int]()
    capture(step)
    for number in range(12):
        step.optimizer.param_groups[0]["weight_decay"] = 0.5 / min(number + 1, 8)
        step(*batches(1))
        captures.append(FakeGraph.captures)
    still_changing = 7 + WARM_UPS
    assert captures == [0] * still_changing + [1] * (12 - still_changing)


def test_batch_without_tensors_is_captured(kept: list[Tensor]) -> None:
    sums = Sums(kept)
    for _ in range(6):
        sums.graphs([])
    assert (FakeGraph.captures, kept[1].item()) == (1, 6)


def test_tensor_on_other_device_is_rejected(kept: list[Tensor]) -> None:
    """A graph would keep using the value from the capture."""
    sums = Sums(kept)
    with pytest.raises(ValueError, match="tensor on meta"):
        sums.graphs([_batch(2, 1.0), {"x": torch.ones(2, device="meta")}])
    assert sums.runs == 0


@pytest.mark.parametrize(
    "value",
    [SimpleNamespace(x=torch.ones(2)), np.ones(2), {1}, object()],
    ids=lambda value: type(value).__name__,
)
def test_opaque_object_is_rejected(kept: list[Tensor], value: Any) -> None:
    """A graph would keep using its content from the capture, hashable or not."""
    sums = Sums(kept)
    with pytest.raises(TypeError, match=f"holds a {type(value).__name__}"):
        sums.graphs([_batch(2, 1.0, more=value)])
    assert (sums.runs, kept[1].item()) == (0, 0)


def test_equal_numbers_of_other_types_differ_in_shape(kept: list[Tensor]) -> None:
    sums, seen = Sums(kept), set()

    def update(micro_batches: Any) -> tuple[Tensor, ...]:
        seen.add(type(micro_batches[0]["times"]))
        return sums(micro_batches)

    graphs = graphs_for(update, sums)
    for times in (1, True, 1.0):
        for _ in range(6):
            graphs([_batch(2, 1.0, times=times)])
    assert seen == {int, bool, float}
    assert (FakeGraph.captures, sums.runs) == (3, 3 * (WARM_UPS + 1))
    assert kept[0] == 36


def test_changing_number_does_not_leak_shapes(kept: list[Tensor]) -> None:
    sums, calls = Sums(kept), 2 * _MAX_SHAPES
    for number in range(calls):
        sums.graphs([_batch(2, 1.0, times=number)])
        assert len(sums.graphs._warm_ups) == min(number + 1, _MAX_SHAPES)
    assert (FakeGraph.captures, sums.runs) == (0, calls)
    assert kept[0] == calls * (calls - 1)
    for _ in range(5):  # a number that was met early still gets its graph
        sums.graphs([_batch(2, 1.0, times=1)])
    assert FakeGraph.captures == 1


def test_replay_does_not_overwrite_results(kept: list[Tensor]) -> None:
    sums = Sums(kept)
    results = [sums.graphs([_batch(2, 1.0)]) for _ in range(7)]
    assert len({part.data_ptr() for result in results for part in result}) == 14


@pytest.mark.parametrize("hold", [None, PATIENT, HoldBelow(0.9, 3, every=2), [PATIENT, HoldBelow(0.9, 3)]])
def test_captured_step_matches_eager_step(kept: list[Tensor], hold: Any) -> None:
    """Captured and replayed, with optimizer, clock and skips, it gives the same bits as the eager step."""
    captured, eager = (make_step("momentum", curve=HELD_CURVE, hold=hold, max_norm=0.5) for _ in range(2))
    capture(captured)
    data = [*batches(20), *batches(20, rows=7, seed=1)]
    for number, batch in enumerate(data):
        if number == 2:
            state = captured.optimizer.state_dict()["state"].values()
            kept += [*captured.model.parameters(), *(row["momentum_buffer"] for row in state)]
            kept += [captured._clock._counters, captured._clock.lrs]
            if captured._clock._hold is not None:
                kept += [tensor for pair in captured._clock._hold._memory for tensor in pair]
        chosen = nonfinite(batch) if number % 5 == 0 else batch
        assert equal_trees(captured(chosen), eager(chosen))
    assert FakeGraph.captures == 2
    assert equal_trees(captured.state_dict(), eager.state_dict())
