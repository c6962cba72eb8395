"""Nothing waits for the device: no value is read, nothing is compiled anew, and an update can be replayed."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.reads import reads_of
from support.training import (
    CURVE,
    FUSED,
    OTHERS,
    Batch,
    Net,
    Operators,
    Recurrent,
    Tape,
    batches,
    carried_loss,
    device_pair_loss,
    mean_loss,
    optimizer_of,
    pair_loss,
    same,
    spoiled,
    step_of,
    train,
)
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_bridge import MetricLog, TrainStep
from torch_bridge.training import clock

# Runs may go on past the end of a curve; the warning has its own tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

_LOSSES = {"mean": mean_loss, "pair": pair_loss, "device pair": device_pair_loss}


def _host_buffers(step: TrainStep) -> list[torch.Tensor]:
    """The clock's page-locked buffers: the host may read them."""
    return [step._clock._next_window, step._clock._seen_numbers]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", FUSED)
def test_no_reads(name: str, precision: str) -> None:
    data = batches(6)
    with patch.object(clock, "INTERVAL", 3):
        for loss_fn in _LOSSES.values():
            step = step_of(name, loss_fn=loss_fn, precision=precision, max_norm=0.1)
            step(data[0])

            def run(step: TrainStep = step) -> None:
                for batch in data:
                    step(batch, data[1], batch)
                    step(spoiled(batch))

            assert reads_of(run, _host_buffers(step)) == 0
            assert int(step(data[0]).skipped) >= 6


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_reads_with_a_carry(precision: str) -> None:
    model = Recurrent("GRU")
    step = step_of("adamw", model, carried_loss, precision=precision, carry=model.initial(), max_norm=1.0)
    data = batches(6, time=3)
    step(data[0])
    assert reads_of(lambda: [step(batch, spoiled(batch)) and step(batch, data[0]) for batch in data]) == 0


def test_no_reads_before_the_first_update_either() -> None:
    (batch,) = batches(1)
    for name in ("adam", "adamw", "sgd", "adagrad"):
        step = step_of(name)
        assert reads_of(lambda step=step: step(spoiled(batch))) == 0
    step = step_of("momentum")
    assert reads_of(lambda: step(spoiled(batch))) == 1
    assert reads_of(lambda: step(batch)) == 1
    assert reads_of(lambda: step(spoiled(batch))) == 0


@pytest.mark.parametrize("name", OTHERS)
def test_one_read_beyond_those_of_the_optimizer(name: str) -> None:
    (batch,) = batches(1)
    model = Net()
    optimizer = optimizer_of(name, model)

    def by_hand() -> None:
        mean_loss(model, batch).backward()
        optimizer.step()

    by_hand()
    own = reads_of(by_hand)
    step = step_of(name, max_norm=0.1)
    step(batch)
    assert reads_of(lambda: step(batch)) == own + 1
    assert reads_of(lambda: step(spoiled(batch))) == 1


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_warmed_update_on_fake_tensors(name: str, precision: str) -> None:
    """Fake tensors have no values: a mask, `.tolist()` or `bool()` would raise."""
    data = batches(3)
    step = step_of(name, loss_fn=device_pair_loss, precision=precision, max_norm=0.1)
    log = MetricLog(every=100)
    train(step, data)
    with FakeTensorMode(allow_non_fake_inputs=True), Operators() as operators:
        log(step(data[0], data[1]))
        log(step(data[2]))
    assert operators.names
    assert operators.reads == 0


@pytest.mark.parametrize(("kind", "precision"), [("LSTM", "fp32"), ("GRU", "fp16")])
@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_a_warmed_update_with_a_carry_on_fake_tensors(name: str, kind: str, precision: str) -> None:
    model, data = Recurrent(kind), batches(3, time=3)
    step = step_of(name, model, carried_loss, precision=precision, carry=model.initial(), max_norm=0.1)
    train(step, data)
    with FakeTensorMode(allow_non_fake_inputs=True), Operators() as operators:
        step(data[0], data[1])
    assert operators.names
    assert operators.reads == 0


def _check_replayed(recorded: TrainStep, eager: TrainStep, data: list[Batch], bad: set[int]) -> None:
    """Record an update of two micro-batches; replay it with others, some bad, next to eager updates."""
    for step in (recorded, eager):
        step(data[0])
    inputs = [tuple(tensor.clone() for tensor in batch) for batch in data[:2]]
    with Tape() as tape:
        results = recorded(*inputs)
    assert same(results, eager(*data[:2]))
    data = [spoiled(batch) if index in bad else batch for index, batch in enumerate(data)]
    for index in range(2, len(data), 2):
        for static, batch in zip(inputs, data[index : index + 2], strict=True):
            torch._foreach_copy_(list(static), list(batch))
        tape.replay()
        assert same(results, eager(*data[index : index + 2]))
    assert same(recorded.state_dict(), eager.state_dict())
    assert recorded.state_dict()["skipped"] >= len(bad)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loss_fn", _LOSSES.values(), ids=_LOSSES)
def test_recorded_and_replayed_equals_eager(name: str, precision: str, loss_fn: Callable[..., Any]) -> None:
    options: dict[str, Any] = {"loss_fn": loss_fn, "precision": precision, "max_norm": 0.5}
    _check_replayed(step_of(name, **options), step_of(name, **options), batches(20), {6, 12, 18})


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recorded_and_replayed_with_a_carry(kind: str) -> None:
    models = Recurrent(kind), Recurrent(kind)
    steps = [step_of("adamw", model, carried_loss, carry=model.initial()) for model in models]
    _check_replayed(*steps, batches(24, time=3), {9, 17})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_once_and_near_eager() -> None:
    """What torch.compile sees stays the same. The backend here is a quick one, which writes no C++."""
    data = batches(45)
    quick = partial(torch.compile, backend="aot_eager")
    with patch.object(clock, "INTERVAL", 8), patch.object(torch, "compile", quick):
        compiled, eager = (step_of("adamw", max_norm=1.0, compile=flag) for flag in (True, False))
        compiled(data[0])
        eager(data[0])
        graphs = counters["stats"]["unique_graphs"]
        assert graphs > 0
        for batch in data[1:]:
            torch.testing.assert_close(compiled(batch), eager(batch), rtol=1e-5, atol=1e-7)
            compiled(spoiled(batch))
            eager(spoiled(batch))
    assert counters["stats"]["unique_graphs"] == graphs
    assert compiled.state_dict()["applied"] == 45 > CURVE.total_steps
    torch.testing.assert_close(
        dict(compiled.model.named_parameters()), dict(eager.model.named_parameters()), rtol=1e-5, atol=1e-6
    )
