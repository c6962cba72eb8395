"""Evaluation: the mean loss over all batches, with one synchronization, and a model left unchanged."""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support import evaluated
from support.data.loaders import process
from support.distributed.processes import error_of, run_checks
from support.distributed.threads import on_ranks
from support.errors import check_error, each_row
from support.evaluated import named_loss
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
from torch import Tensor, nn

from torch_bridge import evaluate
from torch_bridge.distributed import processes

LOSSES: dict[str, Any] = {"mean": mean_loss, "pair": pair_loss, "device pair": device_pair_loss}


def _named_losses(model: nn.Module, batch: Any) -> dict[str, Any]:
    right = model(batch[0]).argmax(-1) == batch[1].argmax(-1)
    return {name: loss_fn(model, batch) for name, loss_fn in LOSSES.items()} | {
        "accuracy": (right.sum(), len(right))
    }


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6))
def test_means_follow_their_definition(rows: list[int]) -> None:
    """Σ mean / batches of means, Σ sum / Σ weight of pairs, in float64; alone, and under names."""
    model, data = (
        Net(),
        [batch for number, size in enumerate(rows) for batch in batches(1, size, number)],
    )
    with torch.no_grad():
        means = [mean_loss(model, batch).item() for batch in data]
        sums = [pair_loss(model, batch)[0].item() for batch in data]
        right = sum((model(x).argmax(-1) == y.argmax(-1)).sum().item() for x, y in data)
    pair = math.fsum(sums) / (2 * sum(rows)) if any(rows) else math.nan
    expected = {"mean": math.fsum(means) / len(data), "pair": pair, "device pair": pair}
    expected["accuracy"] = right / sum(rows) if any(rows) else math.nan
    named = evaluate(model, data, _named_losses)
    assert list(named) == list(expected)
    assert named == pytest.approx(expected, rel=1e-14, nan_ok=True)
    for name, loss_fn in LOSSES.items():
        mean = evaluate(model, iter(data), loss_fn)
        assert type(mean) is type(named[name]) is float
        assert mean == pytest.approx(named[name], rel=0, nan_ok=True)


def test_sums_are_larger_than_float32_counts() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        return torch.tensor(2.0**24 if batch else 1.0), torch.tensor(1)

    assert evaluate(Net(), [1, 0, 0], loss_fn) == (2**24 + 2) / 3


def test_parameters_may_be_a_list() -> None:
    model: Any = Net()
    model.parameters = lambda: list(Net.parameters(model))
    assert evaluate(model, batches(1), mean_loss) == evaluate(Net(), batches(1), mean_loss)


@pytest.mark.parametrize("weight", [0, 0.0, torch.tensor(0)])
def test_loss_without_weight_is_infinite(weight: Any) -> None:
    assert (
        evaluate(Net(), batches(1), lambda *arguments: (mean_loss(*arguments), weight)) == math.inf
    )


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_model_is_as_before_even_after_an_error() -> None:
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

    def interrupted() -> Iterator[Any]:
        yield data[0]
        raise KeyboardInterrupt

    data = batches(3)
    assert evaluate(model, data, loss_fn) == evaluate(model, data, loss_fn)
    with pytest.raises(KeyError, match="on purpose"):
        evaluate(model, [data[0], None], loss_fn)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, interrupted(), loss_fn)
    assert all(during == ([False] * len(modes), False) for during in seen)
    assert _modes(model) == modes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loss_fn", [*LOSSES.values(), _named_losses])
def test_evaluation_synchronizes_once(loss_fn: Any, precision: Any) -> None:
    model, data = Net(), batches(7)
    assert reads_of(lambda: evaluate(model, data, loss_fn, precision=precision)) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("loss_fn", LOSSES.values())
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


@pytest.mark.parametrize(
    ("kind", "precision"), [("LSTM", "fp32"), ("GRU", "bf16"), ("GRU", "fp16")]
)
def test_carry_is_passed_from_batch_to_batch(kind: str, precision: Any) -> None:
    model, initial = Recurrent(kind), Recurrent(kind).initial()
    (together,) = batches(1, time=12)
    pieces = list(zip(*(part.split(4, dim=1) for part in together), strict=True))
    with torch.no_grad():
        exact = carried_loss(model, together, initial)[0].item()
    for _ in range(2):  # each call starts from the initial state
        loss = evaluate(model, pieces, carried_loss, precision=precision, carry=initial)
        assert loss == pytest.approx(exact, rel=1e-6 if precision == "fp32" else 0.01)
    apart = [evaluate(model, [piece], carried_loss, carry=initial) for piece in pieces]
    assert loss != pytest.approx(sum(apart) / 3, rel=1e-3)


def _one_then_other(one: Any, other: Any) -> Any:
    calls = iter([one])
    return lambda model, batch: next(calls, other)(model, batch)


def _returned(model: nn.Module, batch: Any) -> Any:
    return batch


def _without_carry(model: nn.Module, batch: Any, carry: Any) -> Tensor:
    return carried_loss(model, batch, carry)[0]


DATA, TIMED = [*batches(2), "not reached"], batches(1, time=2)
ERRORS: list[Any] = [
    (lambda net: evaluate(net, [], mean_loss), ValueError, "batches is empty"),
    (lambda net: evaluate(net, DATA, None), TypeError, "loss_fn = None", "callable"),
    (lambda net: evaluate(net, DATA, nn.MSELoss()), TypeError, "MSELoss", "wrap the criterion"),
    (lambda net: evaluate(net, DATA, _one_then_other(mean_loss, pair_loss)), TypeError, "a mean", "a pair"),
    (lambda net: evaluate(net, DATA, _one_then_other(pair_loss, mean_loss)), TypeError, "a mean", "a pair"),
    (lambda net: evaluate(net, DATA, lambda model, batch: model(batch[0])), ValueError, "loss_fn returned",
     "shape"),
    (lambda net: evaluate(net, [1.0], _returned), TypeError, "loss_fn returned"),
    (lambda net: evaluate(net, DATA, mean_loss, precision="half"), ValueError, "precision = 'half'"),
    (lambda net: evaluate(net, DATA, carried_loss, carry=3), TypeError, "carry = 3"),
    (lambda recurrent, initial: evaluate(recurrent, TIMED, _without_carry, carry=initial), TypeError,
     "(loss, carry)"),
    (lambda recurrent, initial: evaluate(recurrent, TIMED, carried_loss, carry=[*initial]), ValueError,
     "carry"),
    (lambda net: evaluate(net, [{"a": 1.0}, {"b": 1.0}], _returned), TypeError, "the names ['b']",
     "the names ['a']"),
    (lambda net: evaluate(net, [{"a": 1.0}, torch.tensor(1.0)], _returned), TypeError, "a loss",
     "the names ['a']"),
    (lambda net: evaluate(net, [{"a": 1.0}, {"a": (1.0, 2)}], _returned), TypeError, "a pair", "a mean"),
    (lambda net: evaluate(net, [{}], _returned), TypeError, "loss_fn returned a dictionary",
     "must be strings"),
    (lambda net: evaluate(net, [{1: 1.0}], _returned), TypeError, "the keys [1]", "must be strings"),
    (lambda net: evaluate(net, [{"": 1.0}], _returned), TypeError, "the keys ['']", "must be strings"),
    (lambda net: evaluate(net, [{"a": "1"}], _returned), TypeError, "in 'a' loss_fn returned"),
    (lambda net: evaluate(net, [{"a": (1.0, "2")}], _returned), TypeError, "in 'a' loss_fn returned", "'2'"),
]  # fmt: skip


@each_row(ERRORS)
def test_errors(row: Any) -> None:
    net, recurrent = Net(), Recurrent()
    check_error(row, net=net, recurrent=recurrent, initial=recurrent.initial())
    assert net.training
    assert recurrent.training


# Several ranks. `distributed/test_ranks` has the means over all of them, and the fillers.


@pytest.mark.slow
def test_ranks_make_the_same_passes(tmp_path: Path) -> None:
    run_checks([evaluated], tmp_path, processes=3)


def test_carry_stays_on_its_rank() -> None:
    data = [batches(count, time=4, seed=count) for count in (3, 1)]
    models = [Recurrent() for _ in data]

    def evaluate_rank() -> float:
        rank = processes.rank()
        return evaluate(models[rank], data[rank], carried_loss, carry=models[rank].initial())

    alone = [evaluate(models[0], local, carried_loss, carry=models[0].initial()) for local in data]
    assert on_ranks(evaluate_rank, 2) == pytest.approx([(3 * alone[0] + alone[1]) / 4] * 2)


def _named_by_rank(model: nn.Module, batch: Any) -> dict[str, Any]:
    return {f"loss of {processes.rank()}": mean_loss(model, batch)}


DIFFER = (
    "TypeError: loss_fn returned different names on different ranks, or a mean on one and a pair"
)


@pytest.mark.parametrize(
    ("count", "loss_fns", "message"),
    [
        (0, (pair_loss, pair_loss), "ValueError: batches is empty"),
        (2, (mean_loss, pair_loss), DIFFER),
        (2, (_named_by_rank, _named_by_rank), DIFFER),
        (2, (pair_loss, named_loss), DIFFER),
    ],
)
def test_errors_of_all_ranks(count: int, loss_fns: Any, message: str) -> None:
    models = [Net() for _ in loss_fns]

    def evaluate_rank() -> str:
        rank = processes.rank()
        return error_of(evaluate, models[rank], batches(count), loss_fns[rank])

    assert all(error.startswith(message) for error in on_ranks(evaluate_rank, 2))


def test_several_processes_need_a_group() -> None:
    model = Net()
    with (
        process(1, 2),
        pytest.raises(RuntimeError, match="WORLD_SIZE = 2, but there is no process group"),
    ):
        evaluate(model, batches(2), mean_loss)
    assert model.training
