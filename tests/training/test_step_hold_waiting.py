"""A decision on the device: nothing waits for it, and it may be replayed, captured and compiled."""

from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.graphs import FakeGraph, capture, without_cuda
from support.held import CURVE, PATIENT, clocks_of, told
from support.reads import reads_of
from support.training import (
    FUSED,
    batches,
    same,
    spoiled,
    step_of,
)
from torch import Tensor
from torch._dynamo.utils import counters

from plateau_jax import HoldBelow
from torch_bridge import TrainStep
from torch_bridge.training import clock

# Runs may go on past the end of a curve; the warning has its own tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

_HOLDS = {"flat": PATIENT, "below": HoldBelow(0.9, 3, every=2), "both": [PATIENT, HoldBelow(0.9, 3)]}


every_hold = pytest.mark.parametrize("hold", _HOLDS.values(), ids=_HOLDS)


@every_hold
def test_no_reads(hold: Any) -> None:
    data = batches(12)
    with patch.object(clock, "INTERVAL", 3):
        for name in FUSED:
            step = step_of(name, curve=CURVE, hold=hold, max_norm=0.1)
            step(data[0])
            buffers = [step._clock._next_window, step._clock._seen_numbers]

            def run(step: TrainStep = step) -> None:
                for batch in data:
                    step(batch)
                    step(spoiled(batch))

            assert reads_of(run, buffers) == 0
        step, without = step_of("rmsprop", curve=CURVE, hold=hold), step_of("rmsprop", curve=CURVE)
        step(data[0])
        without(data[0])
        assert reads_of(lambda: step(data[1])) == reads_of(lambda: without(data[1]))
        assert reads_of(lambda: step(spoiled(data[1]))) == 1


@every_hold
def test_captured_equals_eager(hold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On graphs without CUDA."""
    kept: list[Tensor] = []
    without_cuda(monkeypatch, kept)
    captured, eager = (step_of("momentum", curve=CURVE, hold=hold, max_norm=0.5) for _ in range(2))
    capture(captured)
    for number, batch in enumerate(batches(40)):
        if number == 2:
            state = captured.optimizer.state_dict()["state"].values()
            kept += [*captured.model.parameters(), *(row["momentum_buffer"] for row in state)]
            kept += [captured._clock._numbers, captured._clock.rates]
            assert captured._clock._hold is not None
            kept += [tensor for pair in captured._clock._hold._memory for tensor in pair]
        chosen = spoiled(batch) if number % 5 == 0 else batch
        assert same(captured(chosen), eager(chosen))
    assert FakeGraph.captures == 1
    assert same(captured.state_dict(), eager.state_dict())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_once() -> None:
    losses = np.random.default_rng(0).choice([0.5, 0.75, 1.0], 30).tolist()
    with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager")):
        step = step_of("adamw", loss_fn=told, curve=CURVE, hold=PATIENT, compile=True)
        found = [int(step(torch.tensor(losses[0])).clock)]
        graphs = counters["stats"]["unique_graphs"]
        found += [int(step(torch.tensor(loss)).clock) for loss in losses[1:]]
    assert found == clocks_of(PATIENT, CURVE, losses)[:-1]
    assert counters["stats"]["unique_graphs"] == graphs
