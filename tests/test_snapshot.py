"""Interrupted and resumed: from any update on, the bits of the run that was not interrupted."""

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from training import (
    CURVE,
    OPTIMIZERS,
    Net,
    Recurrent,
    batches,
    carried_loss,
    mean_loss,
    optimizer_of,
    pair_loss,
    same,
    spoiled,
    step_of,
    through_a_file,
    train,
)

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, clock


def _interrupted(build: Callable[[], TrainStep], updates: list[Any], at: int) -> None:
    """Compare a run with one that goes on, from update `at`, in another step."""
    torch.manual_seed(1)
    straight = build()
    results = train(straight, updates)
    end = torch.rand(3), straight.state_dict()

    torch.manual_seed(1)
    first = build()
    train(first, updates[:at])
    state = through_a_file(first.state_dict())
    kept = copy.deepcopy(state)
    torch.manual_seed(99)
    second = build()
    train(second, updates[2 : 2 + at % 5])  # it has been somewhere else before
    second.load_state_dict(state)
    assert same(second.state_dict(), state)
    assert same(train(second, updates[at:]), results[at:])
    assert same((torch.rand(3), second.state_dict()), end)
    assert same(state, kept), "what was loaded is the caller's"


_OPTIONS: dict[str, dict[str, Any]] = {
    "fp32": {"max_norm": 0.5},
    "bf16": {"precision": "bf16", "loss_fn": pair_loss},
    "fp16": {"precision": "fp16"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
@settings(max_examples=3)
@given(at=st.integers(0, 24), skips=st.sets(st.integers(0, 23)), interval=st.integers(2, 9))
def test_from_any_update(name: str, options: dict[str, Any], at: int, skips: set[int], interval: int) -> None:
    updates = [spoiled(batch) if number in skips else batch for number, batch in enumerate(batches(24))]
    with patch.object(clock, "INTERVAL", interval):
        _interrupted(lambda: step_of(name, Net(dropout=0.3), **options), updates, at)


@pytest.mark.parametrize(("kind", "precision"), [("LSTM", "fp32"), ("LSTM", "bf16"), ("GRU", "fp16")])
@settings(max_examples=5)
@given(at=st.integers(0, 12), skips=st.sets(st.integers(0, 11), max_size=5))
def test_with_a_carry(kind: str, precision: str, at: int, skips: set[int]) -> None:
    def build() -> TrainStep:
        model = Recurrent(kind)
        return step_of("adamw", model, carried_loss, carry=model.initial(), precision=precision)

    updates = batches(12, time=3)
    _interrupted(build, [spoiled(b) if n in skips else b for n, b in enumerate(updates)], at)


def test_with_an_fp16_scale_that_was_found() -> None:
    step, other = (step_of("momentum", precision="fp16") for _ in range(2))
    state = step.state_dict()
    state["loss_scale"] = [torch.tensor(2.0**30), torch.tensor(7, dtype=torch.int32)]
    step.load_state_dict(state)
    *_, data = train(step, batches(20)), batches(20)
    assert step.state_dict()["skipped"] > 0
    other.load_state_dict(through_a_file(step.state_dict()))
    assert same(train(step, data), train(other, data))


def test_buffers_groups_and_a_model_larger_than_the_optimizer() -> None:
    def build() -> TrainStep:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))
        torch.manual_seed(2)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        groups = [
            {"params": model[1].parameters(), "lr": 0.1},
            {"params": [model[3].weight], "weight_decay": 0.3},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.02, fused=True)
        return TrainStep(model, optimizer, mean_loss, [CURVE, PlateauCurve(9, decay="linear")])

    for at in (0, 1, 7):
        _interrupted(build, batches(14), at)


def test_a_snapshot_is_not_changed_by_later_updates() -> None:
    for name in ("adamw", "momentum", "rmsprop"):
        model = Recurrent()
        step = step_of(name, model, carried_loss, carry=model.initial())
        data = batches(6, time=3)
        train(step, data[:2])
        state = step.state_dict()
        kept = copy.deepcopy(state)
        train(step, data[2:])
        assert same(state, kept)
        step.load_state_dict(state)
        train(step, data)
        assert same(state, kept)
        assert same(step.state_dict()["curves"], state["curves"])


def test_the_rates_are_those_of_the_state() -> None:
    """The saved peak counts, and the loaded optimizer follows the clock again."""
    data = batches(8)
    for name in ("adamw", "rmsprop"):
        step = step_of(name)
        train(step, data[:5])
        model = Net()
        optimizer = optimizer_of(name, model, lr=0.7)
        other = TrainStep(model, optimizer, mean_loss, CURVE)
        train(other, data[:2])
        other.load_state_dict(step.state_dict())
        expected = [float(CURVE(n) * torch.tensor(0.01).numpy()) for n in range(5, 8)]
        for batch, rate in zip(data[5:], expected, strict=True):
            assert other(batch).lr.item() == rate
            assert float(torch.tensor(float(optimizer.param_groups[0]["lr"]))) == rate
        again = TrainStep(model, optimizer, mean_loss, CURVE)
        assert again(data[0]).lr.item() == float(CURVE(0) * torch.tensor(0.01).numpy())


def test_it_is_a_state_of_plain_values_and_tensors_on_the_host() -> None:
    model = Recurrent("GRU")
    step = step_of("adamw", model, carried_loss, carry=model.initial(), precision="fp16")
    train(step, batches(2, time=3))
    state = step.state_dict()
    assert same(through_a_file(state), state)
    assert (state["applied"], state["skipped"]) == (2, 0)


def _half() -> TrainStep:
    return step_of("adamw", Net().bfloat16(), loss_fn=lambda model, batch: model(batch[0].bfloat16()).mean())


_OTHER_STATES: dict[str, tuple[Callable[[], TrainStep], str]] = {
    "curve": (lambda: step_of(curve=PlateauCurve(41)), "curves"),
    "plateau": (lambda: step_of(curve=PlateauCurve(40, warmup_steps=4)), "curves"),
    "precision": (lambda: step_of(precision="bf16"), "precision"),
    "fp16": (lambda: step_of(precision="fp16"), "precision"),
    "model": (lambda: step_of(model=nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))), "model"),
    "wider model": (lambda: step_of(model=nn.Linear(3, 2)), "model"),
    "dtype": (_half, "model"),
    "optimizer": (lambda: step_of("sgd"), "optimizer"),
    "near optimizer": (lambda: step_of("adam"), "optimizer"),
    "carry": (lambda: step_of(loss_fn=_with_carry, carry=torch.zeros(3)), "carry"),
    "groups": (lambda: TrainStep(model := Net(), _two_groups(model), mean_loss, CURVE), "curves|groups"),
}


def _with_carry(model: nn.Module, batch: Any, carry: Any) -> Any:
    return mean_loss(model, batch), carry + 1


def _two_groups(model: Net) -> torch.optim.Optimizer:
    groups = [{"params": module.parameters()} for module in (model.first, model.last)]
    return torch.optim.AdamW(groups, lr=0.01, fused=True)


@pytest.mark.parametrize(("build", "named"), _OTHER_STATES.values(), ids=_OTHER_STATES)
def test_the_state_of_another_run_is_refused_and_nothing_changes(
    build: Callable[[], TrainStep], named: str
) -> None:
    steps = step_of(), build()
    (batch,) = batches(1)
    for step in steps:
        step(batch)
        step(batch)
    for step, other in (steps, steps[::-1]):
        before, foreign = step.state_dict(), other.state_dict()
        with pytest.raises(ValueError, match=named):
            step.load_state_dict(foreign)
        assert same(step.state_dict(), before)
        step(batch)


@pytest.mark.parametrize(
    "state", [None, {}, [], 3, {"model": {}}, Net().state_dict()], ids=lambda s: type(s).__name__
)
def test_what_is_no_state(state: Any) -> None:
    step = step_of()
    before = step.state_dict()
    with pytest.raises(ValueError, match="not a state of a TrainStep"):
        step.load_state_dict(state)
    assert same(step.state_dict(), before)


def test_a_carry_of_another_shape_is_refused() -> None:
    step, other = (step_of(loss_fn=_with_carry, carry=torch.zeros(n)) for n in (2, 3))
    with pytest.raises(ValueError, match="another carry"):
        step.load_state_dict(other.state_dict())
