"""Captured updates against references: held clocks, a hand-written loop, a device that lags."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.held import clocks_of, holds, told
from support.holds.hold_cases import metrics
from support.schedulers.runs import learning_rate
from support.training.cuda_graphs.gpu import FUSED_ON_GPU, gpu_step, graphs_of, on_gpu
from support.training.cuda_graphs.graphs import captured_step
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.steps import CURVE
from support.training.trees import equal_trees

from plateau_jax import StagedCurve
from torch_bridge import follow

SIZE = 24


@examples(20)
@given(
    st.sampled_from(FUSED_ON_GPU),
    st.sampled_from(["fp32", "bf16", "fp16"]),
    holds,
    metrics(SIZE).map(lambda drawn: [loss for loss in drawn if abs(loss) < float("inf")]),
    st.sets(st.integers(0, SIZE)),
)
def test_hold_matches_reference(
    device: str, name: str, precision: str, hold: Any, losses: list[Any], skips: set[int]
) -> None:
    step = captured_step(device, name, loss_fn=told, precision=precision, hold=hold)
    (group,) = step.optimizer.param_groups
    for number, (loss, now) in enumerate(zip(losses, clocks_of(hold, CURVE, losses), strict=False)):
        value = torch.tensor(loss, device=device)
        if number in skips:
            assert int(step(value * float("nan")).clock) == now
        result = step(value)
        assert int(result.clock) == now
        assert result.lr.tolist() == [learning_rate(group["initial_lr"], CURVE, now)]


def test_followed_settings_match_hand_written_loop(device: str) -> None:
    """Each change is noticed; a graph is captured once the values have been constant for some updates."""
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.5, "fused": True, "capturable": True}
    step = captured_step(device, optimizers=lambda model: torch.optim.AdamW(model.parameters(), **options))
    by_hand = Net().to(device)
    reference = torch.optim.AdamW(by_hand.parameters(), **options)
    stairs = StagedCurve([(4,), (4, 0.5), (8,), (0, 0.25), (8,)], start=1.0)
    constant = StagedCurve([(30,)], start=0.5)
    followers = [
        follow(step.optimizer, "weight_decay", stairs), follow(step.optimizer, ("betas", 0), constant)
    ]  # fmt: skip
    recorded = []
    for number, batch in enumerate(batches(26)):
        batch = batch[0].to(device), batch[1].to(device)
        step(batch)
        recorded.append(len(graphs_of(step).captured))
        for follower in followers:
            follower.step()
        (group,) = reference.param_groups
        group["lr"] = torch.tensor(learning_rate(0.01, CURVE, number), device=device)
        group["weight_decay"] = 0.5 * stairs(number)
        group["betas"] = 0.9 * constant(number), group["betas"][1]
        by_hand.zero_grad()
        mean_loss(by_hand, batch).backward()
        reference.step()
    assert equal_trees(step.model.state_dict(), by_hand.state_dict())
    assert recorded == [0] * 3 + [1] * 2 + [0] * 6 + [1] * 5 + [0] * 3 + [1] * 7


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_lrs_match_on_lagging_device(cuda_graph: bool) -> None:
    """The host copies the counters and sets another peak while the device is several updates behind."""
    step = gpu_step(cuda_graph=cuda_graph)
    (good,) = on_gpu(batches(1))
    bad, peak, applied = nonfinite(good), step.optimizer.param_groups[0]["initial_lr"], 0
    results, expected = [], []
    for number in range(60):
        if number % 7 == 3:
            torch.cuda._sleep(2_000_000)
        if number in (33, 34):
            peak = 1 / number
            step.set_peak(peak)
        expected.append(learning_rate(peak, CURVE, applied))
        results.append(step(good if number % 3 else bad))
        applied += number % 3 != 0
    assert [result.lr.item() for result in results] == expected
