"""Sums and weights under fp16: divided by the largest weight so far, which the device remembers."""

from typing import Any

import pytest
import torch
from support.training import batches, mean_loss, same, spoiled, step_of
from torch import nn

from torch_bridge import TrainStep


def _growing(step: TrainStep, scale: float, good_updates: int) -> None:
    state = step.state_dict()
    state["loss_scale"] = [torch.tensor(scale), torch.tensor(good_updates, dtype=torch.int32)]
    step.load_state_dict(state)


def _weighed_loss(model: nn.Module, batch: Any) -> Any:
    inputs, targets, weight = batch
    return mean_loss(model, (inputs, targets)) * weight, torch.tensor(weight)


def _weighed(weights: list[float], seed: int = 0) -> list[Any]:
    pieces = zip(batches(len(weights), seed=seed), weights, strict=True)
    return [(*batch, weight) for batch, weight in pieces]


def _multiplications(monkeypatch: pytest.MonkeyPatch, call: Any) -> int:
    """How often gradients were multiplied."""
    calls, multiply = [], torch._foreach_mul_

    def counted(*args: Any) -> None:
        calls.append(1)
        multiply(*args)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "_foreach_mul_", counted)
        call()
    return len(calls)


def test_gradients_are_multiplied_once_an_update_in_the_steady_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights on the device are unknown to the host; from the second update on there is a largest one."""
    step = step_of("sgd", loss_fn=_weighed_loss, precision="fp16")
    growing = _weighed([1.0, 2.5, 30.0, 7.0])
    assert _multiplications(monkeypatch, lambda: step(*growing)) == 4
    for weights in ([1.0, 2.5, 30.0, 7.0], [5.0, 90.0, 1.0], [2.0], [0.0, 4.0]):
        assert _multiplications(monkeypatch, lambda weights=weights: step(*_weighed(weights))) == 1


def test_weights_on_the_device_and_on_the_host_give_the_same_updates() -> None:
    def on_host(model: nn.Module, batch: Any) -> Any:
        total, weight = _weighed_loss(model, batch)
        return total, weight.item()

    steps = [step_of("sgd", loss_fn=loss_fn, precision="fp16") for loss_fn in (_weighed_loss, on_host)]
    for step in steps:
        _growing(step, 2.0**10, 0)
    for seed, weights in enumerate(([3.0, 5.0, 1.0], [8.0, 0.5], [1.0, 2.0, 90.0], [4.0], [0.0, 2.0])):
        one, other = (step(*_weighed(weights, seed)) for step in steps)
        assert one.skipped == other.skipped == 0
        torch.testing.assert_close(one, other, rtol=2e-3, atol=0)


@pytest.mark.parametrize("spoiled_first", [False, True])
def test_a_weight_far_above_all_before_costs_one_update(spoiled_first: bool) -> None:
    step, (batch, *_) = step_of("sgd", loss_fn=_weighed_loss, precision="fp16"), _weighed([1.0])
    if spoiled_first:
        step((*spoiled(batch[:2]), 1.0), (*batch[:2], 1.0))
    else:
        step(batch, batch)
    skipped = step(*_weighed([1.0, 4000.0])).skipped
    for seed in range(3):
        assert step(*_weighed([1.0, 4000.0], seed)).skipped == skipped


@pytest.mark.parametrize("before", [[1000.7, 3.0], [0.01, 0.3]])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_the_largest_weight_is_resumed(before: list[float], at: int) -> None:
    """Bit for bit, with three entries (after an update with device weights) and two, wherever it was."""
    updates = [_weighed([3.3, 5.1 + number, 0.7], number) for number in range(6)]
    straight, first, second = (step_of("sgd", loss_fn=_weighed_loss, precision="fp16") for _ in range(3))
    results = [straight(*pieces) for pieces in updates]
    for pieces in updates[:at]:
        first(*pieces)
    second(*_weighed(before))
    state = first.state_dict()
    assert len(state["loss_scale"]) == (3 if at else 2)
    second.load_state_dict(state)
    assert same([second(*pieces) for pieces in updates[at:]], results[at:])
    assert same(second.state_dict(), straight.state_dict())


def test_a_state_from_before_largest_weights_were_kept() -> None:
    """It has two entries: the first update looks for the largest weight anew."""
    first, second = (step_of("sgd", loss_fn=_weighed_loss, precision="fp16") for _ in range(2))
    first(*_weighed([3.0, 5.0]))
    state = first.state_dict()
    state["loss_scale"] = state["loss_scale"][:2]
    second.load_state_dict(state)
    one, other = (step(*_weighed([2.0, 7.0])) for step in (first, second))
    torch.testing.assert_close(one, other, rtol=2e-3, atol=0)
    assert same(second.state_dict()["loss_scale"][2], torch.tensor(7.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("first", [True, False])
def test_a_weight_that_is_not_finite_does_no_harm_later(value: float, first: bool) -> None:
    steps = [step_of("sgd", loss_fn=_weighed_loss, precision="fp16") for _ in range(2)]
    for step in steps:
        _growing(step, 2.0**10, 0)
        if not first:
            step(*_weighed([3.0, 5.0]))
    for weights in ([value, 2.0], [2.0, value], [value, value]):
        steps[0](*_weighed(weights))
    assert steps[0].state_dict()["skipped"] == 3
    for seed in range(3):
        one, other = (step(*_weighed([3.0, 5.0, 6.0], seed)) for step in steps)
        assert one.applied == other.applied
        torch.testing.assert_close(one[:2], other[:2], rtol=2e-3, atol=0)
    assert steps[0].state_dict()["loss_scale"][2] == 6
