"""Captured training on a GPU, with any action between updates: the same bits as eager training."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.cuda_graphs.gpu import (
    FUSED_ON_GPU,
    assert_same_state,
    captured_and_eager,
    graphs_of,
    on_gpu,
)
from support.training.models import Batch, Net, batches, mean_loss, nonfinite, pair_loss
from support.training.steps import CURVE
from support.training.trees import equal_trees, through_file
from torch import Tensor, nn

from torch_bridge import TrainStep, evaluate, prefetch

pytestmark = pytest.mark.gpu


def _device_pair(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return a loss weight computed on the device, whose size varies widely."""
    total, _ = pair_loss(model, batch)
    weight = (batch[0].square().sum() * 100).nan_to_num(1.0)
    return total * weight, weight * batch[1].numel()


_LOSSES = {"mean": mean_loss, "pair": pair_loss, "pair on the device": _device_pair}


@cache
def _data(rows: int) -> list[Batch]:
    return on_gpu(batches(8, rows, seed=rows))


class _Run:
    """A captured step and an eager one that perform the same actions."""

    def __init__(self, name: str, loss_fn: Any, **options: Any) -> None:
        self.steps = captured_and_eager(name, loss_fn=loss_fn, max_norm=0.5, **options)
        self._loss_fn = loss_fn
        self.states = [step.state_dict() for step in self.steps]
        self.number = 0

    def update(self, rows: int = 4, *, bad: bool = False, pieces: int = 2) -> None:
        data = _data(rows)
        micro_batches = [data[(self.number + piece) % len(data)] for piece in range(pieces)]
        if bad:
            micro_batches[-1] = nonfinite(micro_batches[-1])
        self.number += 1
        captured, eager = (step(*micro_batches) for step in self.steps)
        assert equal_trees(captured, eager)

    def save(self) -> None:
        self.states = [through_file(step.state_dict()) for step in self.steps]
        assert equal_trees(*self.states)

    def load(self) -> None:
        for step, state in zip(self.steps, self.states, strict=True):
            step.load_state_dict(state)

    def evaluate(self) -> None:
        captured, eager = (evaluate(step.model, _data(6), self._loss_fn) for step in self.steps)
        assert captured == eager

    def settings(self) -> None:
        for step in self.steps:
            step.optimizer.param_groups[0]["weight_decay"] = 0.01 * (self.number % 3)


_ACTIONS: dict[str, Any] = {
    "update": lambda run: run.update(),
    "several updates": lambda run: [run.update() for _ in range(4)],
    "another shape": lambda run: [run.update(6) for _ in range(2)],
    "one micro-batch": lambda run: [run.update(pieces=1) for _ in range(2)],
    "skipped": lambda run: run.update(bad=True),
    "another shape, skipped": lambda run: run.update(6, bad=True),
    "save": _Run.save,
    "load": _Run.load,
    "evaluate": _Run.evaluate,
    "settings": _Run.settings,
}


@examples(20)
@given(
    st.sampled_from(FUSED_ON_GPU),
    st.sampled_from(["fp32", "bf16", "fp16"]),
    st.sampled_from(list(_LOSSES)),
    st.lists(st.sampled_from(list(_ACTIONS)), min_size=15, max_size=25),
)
def test_actions_between_updates_match_eager(
    name: str, precision: str, loss: str, actions: list[str]
) -> None:
    run = _Run(name, _LOSSES[loss], precision=precision)
    for action in actions:
        _ACTIONS[action](run)
    assert_same_state(*run.steps)


def _with_two_optimizers(captured: bool) -> TrainStep:
    model = Net().cuda()
    matrices, vectors = ([p for p in model.parameters() if p.dim() == size] for size in (2, 1))
    optimizers = [
        torch.optim.AdamW(matrices, lr=0.01, fused=True, capturable=True),
        torch.optim.SGD(vectors, lr=0.1, momentum=0.9, fused=True),
    ]
    return TrainStep(model, optimizers, mean_loss, CURVE, max_norm=0.5, cuda_graph=captured)


def test_several_optimizers_match_eager() -> None:
    captured, eager = _with_two_optimizers(True), _with_two_optimizers(False)
    for number, batch in enumerate(on_gpu(batches(20))):
        batch = nonfinite(batch) if number % 5 == 0 else batch
        assert equal_trees(captured(batch), eager(batch))
        if number == 12:
            for step in (captured, eager):
                step.load_state_dict(through_file(step.state_dict()))
    assert len(graphs_of(captured).captured) == 1
    assert_same_state(captured, eager)
    captured.optimizers[1].param_groups[0]["fused"] = False
    with pytest.raises(ValueError, match="cuda_graph=True needs"):
        captured(*on_gpu(batches(1)))


@pytest.mark.parametrize("loss", _LOSSES)
def test_prefetched_batches_match_eager(loss: str) -> None:
    captured, eager = captured_and_eager(loss_fn=_LOSSES[loss], precision="fp16")
    data = [*batches(8), *batches(4, rows=7), *batches(8, seed=1)]
    ahead = prefetch(data, "cuda")
    for batch, (here,) in zip(ahead, (on_gpu([batch]) for batch in data), strict=True):
        assert equal_trees(captured(batch), eager(here))
    assert len(graphs_of(captured).captured) == 2
    assert_same_state(captured, eager)
