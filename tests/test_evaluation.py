"""Evaluation: the loss over all batches, with one synchronization, and a model left unchanged."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.training.models import (
    Net,
    Recurrent,
    batches,
    carried_loss,
    device_pair_loss,
    mean_loss,
    pair_loss,
)
from support.training.reads import reads_of
from torch import nn

from torch_bridge import evaluate


@pytest.mark.parametrize("loss_fn", [pair_loss, device_pair_loss])
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any))
def test_pairs_do_not_depend_on_the_split(loss_fn: Any, rows: list[int]) -> None:
    (together,) = batches(1, sum(rows))
    pieces = zip(*(part.split(rows) for part in together), strict=True)
    with torch.no_grad():
        exact = (Net()(together[0]).double() - together[1]).square().mean().item()
    assert evaluate(Net(), pieces, loss_fn) == pytest.approx(exact, rel=1e-6)


def test_means_are_averaged_in_double() -> None:
    data = [*batches(3, 2), *batches(1, 9, seed=5)]
    with torch.no_grad():
        losses = [mean_loss(Net(), batch).item() for batch in data]
    assert evaluate(Net(), data, mean_loss) == pytest.approx(math.fsum(losses) / 4, rel=1e-15)
    assert type(evaluate(Net(), data, mean_loss)) is float


def test_sums_larger_than_float32_counts() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        return torch.tensor(2.0**24 if batch else 1.0), torch.tensor(1)

    assert evaluate(Net(), [1, 0, 0], loss_fn) == (2**24 + 2) / 3


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_every_module_keeps_its_mode() -> None:
    model = nn.Sequential(Net(dropout=0.5), nn.BatchNorm1d(2))
    model[0].first.eval()
    model[1].eval()
    modes, state = _modes(model), {key: value.clone() for key, value in model.state_dict().items()}
    seen = []

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        seen.append((_modes(model), torch.is_grad_enabled()))
        if batch is None:
            raise KeyError("on purpose")
        return mean_loss(model, batch)

    data = batches(3)
    assert evaluate(model, data, loss_fn) == evaluate(model, data, loss_fn)
    with pytest.raises(KeyError, match="on purpose"):
        evaluate(model, [data[0], None], loss_fn)

    def interrupted() -> Iterator[Any]:
        yield data[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(model, interrupted(), loss_fn)
    assert _modes(model) == modes
    assert all(state == ([False] * len(modes), False) for state in seen)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_evaluation_synchronizes_once() -> None:
    for loss_fn in (mean_loss, pair_loss, device_pair_loss):
        for precision in ("fp32", "bf16", "fp16"):
            model, data = Net(), batches(7)
            assert reads_of(lambda: evaluate(model, data, loss_fn, precision=precision)) == 1  # noqa: B023 - called before the next turn


@pytest.mark.gpu
@pytest.mark.parametrize("loss_fn", [mean_loss, pair_loss, device_pair_loss])
def test_evaluation_waits_for_gpu_once(loss_fn: Any) -> None:
    model, data = Net().cuda(), [(inputs.cuda(), targets.cuda()) for inputs, targets in batches(3)]
    expected = evaluate(model, data, loss_fn)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            assert evaluate(model, data, loss_fn) == expected
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert sum("synchronizing CUDA operation" in str(warning.message) for warning in caught) == 1


def test_carry_is_passed_from_batch_to_batch() -> None:
    for kind, precision in (("LSTM", "fp32"), ("GRU", "bf16"), ("GRU", "fp16")):
        model, initial = Recurrent(kind), Recurrent(kind).initial()
        (together,) = batches(1, time=12)
        pieces = list(zip(*(part.split(4, dim=1) for part in together), strict=True))
        with torch.no_grad():
            exact = carried_loss(model, together, initial)[0].item()
        for _ in range(2):  # each call starts from the initial state
            loss = evaluate(model, pieces, carried_loss, precision=precision, carry=initial)
            assert loss == pytest.approx(exact, rel=1e-6 if precision == "fp32" else 0.01)
        assert loss != pytest.approx(
            sum(evaluate(model, [piece], carried_loss, carry=initial) for piece in pieces) / 3, rel=1e-3
        )


def _one_then_other(one: Any, other: Any) -> Any:
    calls = iter([one])
    return lambda model, batch: next(calls, other)(model, batch)


def _returned(model: nn.Module, batch: Any) -> Any:
    return batch


DATA, TIMED, RECURRENT = batches(2), batches(1, time=2), Recurrent()
INITIAL = RECURRENT.initial()
NAMES = "loss_fn returned"


@pytest.mark.parametrize(
    ("data", "loss_fn", "options", "error", "message"),
    [
        ([], mean_loss, {}, ValueError, "empty"),
        (iter(()), mean_loss, {}, ValueError, "empty"),
        ([*DATA, "not reached"], _one_then_other(mean_loss, pair_loss), {}, TypeError, "a mean .* a pair"),
        ([*DATA, "not reached"], _one_then_other(pair_loss, mean_loss), {}, TypeError, "a mean .* a pair"),
        (DATA, lambda model, batch: model(batch[0]), {}, ValueError, "shape"),
        (DATA, lambda model, batch: 1.0, {}, TypeError, NAMES),
        (DATA, nn.MSELoss(), {}, TypeError, "wrap the criterion"),
        (DATA, mean_loss, {"precision": "half"}, ValueError, "precision"),
        (DATA, carried_loss, {"carry": 3}, TypeError, "carry"),
        (TIMED, lambda *a: carried_loss(*a)[0], {"carry": INITIAL}, TypeError, r"\(loss, carry\)"),
        (TIMED, carried_loss, {"carry": [*INITIAL]}, ValueError, "carry"),
        ([{"a": 1.0}, {"b": 1.0}], _returned, {}, TypeError, NAMES),
        ([{"a": 1.0}, torch.tensor(1.0)], _returned, {}, TypeError, NAMES),
        ([{"a": 1.0}, {"a": (1.0, 2)}], _returned, {}, TypeError, NAMES),
        *([[value], _returned, {}, TypeError, NAMES]
          for value in ({}, {1: 1.0}, {"a": "1"}, {"a": (1.0, "2")})),
    ],
)  # fmt: skip
def test_wrong_arguments_are_rejected(data, loss_fn, options, error, message) -> None:
    model = RECURRENT if data is TIMED else Net()
    with pytest.raises(error, match=message):
        evaluate(model, data, loss_fn, **options)
    assert model.training


def test_total_weight_of_zero_is_not_finite() -> None:
    empty = [(batch[0][:0], batch[1][:0]) for batch in batches(2)]
    for loss_fn in (pair_loss, device_pair_loss):
        assert math.isnan(evaluate(Net(), empty, loss_fn))
    (batch,) = batches(1)
    for zero in (0, 0.0, torch.tensor(0)):
        assert evaluate(Net(), [batch], lambda m, b: (mean_loss(m, b), zero)) == math.inf  # noqa: B023 - called before the next turn


def test_named_means_match_single_evaluations() -> None:
    model, data = Net(), [*batches(3), *batches(1, rows=2, seed=1)]

    def measures(model: nn.Module, batch: Any) -> dict[str, Any]:
        right = model(batch[0]).argmax(-1) == batch[1].argmax(-1)
        return {
            "mean": mean_loss(model, batch),
            "pair": pair_loss(model, batch),
            "right": (right.sum(), len(right)),
        }

    means = evaluate(model, data, measures)
    assert list(means) == ["mean", "pair", "right"]
    assert means["mean"] == evaluate(model, data, mean_loss)
    assert means["pair"] == evaluate(model, data, pair_loss)
    with torch.no_grad():
        right = [(model(x).argmax(-1) == y.argmax(-1)).sum().item() for x, y in data]
    assert means["right"] == sum(right) / 14
    assert all(type(value) is float for value in means.values())
