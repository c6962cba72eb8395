"""Aux outputs, new peaks and initial updates, in CUDA graphs: equal to eager."""

from typing import Any

import pytest
import torch
from support.training.cuda_graphs.gpu import (
    assert_same_state,
    captured_and_eager,
    graphs_of,
    no_waiting,
    on_gpu,
)
from support.training.models import batches, mean_loss, nonfinite, pair_loss
from support.training.steps import CURVE, train
from support.training.trees import equal_trees, through_file
from torch import nn

pytestmark = pytest.mark.gpu

_NAMES = ["adamw", "momentum"]


def _with_aux(loss_fn: Any) -> Any:
    def with_aux(model: nn.Module, batch: Any) -> Any:
        outputs = model(batch[0])
        return loss_fn(model, batch), {"outputs": outputs, "parts": [outputs.mean(), model.last.bias]}

    return with_aux


@pytest.mark.parametrize("loss_fn", [mean_loss, pair_loss])
@pytest.mark.parametrize("pieces", [1, 3])
def test_aux_matches_eager(loss_fn: Any, pieces: int) -> None:
    captured, eager = captured_and_eager(loss_fn=_with_aux(loss_fn), has_aux=True, max_norm=0.5)
    data, kept = on_gpu(batches(36)), []
    for number in range(0, 36, pieces):
        micro = data[number : number + pieces]
        if number % 4 == 3:
            micro[0] = nonfinite(micro[0])
        with torch.no_grad():
            bias = captured.model.last.bias.clone()
        result, expected = captured(*micro), eager(*micro)
        assert equal_trees(result, expected)
        assert len(result.aux) == pieces
        for own, other in zip(result.aux, expected.aux, strict=True):
            assert equal_trees(own["outputs"], other["outputs"])
            assert equal_trees(own["parts"][0], other["parts"][0])
            assert own["parts"][1].shape == bias.shape
            assert not own["outputs"].requires_grad
        kept.append((result.aux[0]["outputs"], expected.aux[0]["outputs"].clone()))
    assert len(graphs_of(captured).captured) == 1
    assert all(equal_trees(*pair) for pair in kept), "no later replay writes there"
    assert_same_state(captured, eager)


def test_aux_structure_may_differ_by_shape() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        loss = mean_loss(model, batch)
        return loss, {"few": loss} if len(batch[0]) < 4 else [loss, loss * 2]

    captured, eager = captured_and_eager(loss_fn=loss_fn, has_aux=True)
    for number in range(16):
        (batch,) = on_gpu(batches(1, rows=3 + number % 2, seed=number))
        result, expected = captured(batch), eager(batch)
        assert equal_trees(result.aux, expected.aux)
        assert isinstance(result.aux[0], list if number % 2 else dict)
    assert len(graphs_of(captured).captured) == 2


def test_aux_never_waits() -> None:
    (batch,) = on_gpu(batches(1))
    for step in captured_and_eager(loss_fn=_with_aux(mean_loss), has_aux=True):
        train(step, [batch] * 6)
        with no_waiting():
            train(step, [batch] * 6)


@pytest.mark.parametrize("name", _NAMES)
def test_new_peak_matches_eager(name: str) -> None:
    steps, data = captured_and_eager(name, max_norm=0.5), on_gpu(batches(24))
    for number, batch in enumerate(data):
        if number in (2, 10, 11):  # while it warms up, and twice after the graph was captured
            graphs = dict(graphs_of(steps[0]).captured)
            for step in steps:
                step.set_peak(0.5 / number)
            assert graphs_of(steps[0]).captured == graphs, "a peak is no reason to capture anew"
        results = [step(batch) for step in steps]
        assert equal_trees(*results)
        if number >= 10:
            peak = torch.tensor(0.5 / min(number, 11)).item()
            assert results[0].lr.item() == torch.tensor(CURVE(number) * peak).item()
        if number == 15:
            for step in steps:
                step.load_state_dict(through_file(step.state_dict()))
    assert len(graphs_of(steps[0]).captured) == 1
    assert_same_state(*steps)


@pytest.mark.parametrize("name", _NAMES)
def test_initial_updates_match_eager(name: str) -> None:
    steps, data = captured_and_eager(name, initial_updates=7), on_gpu(batches(12))
    for number, batch in enumerate(data):
        results = [step(batch) for step in steps]
        assert equal_trees(*results)
        (group,) = steps[0].optimizer.param_groups
        assert int(results[0].applied) == number + 8
        assert results[0].lr.item() == torch.tensor(CURVE(number + 7) * group["initial_lr"]).item()
    assert len(graphs_of(steps[0]).captured) == 1
    assert_same_state(*steps)
