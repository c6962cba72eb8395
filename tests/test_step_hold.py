"""A training step whose clock rules hold: its rates are those of a scheduler that is told the same losses."""

from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import CPU, FakeGraph, without_cuda
from support.held import CURVE, PATIENT, clocks_of, curves, float32_rate, holds
from support.hold_cases import metrics
from support.reads import reads_of
from support.training import (
    FUSED,
    OPTIMIZERS,
    Net,
    Operators,
    Tape,
    batches,
    contents,
    mean_loss,
    optimizer_of,
    pair_loss,
    same,
    spoiled,
    step_of,
    through_a_file,
    train,
)
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

from plateau_jax import Curve, HoldBelow, PlateauCurve
from torch_bridge import MetricLog, TrainStep, lambda_lr
from torch_bridge.training import clock
from torch_bridge.training.capture import Graphs
from torch_bridge.training.changes import Foundation

SIZE = 40


def told(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss whose value is the batch, and whose gradient is zero."""
    return batch + sum(parameter.sum() for parameter in model.parameters()) * 0


def _expected(hold: Any, curve: Curve, losses: list[Any]) -> list[tuple[int, int, int]]:
    """Clock, updates applied and skipped after each update; what is not finite is skipped."""
    taken = [loss for loss in losses if np.isfinite(loss)]
    of_taken, applied, found = clocks_of(hold, curve, taken), 0, []
    for number, loss in enumerate(losses, 1):
        before = of_taken[applied]
        applied += bool(np.isfinite(loss))
        found.append((before, applied, number - applied))
    return found


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
@settings(max_examples=25)
@given(st.sampled_from(("fp32", "bf16", "fp16")), curves, holds, metrics(SIZE), st.integers(2, 9))
def test_the_rate_is_that_of_the_clock(
    name: str, precision: str, curve: Curve, hold: Any, losses: list[Any], interval: int
) -> None:
    with patch.object(clock, "INTERVAL", interval):
        step = step_of(name, loss_fn=told, curve=curve, hold=hold, precision=precision)
        (peak,) = (group["initial_lr"] for group in step.optimizer.param_groups)
        expected = _expected(hold, curve, losses)
        for loss, (now, *counts) in zip(losses, expected, strict=True):
            result = step(torch.tensor(loss))
            assert (result.clock.dtype, result.clock.shape) == (torch.int64, ())
            assert (int(result.clock), [int(result.applied), int(result.skipped)]) == (now, counts)
            assert result.lr.tolist() == [float32_rate(peak, curve, now)]
            if np.isfinite(loss):
                assert np.float32(float(step.optimizer.param_groups[0]["lr"])) == result.lr.item()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_clocks_of_a_scheduler_that_is_told_the_same_losses(name: str) -> None:
    model, rule = Net(), [PATIENT, HoldBelow([(1.0, 5), (0.9, 7)], every=3)]
    step = step_of(name, model, curve=CURVE, hold=rule)
    other = torch.optim.SGD([nn.Parameter(torch.ones(()))], lr=OPTIMIZERS[name][1]["lr"])
    scheduler = lambda_lr(other, CURVE, hold=rule)
    for number, batch in enumerate(batches(60)):
        skipped = number % 7 == 3
        result = step(spoiled(batch) if skipped else batch)
        assert int(result.clock) == scheduler.clock
        assert result.lr.tolist() == [float(np.float32(rate)) for rate in scheduler.get_last_lr()]
        if not skipped:
            other.step()
            scheduler.step(result.loss)
    assert 0 < scheduler.clock < scheduler.last_epoch
    state = step.state_dict()
    assert (state["clock"], state["applied"]) == (scheduler.clock, scheduler.last_epoch)
    assert state["hold"] == scheduler.state_dict()["hold"]


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
@given(skips=st.sets(st.integers(0, 29)))
@settings(max_examples=5)
def test_without_a_hold_the_clock_counts_the_updates(name: str, skips: set[int]) -> None:
    step, applied = step_of(name), 0
    for number, batch in enumerate(batches(30)):
        result = step(spoiled(batch) if number in skips else batch)
        assert int(result.clock) == applied
        applied += number not in skips
    state = step.state_dict()
    assert (state["clock"], state["hold"]) == (applied, None)


@pytest.mark.slow
def test_windows_of_the_real_length() -> None:
    """The clock stands for longer than a window lasts, and then runs for longer than one."""
    curve = PlateauCurve(4000, warmup_steps=100, plateaus=[(20, 5)], decay="linear")
    hold = HoldBelow([(1.5, 2500), (0.5, 40)])
    losses = [2.0] * 900 + [1.0] * 4000 + [0.25] * 1200
    expected = [*range(900), *[900] * 2500, *range(900, 2400), *[2400] * 40, *range(2400, 3560)]
    step = step_of("sgd", loss_fn=told, curve=curve, hold=hold)
    results = [step(torch.tensor(loss)) for loss in losses]
    assert torch.stack([result.clock for result in results]).tolist() == expected
    assert torch.stack([result.lr for result in results])[:, 0].tolist() == [
        float32_rate(0.1, curve, now) for now in expected
    ]
    assert max(expected) > 3 * clock.INTERVAL


_HOLDS = {"flat": PATIENT, "below": HoldBelow(0.9, 3, every=2), "both": [PATIENT, HoldBelow(0.9, 3)]}
every_hold = pytest.mark.parametrize("hold", _HOLDS.values(), ids=_HOLDS)


@every_hold
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skip_changes_a_count_alone(name: str, hold: Any) -> None:
    data = batches(8)
    step = step_of(name, curve=CURVE, hold=hold, precision="fp16")
    for number, batch in enumerate(data):
        step(batch)
        before = contents(step)
        for value in (float("nan"), float("inf")):
            step(spoiled(data[0], value))
        after = contents(step)
        assert after.pop("skipped") == before.pop("skipped") + 2
        assert same(after, before), number


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
def test_a_warmed_update_on_fake_tensors(hold: Any) -> None:
    data = batches(3)
    step = step_of(curve=CURVE, hold=hold)
    train(step, data)
    with FakeTensorMode(allow_non_fake_inputs=True), Operators() as operators:
        step(data[0])
    assert operators.names
    assert operators.reads == 0


@every_hold
@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_recorded_and_replayed_equals_eager(name: str, hold: Any) -> None:
    recorded, eager = (step_of(name, curve=CURVE, hold=hold, max_norm=0.5) for _ in range(2))
    data = batches(40)
    for step in (recorded, eager):
        step(data[0])
    inputs = tuple(tensor.clone() for tensor in data[1])
    with Tape() as tape:
        results = recorded(inputs)
    assert same(results, eager(data[1]))
    for index in range(2, 40):
        batch = spoiled(data[index]) if index % 6 == 0 else data[index]
        torch._foreach_copy_(list(inputs), list(batch))
        tape.replay()
        assert same(results, eager(batch))
    assert same(recorded.state_dict(), eager.state_dict())


@every_hold
def test_captured_equals_eager(hold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On graphs without CUDA."""
    kept: list[Tensor] = []
    without_cuda(monkeypatch, kept)
    captured, eager = (step_of("momentum", curve=CURVE, hold=hold, max_norm=0.5) for _ in range(2))
    captured._graphs = Graphs(captured._update, captured._drivers, CPU)
    captured._foundation = Foundation(captured.model, captured.optimizers, captured=True)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=40)
@given(curves, holds, metrics(SIZE), st.booleans())
def test_in_float32_whatever_the_dtype_of_the_loss_or_torchs_own(
    dtype: torch.dtype, curve: Curve, hold: Any, losses: list[Any], wide: bool
) -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        step = step_of("sgd", loss_fn=told, curve=curve, hold=hold)
        form = torch.float64 if wide else torch.float32
        found = [int(step(torch.tensor(loss, dtype=form)).clock) for loss in losses]
    finally:
        torch.set_default_dtype(before)
    assert found == [now for now, *_ in _expected(hold, curve, losses)]


def test_a_wide_loss_is_rounded() -> None:
    """In float64 this one would be above the border."""
    step = step_of("sgd", loss_fn=told, curve=CURVE, hold=HoldBelow(0.1, 3))
    losses = [torch.tensor(0.1 + 2e-9, dtype=torch.float64)] * 5
    assert [int(result.clock) for result in train(step, losses)] == [0, 0, 0, 0, 1]


def test_the_loss_of_all_micro_batches_is_the_metric() -> None:
    data = batches(30)
    step, by_one = (step_of("sgd", loss_fn=pair_loss, curve=CURVE, hold=PATIENT) for _ in range(2))
    losses, found = [], []
    for batch in data:
        halves = [tuple(part[rows] for part in batch) for rows in (slice(2), slice(2, None))]
        result = step(*halves)
        losses.append(result.loss.item())
        found.append(int(result.clock))
        by_one(batch)
    assert found == clocks_of(PATIENT, CURVE, losses)[:-1]
    assert by_one.state_dict()["clock"] == step.state_dict()["clock"]


def _with_two_optimizers(model: Net, curve: Any = CURVE, hold: Any = PATIENT) -> TrainStep:
    optimizers = [
        torch.optim.AdamW(model.first.parameters(), lr=0.01, fused=True),
        torch.optim.NAdam(model.last.parameters(), lr=0.02),
    ]
    return TrainStep(model, optimizers, mean_loss, curve, hold=hold)


def test_several_optimizers_have_one_clock() -> None:
    step, losses = _with_two_optimizers(Net()), []
    for batch in batches(30):
        now = clocks_of(PATIENT, CURVE, losses)[-1]
        result = step(batch)
        assert int(result.clock) == now
        assert result.lr.tolist() == [float32_rate(peak, CURVE, now) for peak in (0.01, 0.02)]
        losses.append(result.loss.item())


@pytest.mark.parametrize(
    ("curve", "hold", "error", "message"),
    [
        ([CURVE, PlateauCurve(30)], PATIENT, ValueError, "the same curve"),
        (PlateauCurve(30), PATIENT, ValueError, "finds no flat part"),
        (CURVE, "wait", TypeError, "hold = 'wait' must be"),
        (CURVE, [], ValueError, "no rule"),
    ],
)
def test_what_is_refused(curve: Any, hold: Any, error: type[Exception], message: str) -> None:
    model = Net()
    with pytest.raises(error, match=message):
        _with_two_optimizers(model, curve, hold)
    _with_two_optimizers(model, [CURVE, [CURVE]])


def test_a_log_names_the_clock() -> None:
    step, log = step_of(loss_fn=told, curve=CURVE, hold=PATIENT), MetricLog(every=6)
    for _ in range(6):
        log(step(torch.tensor(0.5)))
    assert [row["clock"] for row in log.rows] == [0, 1, 2, 3, 3, 3]
    assert [row["applied"] for row in log.rows] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
@settings(max_examples=10)
@given(curves, holds, metrics(SIZE), st.integers(0, SIZE), st.integers(2, 9))
def test_from_any_update(
    name: str, curve: Curve, hold: Any, losses: list[Any], at: int, interval: int
) -> None:
    updates = [torch.tensor(loss) for loss in losses]
    with patch.object(clock, "INTERVAL", interval):
        straight, first, second = (
            step_of(name, loss_fn=told, curve=curve, hold=hold, precision="fp16") for _ in range(3)
        )
        results = train(straight, updates)
        train(first, updates[:at])
        state = through_a_file(first.state_dict())
        train(second, updates[2:7])
        second.load_state_dict(state)
        assert same(second.state_dict(), state)
        assert same(train(second, updates[at:]), results[at:])
        end, expected = second.state_dict(), straight.state_dict()
    assert same(end, expected | {"random": end["random"]})


_OTHERS: list[Any] = [None, HoldBelow(0.5, 3), [PATIENT, HoldBelow(0.5, 3)]]


@pytest.mark.parametrize("other", _OTHERS, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_state_of_other_rules(other: Any, swapped: bool) -> None:
    first, second = (other, PATIENT) if swapped else (PATIENT, other)
    saved, step = (step_of(loss_fn=told, curve=CURVE, hold=hold) for hold in (first, second))
    train(saved, [torch.tensor(0.75)] * 5)
    train(step, [torch.tensor(0.75)] * 2)
    state, before = saved.state_dict(), step.state_dict()
    with pytest.raises(ValueError, match=r"saved with hold = .*, and here it is .* pass strict=False"):
        step.load_state_dict(state)
    assert same(step.state_dict(), before)
    step.load_state_dict(state, strict=False)
    after = step.state_dict()
    assert (after["clock"], after["applied"]) == (state["clock"], 5)
    assert same(after["hold"], step_of(curve=CURVE, hold=second).state_dict()["hold"])
    result = step(torch.tensor(0.75))
    assert (result.clock, result.applied) == (state["clock"], 6)
    assert result.lr.tolist() == [float32_rate(0.01, CURVE, state["clock"])]


def test_a_state_from_before_there_were_rules() -> None:
    data = batches(20)
    saved, straight = step_of(curve=CURVE), step_of(curve=CURVE)
    train(saved, data[:8])
    results = train(straight, data)
    state: Any = saved.state_dict()
    del state["clock"], state["hold"]
    step, held = step_of(curve=CURVE), step_of(curve=CURVE, hold=PATIENT)
    step.load_state_dict(state)
    assert same(train(step, data[8:]), results[8:])
    with pytest.raises(ValueError, match="saved with hold = None"):
        held.load_state_dict(state)
    held.load_state_dict(state, strict=False)
    assert held.state_dict()["clock"] == 8
    for name in ("applied", "model"):
        with pytest.raises(ValueError, match="not a state of a TrainStep"):
            step.load_state_dict({key: value for key, value in state.items() if key != name})


@pytest.mark.parametrize(
    "change",
    [
        {"clock": -1},
        {"clock": 6},
        {"clock": None},
        {"clock": 1.0},
        {"hold": None},
        {"hold": 3},
        {"hold": [{}]},
    ],
    ids=str,
)
def test_a_damaged_state_changes_nothing(change: dict[str, Any]) -> None:
    step = step_of(loss_fn=told, curve=CURVE, hold=PATIENT)
    train(step, [torch.tensor(0.75)] * 5)
    state = step.state_dict()
    train(step, [torch.tensor(0.5)] * 2)
    before = step.state_dict()
    with pytest.raises(ValueError, match="state_dict"):
        step.load_state_dict(state | change)
    assert same(step.state_dict(), before)


@pytest.mark.parametrize("strict", [True, False])
def test_beside_a_rule_the_updates_do_not_stand_for_the_clock(strict: bool) -> None:
    step = step_of(loss_fn=told, curve=CURVE, hold=PATIENT)
    train(step, [torch.tensor(0.75)] * 5)
    state: Any = step.state_dict()
    del state["clock"]
    with pytest.raises(ValueError, match="'clock'"):
        step.load_state_dict(state, strict)


def test_another_plan_is_asked_for_its_past_up_to_the_clock() -> None:
    """Held, a run has had more updates than its clock says: a branch in between has the same past."""
    saved = step_of(loss_fn=told, curve=CURVE, hold=PATIENT)
    train(saved, [torch.tensor(0.75)] * 6)
    state = saved.state_dict()
    assert (state["clock"], state["applied"]) == (3, 6)
    branch = CURVE.cooldown(4, 5)
    assert not branch.same_until(CURVE, 6)
    step = step_of(loss_fn=told, curve=branch, hold=PATIENT)
    step.load_state_dict(state)
    found = [int(result.clock) for result in train(step, [torch.tensor(0.75)] * 6)]
    assert found == [3, 4, 5, 6, 7, 8]
    with pytest.raises(ValueError, match="past is another"):
        step_of(loss_fn=told, curve=CURVE.cooldown(1, 4), hold=HoldBelow(0.5, 3)).load_state_dict(state)


@pytest.mark.parametrize("name", ["adamw", "plain adam"])
def test_an_interrupt_within_the_decision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, straight = (step_of(name, curve=CURVE, hold=PATIENT) for _ in range(2))
    data = batches(8)
    train(step, data[:5])
    train(straight, data[:5])
    state = step.state_dict()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step._clock._hold, "holds", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(data[5])
    with pytest.raises(RuntimeError, match="broken off"):
        step(data[5])
    step.load_state_dict(state)
    assert same(train(step, data[5:]), train(straight, data[5:]))


def test_a_first_update_that_is_skipped() -> None:
    step = step_of(optimizer=None, curve=CURVE, hold=HoldBelow(2.0, 3))
    (batch,) = batches(1)
    step(spoiled(batch))
    assert (step.state_dict()["clock"], step.state_dict()["skipped"]) == (0, 1)
    found = [int(result.clock) for result in train(step, [batch] * 5)]
    assert found == [0, 0, 0, 0, 1]


def test_another_default_device_changes_nothing() -> None:
    with torch.device("meta"):
        model = Net().to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        step = TrainStep(model, optimizer_of("adamw", model), told, CURVE, hold=PATIENT)
        losses = [torch.tensor(0.75, device="cpu")] * 8
        assert [int(result.clock) for result in train(step, losses)] == [0, 1, 2, 3, 3, 3, 3, 4]
        state = step.state_dict()
        step.load_state_dict(state)
