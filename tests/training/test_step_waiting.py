"""Nothing waits for the device: no reads, no recompilation, and an update can be replayed."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.holds.held import CURVE as HELD_CURVE, PATIENT
from support.training.models import (
    Batch,
    Net,
    Recurrent,
    batches,
    carried_loss,
    device_pair_loss,
    mean_loss,
    nonfinite,
    pair_loss,
)
from support.training.operators import Tape
from support.training.optimizers import FUSED, OTHERS, make_optimizer
from support.training.reads import reads_of
from support.training.steps import CURVE, make_step
from support.training.trees import equal_trees
from torch._dynamo.utils import counters

from plateau_jax import HoldBelow
from torch_bridge import MetricLog, TrainStep

# Runs may continue past the end of a curve; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

_HOLDS = {"none": None, "flat": PATIENT, "both": [PATIENT, HoldBelow(0.9, 3, every=2)]}
_LOSSES = {"mean": mean_loss, "pair": pair_loss, "device pair": device_pair_loss}


def _host_buffers(step: TrainStep) -> list[torch.Tensor]:
    """Return the clock's page-locked buffer, which the host may read."""
    return [step._clock._host_counters]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("name", "loss_fn", "hold"),
    [
        *((name, device_pair_loss, _HOLDS["both"]) for name in FUSED),
        *(("adamw", loss_fn, None) for loss_fn in _LOSSES.values()),
        ("momentum", mean_loss, PATIENT),
    ],
)
def test_updates_read_nothing_from_the_device(name: str, loss_fn: Any, hold: Any, precision: str) -> None:
    data, log = batches(6), MetricLog(every=100)
    options: dict[str, Any] = {"curve": HELD_CURVE, "hold": hold, "max_norm": 0.1}
    step = make_step(name, loss_fn=loss_fn, precision=precision, **options)
    step(data[0])

    def run() -> None:
        for batch in data * 2:  # past a copy of the counters
            log(step(batch, data[1], batch))
            log(step(nonfinite(batch)))

    assert reads_of(run, _host_buffers(step)) == 0
    assert int(step(data[0]).skipped) >= 12


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_updates_with_carry_read_nothing(precision: str) -> None:
    model = Recurrent("GRU")
    step = make_step("adamw", model, carried_loss, precision=precision, carry=model.initial(), max_norm=1.0)
    data = batches(6, time=3)
    step(data[0])
    assert reads_of(lambda: [step(batch, nonfinite(batch)) and step(batch, data[0]) for batch in data]) == 0


def test_first_update_reads_nothing() -> None:
    (batch,) = batches(1)
    for name in FUSED:
        for first in (batch, nonfinite(batch)):
            step = make_step(name)
            assert reads_of(lambda step=step, first=first: step(first)) == 0


def test_update_after_load_of_optimizer_reads_nothing() -> None:
    for name in FUSED:
        step, (batch,) = make_step(name), batches(1)
        step(batch)
        step.optimizer.load_state_dict(step.optimizer.state_dict())
        assert reads_of(lambda step=step, batch=batch: step(batch)) == 0


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("hold", _HOLDS.values(), ids=_HOLDS)
def test_host_stepper_adds_one_read(name: str, hold: Any) -> None:
    (batch,) = batches(1)
    model = Net()
    optimizer = make_optimizer(name, model)

    def by_hand() -> None:
        mean_loss(model, batch).backward()
        optimizer.step()

    by_hand()
    by_optimizer = reads_of(by_hand)
    step = make_step(name, curve=HELD_CURVE, hold=hold, max_norm=0.1)
    step(batch)
    assert reads_of(lambda: step(batch)) == by_optimizer + 1
    assert reads_of(lambda: step(nonfinite(batch))) == 1


def _check_replayed(recorded: TrainStep, eager: TrainStep, data: list[Batch], bad: set[int]) -> None:
    """Record an update of two micro-batches; replay it with others, some bad, next to eager updates."""
    for step in (recorded, eager):
        step(data[0])
    inputs = [tuple(tensor.clone() for tensor in batch) for batch in data[:2]]
    with Tape() as tape:
        results = recorded(*inputs)
    assert equal_trees(results, eager(*data[:2]))
    data = [nonfinite(batch) if index in bad else batch for index, batch in enumerate(data)]
    for index in range(2, len(data), 2):
        for static, batch in zip(inputs, data[index : index + 2], strict=True):
            torch._foreach_copy_(list(static), list(batch))
        tape.replay()
        assert equal_trees(results, eager(*data[index : index + 2]))
    assert equal_trees(recorded.state_dict(), eager.state_dict())
    assert recorded.state_dict()["skipped"] >= len(bad)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("name", "loss_fn"),
    [*((name, device_pair_loss) for name in FUSED), ("adamw", mean_loss), ("momentum", pair_loss)],
)
def test_replayed_update_equals_eager(name: str, loss_fn: Callable[..., Any], precision: str) -> None:
    options: dict[str, Any] = {"loss_fn": loss_fn, "precision": precision, "max_norm": 0.5}
    _check_replayed(make_step(name, **options), make_step(name, **options), batches(20), {6, 12, 18})


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_replayed_update_with_carry_equals_eager(kind: str) -> None:
    models = Recurrent(kind), Recurrent(kind)
    steps = [make_step("adamw", model, carried_loss, carry=model.initial()) for model in models]
    _check_replayed(*steps, batches(24, time=3), {9, 17})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_loss_fn_compiles_once() -> None:
    """No update recompiles. The backend is a fast one that generates no C++."""
    data = batches(45)
    quick = partial(torch.compile, backend="aot_eager")
    with patch.object(torch, "compile", quick):
        compiled, eager = (make_step("adamw", max_norm=1.0, compile=flag) for flag in (True, False))
        compiled(data[0])
        eager(data[0])
        graphs = counters["stats"]["unique_graphs"]
        assert graphs > 0
        for batch in data[1:]:
            torch.testing.assert_close(compiled(batch), eager(batch), rtol=1e-5, atol=1e-7)
            compiled(nonfinite(batch))
            eager(nonfinite(batch))
    assert counters["stats"]["unique_graphs"] == graphs
    assert compiled.state_dict()["applied"] == 45 > CURVE.total_steps
    torch.testing.assert_close(
        dict(compiled.model.named_parameters()), dict(eager.model.named_parameters()), rtol=1e-5, atol=1e-6
    )
