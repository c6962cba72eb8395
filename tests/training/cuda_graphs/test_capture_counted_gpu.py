"""A clock of samples or tokens in CUDA graphs: equal to eager, without waiting."""

from typing import Any

import numpy as np
import pytest
import torch
from support.training.cuda_graphs.gpu import (
    assert_same_state,
    captured_and_eager,
    graphs_of,
    no_waiting,
    on_gpu,
)
from support.training.models import batches, nonfinite, pair_loss
from support.training.steps import CURVE, train
from support.training.trees import equal_trees, through_file
from torch import Tensor

from torch_bridge.training.clock import clock

pytestmark = pytest.mark.gpu


def _count_rows(batch: Any) -> int:
    return len(batch[0])


def _count_positive(batch: Any) -> Tensor:
    return (batch[1] > 0).sum()


@pytest.mark.parametrize("count", [_count_rows, _count_positive])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(("name", "most"), [("adamw", 0), ("momentum", 2**14)])
def test_consumption_matches_eager(
    name: str, most: int, pieces: int, count: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "MAX_TABLE_VALUES", most)
    steps = captured_and_eager(name, loss_fn=pair_loss, max_norm=0.5, unit=3, count=count)
    data, consumed = on_gpu(batches(60)), 0
    for number in range(0, 60, pieces):
        micro = data[number : number + pieces]
        if number % 4 == 3:
            micro[-1] = nonfinite(micro[-1])
        results = [step(*micro) for step in steps]
        assert equal_trees(*results)
        peak = np.float32(steps[0].optimizer.param_groups[0]["initial_lr"])
        assert results[0].lr.item() == np.float32(CURVE(consumed // 3)) * peak
        if number % 4 != 3:
            consumed += sum(int(count(batch)) for batch in micro)
        assert [int(result.consumed) for result in results] == [consumed] * 2
        if number == 18:
            for step in steps:
                step.load_state_dict(through_file(step.state_dict()))
    assert len(graphs_of(steps[0]).captured) == 1
    assert_same_state(*steps)


def test_count_from_shapes_differs_by_graph() -> None:
    captured, eager = captured_and_eager(unit=5, count=_count_rows)
    consumed = 0
    for number in range(16):
        rows = 3 + number % 2
        (batch,) = on_gpu(batches(1, rows=rows, seed=number))
        results = captured(batch), eager(batch)
        consumed += rows
        assert equal_trees(*results)
        assert [int(result.consumed) for result in results] == [consumed] * 2
    assert len(graphs_of(captured).captured) == 2


@pytest.mark.parametrize("most", [0, 2**14], ids=["multiplier", "table"])
@pytest.mark.parametrize("count", [_count_rows, _count_positive])
def test_counted_clock_never_waits(count: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MAX_TABLE_VALUES", most)
    (batch,) = on_gpu(batches(1))
    for step in captured_and_eager(unit=3, count=count):
        train(step, [batch] * 6)
        with no_waiting():
            train(step, [batch] * 12)  # past a copy of the counters


def test_count_may_be_a_host_tensor() -> None:
    step, _ = captured_and_eager(unit=3, count=lambda batch: torch.tensor(4))
    (batch,) = on_gpu(batches(1))
    assert [int(step(batch).consumed) for _ in range(6)] == [4, 8, 12, 16, 20, 24]


def test_new_peak_needs_no_new_graph() -> None:
    steps, data = captured_and_eager(unit=2, count=_count_rows), on_gpu(batches(12))
    for number, batch in enumerate(data):
        if number == 8:
            for step in steps:
                step.set_peak(0.125)
        results = [step(batch) for step in steps]
        assert equal_trees(*results)
        if number >= 8:
            assert results[0].lr.item() == np.float32(CURVE(number * 2)) * np.float32(0.125)
    assert len(graphs_of(steps[0]).captured) == 1
