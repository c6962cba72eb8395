"""A training step with rules has the learning rates of a scheduler that gets the same losses."""

from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.held import CURVE, PATIENT, clocks_of, curves, holds, told
from support.holds.hold_cases import metrics
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches, nonfinite
from support.training.optimizers import OPTIMIZERS, make_optimizer
from support.training.steps import make_step, train
from torch import nn
from torch._dynamo.utils import counters

from plateau_jax import Curve, HoldBelow
from torch_bridge import TrainStep, lambda_lr

# Runs may continue past the end of a curve; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

SIZE = 40


def _expected(hold: Any, curve: Curve, losses: list[Any]) -> list[tuple[int, int, int]]:
    """Return clock, applied and skipped after each update; nonfinite losses are skipped."""
    finite = [loss for loss in losses if np.isfinite(loss)]
    clocks, applied, expected = clocks_of(hold, curve, finite), 0, []
    for number, loss in enumerate(losses, 1):
        before = clocks[applied]
        applied += bool(np.isfinite(loss))
        expected.append((before, applied, number - applied))
    return expected


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
@examples(25)
@given(st.sampled_from(("fp32", "bf16", "fp16")), curves, holds, metrics(SIZE))
def test_lr_is_the_curve_at_held_clock(
    name: str, precision: str, curve: Curve, hold: Any, losses: list[Any]
) -> None:
    step = make_step(name, loss_fn=told, curve=curve, hold=hold, precision=precision)
    (peak,) = (group["initial_lr"] for group in step.optimizer.param_groups)
    expected = _expected(hold, curve, losses)
    for loss, (now, *counts) in zip(losses, expected, strict=True):
        result = step(torch.tensor(loss))
        assert (result.clock.dtype, result.clock.shape) == (torch.int64, ())
        assert (int(result.clock), [int(result.applied), int(result.skipped)]) == (now, counts)
        assert result.lr.tolist() == [learning_rate(peak, curve, now)]
        if np.isfinite(loss):
            assert float(step.optimizer.param_groups[0]["lr"]) == result.lr.item()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_clocks_match_scheduler_with_same_losses(name: str) -> None:
    model, rule = Net(), [PATIENT, HoldBelow([(1.0, 5), (0.9, 7)], every=3)]
    step = make_step(name, model, curve=CURVE, hold=rule)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(()))], lr=OPTIMIZERS[name][1]["lr"])
    scheduler = lambda_lr(optimizer, CURVE, hold=rule)
    for number, batch in enumerate(batches(60)):
        skipped = number % 7 == 3
        result = step(nonfinite(batch) if skipped else batch)
        assert int(result.clock) == scheduler.clock
        assert result.lr.tolist() == scheduler.get_last_lr()
        if not skipped:
            optimizer.step()
            scheduler.step(result.loss)
    assert 0 < scheduler.clock < scheduler.last_epoch
    state = step.state_dict()
    assert (state["clock"], state["applied"]) == (scheduler.clock, scheduler.last_epoch)
    assert state["hold"] == scheduler.state_dict()["hold"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@examples(40)
@given(curves, holds, metrics(SIZE), st.booleans())
def test_rules_decide_in_float32_for_every_dtype(
    dtype: torch.dtype, curve: Curve, hold: Any, losses: list[Any], wide: bool
) -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        step = make_step("sgd", loss_fn=told, curve=curve, hold=hold)
        loss_dtype = torch.float64 if wide else torch.float32
        clocks = [int(step(torch.tensor(loss, dtype=loss_dtype)).clock) for loss in losses]
    finally:
        torch.set_default_dtype(before)
    assert clocks == [now for now, *_ in _expected(hold, curve, losses)]


def test_float64_loss_is_rounded_to_float32() -> None:
    """In float64 this loss would be above the threshold."""
    step = make_step("sgd", loss_fn=told, curve=CURVE, hold=HoldBelow(0.1, 3))
    losses = [torch.tensor(0.1 + 2e-9, dtype=torch.float64)] * 5
    assert [int(result.clock) for result in train(step, losses)] == [0, 0, 0, 0, 1]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_held_clock_compiles_once() -> None:
    losses = np.random.default_rng(0).choice([0.5, 0.75, 1.0], 30).tolist()
    with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager")):
        step = make_step("adamw", loss_fn=told, curve=CURVE, hold=PATIENT, compile=True)
        clocks = [int(step(torch.tensor(losses[0])).clock)]
        graphs = counters["stats"]["unique_graphs"]
        clocks += [int(step(torch.tensor(loss)).clock) for loss in losses[1:]]
    assert clocks == clocks_of(PATIENT, CURVE, losses)[:-1]
    assert counters["stats"]["unique_graphs"] == graphs


def test_hold_ignores_default_device() -> None:
    with torch.device("meta"):
        model = Net().to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        step = TrainStep(model, make_optimizer("adamw", model), told, CURVE, hold=PATIENT)
        losses = [torch.tensor(0.75, device="cpu")] * 8
        assert [int(result.clock) for result in train(step, losses)] == [0, 1, 2, 3, 3, 3, 3, 4]
        state = step.state_dict()
        step.load_state_dict(state)
