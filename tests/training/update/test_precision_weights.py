"""Sums under fp16 are divided by the first weight of the first update, which the state keeps."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.training.models import Net, batches, mean_loss
from support.training.steps import make_step, set_loss_scale
from support.training.trees import equal_trees
from torch import nn

from torch_bridge import TrainStep

pytestmark = pytest.mark.filterwarnings("ignore:loss_fn returned a weight:plateau_jax.CurveWarning")


def _weighed_loss(model: nn.Module, batch: Any) -> Any:
    inputs, targets, weight = batch
    return mean_loss(model, (inputs, targets)) * weight, torch.tensor(weight)


def _weighed(weights: list[float], seed: int = 0) -> list[Any]:
    pieces = zip(batches(len(weights), seed=seed), weights, strict=True)
    return [(*batch, weight) for batch, weight in pieces]


def _divisor(step: TrainStep) -> list[float]:
    """Return the divisor of sums, if one was agreed on."""
    return [value.item() for value in step.state_dict()["loss_scale"][2:]]


@given(st.lists(st.lists(st.sampled_from([0.5, 2.0, 7.0]), min_size=1, max_size=4), min_size=1, max_size=5))
def test_first_weight_is_kept_as_divisor(updates: list[list[float]]) -> None:
    step = make_step("sgd", loss_fn=_weighed_loss, precision="fp16")
    expected: list[float] = []
    for weights in updates:
        step(*_weighed(weights))
        if len(weights) > 1:
            expected = expected or [weights[0]]
        assert _divisor(step) == expected


def test_gradients_are_multiplied_once_per_update(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, multiply = [], torch._foreach_mul_
    monkeypatch.setattr(torch, "_foreach_mul_", lambda *args: calls.append(multiply(*args)))
    step = make_step("sgd", loss_fn=_weighed_loss, precision="fp16")
    for number, weights in enumerate(([1.0, 2.5, 30.0, 7.0], [5.0, 90.0, 1.0], [2.0], [0.0, 4.0]), 1):
        step(*_weighed(weights))
        assert len(calls) == number


def test_host_and_device_weights_give_equal_updates() -> None:
    def on_host(model: nn.Module, batch: Any) -> Any:
        total, weight = _weighed_loss(model, batch)
        return total, weight.item()

    steps = [make_step("sgd", loss_fn=loss_fn, precision="fp16") for loss_fn in (_weighed_loss, on_host)]
    for step in steps:
        set_loss_scale(step, 2.0**10, 0)
    for seed, weights in enumerate(([3.0, 5.0, 1.0], [8.0, 0.5], [1.0, 2.0, 90.0], [4.0], [0.0, 2.0])):
        one, other = (step(*_weighed(weights, seed)) for step in steps)
        assert one.skipped == other.skipped == 0
        torch.testing.assert_close(one, other, rtol=2e-3, atol=0)


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_jump_of_weights_costs_a_few_updates(first: float) -> None:
    """The scale halves until the larger gradients fit; then updates are applied again."""
    step = make_step("sgd", loss_fn=_weighed_loss, precision="fp16")
    step(*_weighed([first, 1.0]))
    results = [step(*_weighed([1.0, 4000.0], seed)) for seed in range(25)]
    skipped = [int(result.skipped) for result in results]
    assert skipped[-1] < 20
    assert skipped[-1] == skipped[-5]


@pytest.mark.parametrize("before", [[1000.7, 3.0], [0.01, 0.3]])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_resume_restores_the_divisor(before: list[float], at: int) -> None:
    """Bit for bit, from states with three entries (after an update of several weights) and with two."""
    updates = [_weighed([3.3, 5.1 + number, 0.7], number) for number in range(6)]
    uninterrupted, first, second = (
        make_step("sgd", loss_fn=_weighed_loss, precision="fp16") for _ in range(3)
    )
    results = [uninterrupted(*pieces) for pieces in updates]
    for pieces in updates[:at]:
        first(*pieces)
    second(*_weighed(before))
    state = first.state_dict()
    assert len(state["loss_scale"]) == (3 if at else 2)
    second.load_state_dict(state)
    assert equal_trees([second(*pieces) for pieces in updates[at:]], results[at:])
    assert equal_trees(second.state_dict(), uninterrupted.state_dict())


def test_failed_update_leaves_no_divisor() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        if batch is None:
            raise ZeroDivisionError
        return _weighed_loss(model, batch)

    one, other = (make_step("sgd", loss_fn=loss_fn, precision="fp16") for _ in range(2))
    with pytest.raises(ZeroDivisionError):
        one(*_weighed([7.3]), None)
    assert _divisor(one) == []
    assert equal_trees(one(*_weighed([3.3, 5.1])), other(*_weighed([3.3, 5.1])))
    with pytest.raises(ZeroDivisionError):
        one(None, *_weighed([7.3]))
    assert equal_trees(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("first", [True, False])
def test_nonfinite_weight_does_not_persist(value: float, first: bool) -> None:
    steps = [make_step("sgd", loss_fn=_weighed_loss, precision="fp16") for _ in range(2)]
    for step in steps:
        set_loss_scale(step, 2.0**10, 0)
        if not first:
            step(*_weighed([3.0, 5.0]))
    for weights in ([value, 2.0], [2.0, value], [value, value]):
        steps[0](*_weighed(weights))
    assert steps[0].state_dict()["skipped"] == 3
    assert _divisor(steps[0]) == [1.0 if first else 3.0]
    for seed in range(3):
        one, other = (step(*_weighed([3.0, 5.0, 6.0], seed)) for step in steps)
        assert one.applied == other.applied
        torch.testing.assert_close(one[:2], other[:2], rtol=2e-3, atol=0)


def test_fp16_parameters_without_scale_keep_a_divisor() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        return _weighed_loss(model, (batch[0].half(), batch[1].half(), batch[2]))

    first, second = (make_step("adamw", Net().half(), loss_fn) for _ in range(2))
    assert first.state_dict()["loss_scale"] is None
    first(*_weighed([3.0, 5.0]))
    second.load_state_dict(first.state_dict())
    assert second.state_dict()["loss_scale"] == [3.0]
    later = _weighed([20.0, 1.0], seed=1)
    assert equal_trees(first(*later), second(*later))
    assert equal_trees(first.state_dict(), second.state_dict())
