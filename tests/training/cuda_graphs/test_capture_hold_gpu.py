"""Held clocks and settings that follow a curve, in CUDA graphs: equal to eager and to a reference."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.held import PATIENT, clocks_of, float32_rate, holds, told
from support.holds.hold_cases import metrics
from support.training.cuda_graphs.gpu import (
    FUSED_ON_GPU,
    assert_same_state,
    captured_and_eager,
    graphs_of,
    no_waiting,
    on_gpu,
)
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.steps import CURVE, train
from support.training.trees import equal_trees, through_file

from plateau_jax import HoldBelow, StagedCurve
from torch_bridge import TrainStep, follow

pytestmark = pytest.mark.gpu

SIZE = 24
_HOLDS = {"flat": PATIENT, "below": HoldBelow(0.9, 3, every=2), "both": [PATIENT, HoldBelow(0.9, 3)]}


@examples(20)
@given(
    st.sampled_from(FUSED_ON_GPU),
    st.sampled_from(["fp32", "bf16", "fp16"]),
    holds,
    metrics(SIZE).map(lambda drawn: [loss for loss in drawn if abs(loss) < float("inf")]),
    st.sets(st.integers(0, SIZE)),
)
def test_hold_matches_reference(
    name: str, precision: str, hold: Any, losses: list[Any], skips: set[int]
) -> None:
    steps = captured_and_eager(name, Net(), told, precision=precision, hold=hold)
    expected = clocks_of(hold, CURVE, losses)
    (group,) = steps[0].optimizer.param_groups
    for number, (loss, now) in enumerate(zip(losses, expected, strict=False)):
        if number in skips:
            for step in steps:
                assert int(step(torch.tensor(float("nan"), device="cuda")).clock) == now
        results = [step(torch.tensor(loss, device="cuda")) for step in steps]
        assert equal_trees(*results)
        assert int(results[0].clock) == now
        assert results[0].lr.tolist() == [float32_rate(group["initial_lr"], CURVE, now)]
    assert_same_state(*steps)


@pytest.mark.parametrize("hold", _HOLDS.values(), ids=_HOLDS)
@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_captured_hold_matches_eager(name: str, hold: Any) -> None:
    steps = captured_and_eager(name, hold=hold, max_norm=0.5)
    for number, batch in enumerate(on_gpu(batches(40))):
        assert equal_trees(*(step(nonfinite(batch) if number % 6 == 5 else batch) for step in steps))
        if number == 20:
            assert len(graphs_of(steps[0]).captured) == 1
            for step in steps:
                step.load_state_dict(through_file(step.state_dict()))
    assert len(graphs_of(steps[0]).captured) == 1
    assert_same_state(*steps)
    assert steps[0].state_dict()["clock"] < steps[0].state_dict()["applied"]


def test_captured_hold_never_waits() -> None:
    (batch,) = on_gpu(batches(1))
    for step in captured_and_eager(hold=_HOLDS["both"]):
        train(step, [batch] * 6)
        with no_waiting():
            results = train(step, [batch] * 20)
        assert int(results[-1].applied) == 26


def test_followed_setting_matches_eager() -> None:
    """Each change is noticed; a graph is captured once the value has been constant for some updates."""
    stairs = StagedCurve([(4,), (4, 0.5), (8,), (0, 0.25), (8,)], start=1.0)
    steps, followers = captured_and_eager("adamw"), []
    for step in steps:
        followers.append(follow(step.optimizer, "weight_decay", stairs))
        followers.append(follow(step.optimizer, ("betas", 0), StagedCurve([(30,)], start=0.5)))
    recorded = []
    for batch in on_gpu(batches(26)):
        assert equal_trees(*(step(batch) for step in steps))
        recorded.append(len(graphs_of(steps[0]).captured))
        for follower in followers:
            follower.step()
    assert_same_state(*steps)
    assert recorded == [0] * 3 + [1] * 2 + [0] * 6 + [1] * 5 + [0] * 3 + [1] * 7


def test_update_uses_present_group_value() -> None:
    """Captured and eager steps match a hand-written loop."""
    model, by_hand = Net().cuda(), Net().cuda()
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.5, "fused": True, "capturable": True}
    optimizer, reference = (torch.optim.AdamW(net.parameters(), **options) for net in (model, by_hand))
    step = TrainStep(model, optimizer, mean_loss, CURVE, cuda_graph=True)
    curve = StagedCurve([(3, 0.5), (6,), (3, 0.25), (12,)], start=1.0)
    follower = follow(optimizer, "weight_decay", curve)
    for number, batch in enumerate(on_gpu(batches(24))):
        step(batch)
        follower.step()
        (group,) = reference.param_groups
        group["lr"] = torch.tensor(float32_rate(0.01, CURVE, number), device="cuda")
        group["weight_decay"] = 0.5 * curve(number)
        by_hand.zero_grad()
        mean_loss(by_hand, batch).backward()
        reference.step()
    assert equal_trees(model.state_dict(), by_hand.state_dict())
