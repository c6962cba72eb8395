"""Captured updates on a GPU: the same bits as eager ones, no waiting, and new graphs when needed."""

from typing import Any

import pytest
import torch
from support.holds.held import float32_rate
from support.training.cuda_graphs.gpu import FUSED_ON_GPU, gpu_step, graphs_of, no_waiting, on_gpu
from support.training.models import (
    Net,
    Recurrent,
    batches,
    carried_loss,
    device_pair_loss,
    mean_loss,
    nonfinite,
    pair_loss,
)
from support.training.optimizers import FUSED
from support.training.steps import CURVE, set_loss_scale, train
from support.training.trees import equal_trees
from torch import nn

pytestmark = [
    pytest.mark.gpu,
    # Runs may go on past the end of a curve; the warning has its own tests.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


_LOSSES = {"mean": mean_loss, "pair": pair_loss}


@pytest.mark.parametrize("name", FUSED_ON_GPU)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loss_fn", _LOSSES.values(), ids=_LOSSES)
def test_captured_matches_eager(name: str, precision: str, loss_fn: Any) -> None:
    options: dict[str, Any] = {"loss_fn": loss_fn, "precision": precision, "max_norm": 0.5}
    captured, eager = gpu_step(name, cuda_graph=True, **options), gpu_step(name, **options)
    data = on_gpu(batches(40))
    for number in range(0, 40, 2):
        first = nonfinite(data[number]) if number % 6 == 0 else data[number]
        assert equal_trees(captured(first, data[number + 1]), eager(first, data[number + 1]))
    assert len(graphs_of(captured).captured) == 1
    assert equal_trees(captured.state_dict(), eager.state_dict())


@pytest.mark.parametrize(
    ("kind", "precision"), [("LSTM", "fp32"), ("LSTM", "bf16"), ("LSTM", "fp16"), ("GRU", "fp32")]
)
def test_captured_matches_eager_with_carry(kind: str, precision: str) -> None:
    steps = []
    for flag in (True, False):
        model = Recurrent(kind)
        carry = model.initial()
        steps.append(
            gpu_step("adamw", model, carried_loss, carry=carry, precision=precision, cuda_graph=flag)
        )
    captured, eager = steps
    data = on_gpu(batches(24, time=3))
    for number in range(0, 24, 2):
        pieces = data[number], nonfinite(data[number + 1]) if number % 8 == 0 else data[number + 1]
        assert equal_trees(captured(*pieces), eager(*pieces))
        if number == 14:
            captured.reset_carry()
            eager.reset_carry()
    assert equal_trees(captured.state_dict(), eager.state_dict())


def test_dropout_matches_eager() -> None:
    data = on_gpu(batches(20))
    results = []
    for flag in (True, False):
        torch.cuda.synchronize()
        torch.manual_seed(0)
        results.append(train(gpu_step(model=Net(dropout=0.5), cuda_graph=flag), data))
    assert equal_trees(*results)


def test_each_shape_has_graph_up_to_limit() -> None:
    captured, eager = gpu_step(cuda_graph=True), gpu_step()
    for _ in range(5):
        for rows in range(1, 12):
            (batch,) = on_gpu(batches(1, rows, seed=rows))
            assert equal_trees(captured(batch), eager(batch))
    assert len(graphs_of(captured).captured) == 8


@pytest.mark.parametrize("name", FUSED_ON_GPU)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_steady_state_never_waits(name: str, precision: str, cuda_graph: bool) -> None:
    for loss_fn in (mean_loss, pair_loss):
        step = gpu_step(name, loss_fn=loss_fn, precision=precision, max_norm=0.5, cuda_graph=cuda_graph)
        good = on_gpu(batches(1))[0]
        bad = nonfinite(good)
        for _ in range(6):
            step(good, good)
        with no_waiting():
            for _ in range(10):  # past a copy of the clock's counters
                step(good, good)
                step(bad, good)
        result = step(good, good)
        assert result.lr.item() == pytest.approx(CURVE(int(result.applied) - 1) * FUSED[name][1]["lr"])


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
        expected.append(float32_rate(peak, CURVE, applied))
        results.append(step(good if number % 3 else bad))
        applied += number % 3 != 0
    assert [result.lr.item() for result in results] == expected


def test_weights_computed_on_device_match_eager() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        total, _ = device_pair_loss(model, batch[:2])
        return total, batch[2]

    captured, eager = (gpu_step(loss_fn=loss_fn, cuda_graph=flag) for flag in (True, False))
    for number, batch in enumerate(on_gpu(batches(10))):
        pieces = (*batch, torch.tensor(number + 1, device="cuda")), (*batch, torch.tensor(0, device="cuda"))
        assert equal_trees(captured(*pieces), eager(*pieces))


def test_fp16_scale_search_matches_eager() -> None:
    """Overflows before, while, and after the graph is captured."""
    captured, eager = (gpu_step("momentum", precision="fp16", cuda_graph=flag) for flag in (True, False))
    for step in (captured, eager):
        set_loss_scale(step, 2.0**30)
    (batch,) = on_gpu(batches(1))
    for _ in range(40):
        assert equal_trees(captured(batch), eager(batch))
    assert captured.state_dict()["skipped"] > 5
    assert len(graphs_of(captured).captured) == 1


def test_captured_runs_on_any_stream() -> None:
    data = on_gpu(batches(12))
    captured, eager = (gpu_step(cuda_graph=flag) for flag in (True, False))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        results = train(captured, data)
        expected = train(eager, data)
    torch.cuda.synchronize()
    assert equal_trees(results, expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_compiled_and_captured_matches_eager() -> None:
    both, eager = gpu_step(compile=True, cuda_graph=True), gpu_step()
    for batch in on_gpu(batches(12)):
        torch.testing.assert_close(both(batch), eager(batch), rtol=1e-5, atol=1e-6)
    assert len(graphs_of(both).captured) == 1
