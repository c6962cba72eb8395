"""Captured updates on a GPU: the bits of eager ones, no waiting, and new graphs where they are due."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.training import (
    CURVE,
    FUSED,
    Batch,
    Net,
    Recurrent,
    batches,
    carried_loss,
    device_pair_loss,
    mean_loss,
    optimizer_of,
    pair_loss,
    same,
    spoiled,
    through_a_file,
    train,
)
from torch import nn

from torch_bridge import TrainStep
from torch_bridge.training.capture import Graphs

pytestmark = pytest.mark.gpu


def _on_gpu(data: list[Batch]) -> list[Batch]:
    return [(inputs.cuda(), targets.cuda()) for inputs, targets in data]


def _step(
    name: str = "adamw", model: nn.Module | None = None, loss_fn: Any = mean_loss, **options: Any
) -> TrainStep:
    model = (Net() if model is None else model).cuda()
    more = {"capturable": True} if "capturable" in FUSED[name][0](model.parameters()).defaults else {}
    return TrainStep(model, optimizer_of(name, model, **more), loss_fn, CURVE, **options)


def _graphs(step: TrainStep) -> Graphs:
    assert step._graphs is not None
    return step._graphs


@contextmanager
def _no_waiting() -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")  # once a process
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


_LOSSES = {"mean": mean_loss, "pair": pair_loss}


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loss_fn", _LOSSES.values(), ids=_LOSSES)
def test_the_bits_of_eager(name: str, precision: str, loss_fn: Any) -> None:
    options: dict[str, Any] = {"loss_fn": loss_fn, "precision": precision, "max_norm": 0.5}
    captured, eager = _step(name, cuda_graph=True, **options), _step(name, **options)
    data = _on_gpu(batches(40))
    for number in range(0, 40, 2):
        first = spoiled(data[number]) if number % 6 == 0 else data[number]
        assert same(captured(first, data[number + 1]), eager(first, data[number + 1]))
    assert len(_graphs(captured).recorded) == 1
    assert same(captured.state_dict(), eager.state_dict())


@pytest.mark.parametrize(
    ("kind", "precision"), [("LSTM", "fp32"), ("LSTM", "bf16"), ("LSTM", "fp16"), ("GRU", "fp32")]
)
def test_with_a_carry(kind: str, precision: str) -> None:
    steps = []
    for flag in (True, False):
        model = Recurrent(kind)
        carry = model.initial()
        steps.append(_step("adamw", model, carried_loss, carry=carry, precision=precision, cuda_graph=flag))
    captured, eager = steps
    data = _on_gpu(batches(24, time=3))
    for number in range(0, 24, 2):
        pieces = data[number], spoiled(data[number + 1]) if number % 8 == 0 else data[number + 1]
        assert same(captured(*pieces), eager(*pieces))
        if number == 14:
            captured.reset_carry()
            eager.reset_carry()
    assert same(captured.state_dict(), eager.state_dict())


def test_dropout_draws_the_numbers_of_eager() -> None:
    data = _on_gpu(batches(20))
    results = []
    for flag in (True, False):
        torch.manual_seed(0)
        results.append(train(_step(model=Net(dropout=0.5), cuda_graph=flag), data))
    assert same(*results)


def test_every_shape_has_its_graph_up_to_a_few() -> None:
    captured, eager = _step(cuda_graph=True), _step()
    for _ in range(5):
        for rows in range(1, 12):
            (batch,) = _on_gpu(batches(1, rows, seed=rows))
            assert same(captured(batch), eager(batch))
    assert len(_graphs(captured).recorded) == 8


@pytest.mark.parametrize(
    "change",
    [
        lambda step: step.model.eval(),
        lambda step: step.model.first.weight.requires_grad_(False),
        lambda step: step.optimizer.param_groups[0].__setitem__("weight_decay", 0.5),
        lambda step: step.load_state_dict(through_a_file(step.state_dict())),
        lambda step: step.optimizer.load_state_dict(step.optimizer.state_dict()),
    ],
)
def test_a_change_takes_effect(change: Any) -> None:
    captured, eager = (_step(model=Net(dropout=0.1), cuda_graph=flag) for flag in (True, False))
    data = _on_gpu(batches(8))
    for step in (captured, eager):
        torch.manual_seed(0)
        train(step, data)
        change(step)
    for step in (captured, eager):
        torch.manual_seed(1)
        step.results = train(step, data)
    assert same(captured.results, eager.results)
    assert same(list(captured.model.parameters()), list(eager.model.parameters()))


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_the_steady_state_never_waits(name: str, precision: str, cuda_graph: bool) -> None:
    for loss_fn in (mean_loss, pair_loss):
        step = _step(name, loss_fn=loss_fn, precision=precision, max_norm=0.5, cuda_graph=cuda_graph)
        good = _on_gpu(batches(1))[0]
        bad = spoiled(good)
        for _ in range(6):
            step(good, good)
        with _no_waiting():
            for _ in range(1200):  # past a refresh of the clock's window
                step(good, good)
                step(bad, good)
        result = step(good, good)
        assert result.lr.item() == pytest.approx(CURVE(int(result.applied) - 1) * FUSED[name][1]["lr"])


def test_weights_made_on_the_device() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        total, _ = device_pair_loss(model, batch[:2])
        return total, batch[2]

    captured, eager = (_step(loss_fn=loss_fn, cuda_graph=flag) for flag in (True, False))
    for number, batch in enumerate(_on_gpu(batches(10))):
        pieces = (*batch, torch.tensor(number + 1, device="cuda")), (*batch, torch.tensor(0, device="cuda"))
        assert same(captured(*pieces), eager(*pieces))


def test_what_cannot_be_captured_is_refused() -> None:
    model = Net().cuda()
    for name in ("adamw", "rmsprop", "plain adam"):
        optimizer = optimizer_of(name, model)
        with pytest.raises(ValueError, match="cuda_graph=True needs"):
            TrainStep(model, optimizer, mean_loss, CURVE, cuda_graph=True)
        assert "initial_lr" not in optimizer.param_groups[0]
    step = _step(cuda_graph=True)
    (batch,) = batches(1)
    with pytest.raises(ValueError, match="tensor on cpu"):
        step((batch[0].cuda(), batch[1]))


def test_a_loss_that_reads_the_device_says_so_and_leaves_the_stream() -> None:
    def loss_fn(model: nn.Module, batch: Batch) -> torch.Tensor:
        loss = mean_loss(model, batch)
        return loss * 2 if loss.item() > 0 else loss

    step = _step(loss_fn=loss_fn, cuda_graph=True)
    data, stream = _on_gpu(batches(4)), torch.cuda.current_stream()
    train(step, data[:3])
    with pytest.raises(RuntimeError, match="cuda_graph=False"):
        step(data[3])
    assert torch.cuda.current_stream() == stream


def test_the_first_updates_under_fp16_are_its_search() -> None:
    """Overflows before, while, and after the graph is captured."""
    captured, eager = (_step("momentum", precision="fp16", cuda_graph=flag) for flag in (True, False))
    for step in (captured, eager):
        state = step.state_dict()
        state["loss_scale"] = [torch.tensor(2.0**30), torch.tensor(0, dtype=torch.int32)]
        step.load_state_dict(state)
    (batch,) = _on_gpu(batches(1))
    for _ in range(40):
        assert same(captured(batch), eager(batch))
    assert captured.state_dict()["skipped"] > 5
    assert len(_graphs(captured).recorded) == 1


def test_on_another_stream_than_the_default() -> None:
    data = _on_gpu(batches(12))
    captured, eager = (_step(cuda_graph=flag) for flag in (True, False))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        results = train(captured, data)
        expected = train(eager, data)
    torch.cuda.synchronize()
    assert same(results, expected)


def test_compiled_and_captured() -> None:
    both, eager = _step(compile=True, cuda_graph=True), _step()
    for batch in _on_gpu(batches(12)):
        torch.testing.assert_close(both(batch), eager(batch), rtol=1e-5, atol=1e-6)
    assert len(_graphs(both).recorded) == 1
