"""Resumed runs: from any update on, the same bits as the uninterrupted run."""

import copy
from itertools import chain, repeat
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.models import (
    Net,
    Recurrent,
    batches,
    carried_loss,
    mean_loss,
    nonfinite,
    pair_loss,
)
from support.training.optimizers import OPTIMIZERS, make_optimizer
from support.training.steps import CURVE, check_resume, make_step, set_loss_scale, train
from support.training.trees import equal_trees, through_file
from torch import nn
from torch.utils.data import TensorDataset

from torch_bridge import TrainStep, make_loader, prefetch

# Runs may continue past the end of a curve; the warning has its own tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")


def _stops(updates: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, updates), min_size=1, max_size=3)


_OPTIONS: dict[str, dict[str, Any]] = {
    "fp32": {"max_norm": 0.5},
    "bf16": {"precision": "bf16", "loss_fn": pair_loss},
    "fp16": {"precision": "fp16"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
@examples(2)
@given(stops=_stops(24), skips=st.sets(st.integers(0, 23)))
def test_resume_from_any_update(name: str, options: dict[str, Any], stops: set[int], skips: set[int]) -> None:
    updates = [nonfinite(batch) if number in skips else batch for number, batch in enumerate(batches(24))]
    check_resume(lambda: make_step(name, Net(dropout=0.3), **options), updates, stops)


@pytest.mark.parametrize(("kind", "precision"), [("LSTM", "fp32"), ("GRU", "bf16"), ("GRU", "fp16")])
@examples(5)
@given(stops=_stops(12), skips=st.sets(st.integers(0, 11), max_size=5))
def test_resume_with_carry(kind: str, precision: str, stops: set[int], skips: set[int]) -> None:
    def build() -> TrainStep:
        model = Recurrent(kind)
        return make_step("adamw", model, carried_loss, carry=model.initial(), precision=precision)

    updates = batches(12, time=3)
    check_resume(build, [nonfinite(b) if n in skips else b for n, b in enumerate(updates)], stops)


def test_resume_with_adapted_fp16_scale() -> None:
    step, other = (make_step("momentum", precision="fp16") for _ in range(2))
    set_loss_scale(step, 2.0**30, 7)
    *_, data = train(step, batches(20)), batches(20)
    assert step.state_dict()["skipped"] > 0
    other.load_state_dict(through_file(step.state_dict()))
    assert equal_trees(train(step, data), train(other, data))


def test_later_updates_do_not_change_snapshot() -> None:
    for name in ("adamw", "momentum", "rmsprop"):
        model = Recurrent()
        step = make_step(name, model, carried_loss, carry=model.initial())
        data = batches(6, time=3)
        train(step, data[:2])
        state = step.state_dict()
        kept = copy.deepcopy(state)
        train(step, data[2:])
        assert equal_trees(state, kept)
        step.load_state_dict(state)
        train(step, data)
        assert equal_trees(state, kept)
        assert equal_trees(step.state_dict()["curves"], state["curves"])


def test_lrs_are_those_of_loaded_state() -> None:
    """The saved peak counts, and the loaded optimizer follows the clock again."""
    data = batches(8)
    for name in ("adamw", "rmsprop"):
        step = make_step(name)
        train(step, data[:5])
        model = Net()
        optimizer = make_optimizer(name, model, lr=0.7)
        other = TrainStep(model, optimizer, mean_loss, CURVE)
        train(other, data[:2])
        other.load_state_dict(step.state_dict())
        expected = [float(CURVE(n) * torch.tensor(0.01).numpy()) for n in range(5, 8)]
        for batch, rate in zip(data[5:], expected, strict=True):
            assert other(batch).lr.item() == rate
            assert float(torch.tensor(float(optimizer.param_groups[0]["lr"]))) == rate
        again = TrainStep(model, optimizer, mean_loss, CURVE, initial_updates=0)
        assert again(data[0]).lr.item() == float(CURVE(0) * torch.tensor(0.01).numpy())


class _Everything(nn.Module):
    """A recurrent layer, batch normalization and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 2)
        self.norm, self.dropout = nn.BatchNorm1d(5), nn.Dropout(0.3)

    def forward(self, inputs: torch.Tensor, carry: Any) -> Any:
        hidden, carry = self.cells(inputs, carry)
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        return self.last(self.dropout(hidden)), carry


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
def test_resume_in_mid_epoch_with_all_features(name: str) -> None:
    """With fp16, batch statistics, random numbers, a carry, weighted micro-batches, and prefetching."""
    dataset = TensorDataset(*batches(1, rows=44, time=4)[0])

    def loss_fn(model: nn.Module, batch: Any, carry: Any) -> Any:
        outputs, carry = model(batch[0], carry)
        return ((outputs.float() - batch[1]).square().sum(), batch[1].numel()), carry

    def build(seed: int) -> tuple[TrainStep, Any]:
        torch.default_generator.manual_seed(seed)
        feed = prefetch(make_loader(dataset, 4, num_workers=0), "cpu")
        feed._depth = 2  # fetching ahead, as on CUDA
        carry = torch.zeros(1, 4, 5)
        return make_step(name, _Everything(), loss_fn, carry=carry, precision="fp16", max_norm=0.5), feed

    def run(step: TrainStep, feed: Any, updates: int) -> list[Any]:
        stream = chain.from_iterable(repeat(feed))
        return [step(next(stream), next(stream)) for _ in range(updates)]

    uninterrupted, feed = build(3)
    results, end = run(uninterrupted, feed, 14), uninterrupted.state_dict()
    step, feed = build(3)
    done = 0
    for at in (0, 1, 5, 6, 11):  # an epoch has eleven batches: five and a half updates
        assert equal_trees(run(step, feed, at - done), results[done:at]), at
        state = through_file({"step": step.state_dict(), "feed": feed.state_dict()})
        step, feed = build(77)
        step.load_state_dict(state["step"])
        feed.load_state_dict(state["feed"])
        done = at
    assert equal_trees(run(step, feed, 14 - done), results[done:])
    assert equal_trees(step.state_dict(), end)
