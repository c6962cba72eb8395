"""Evaluation: the mean loss of all batches, one synchronization, and an unchanged model."""

import copy
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from hypothesis import given, strategies as st
from support.data.loaders import process
from support.distributed.models import wrapped
from support.distributed.processes import error_of
from support.distributed.threads import on_ranks
from support.evaluated import SPLITS, Sized, batches_of, named_loss
from support.training.models import (
    Batch,
    Net,
    Recurrent,
    batches,
    carried_loss,
    device_pair_loss,
    mean_loss,
    pair_loss,
)
from support.training.reads import reads_of
from support.trees import equal_trees
from support.wrong import wrong
from torch import Tensor, nn

from torch_bridge import evaluate
from torch_bridge.distributed import processes

LOSSES: dict[str, Any] = {"mean": mean_loss, "pair": pair_loss, "device pair": device_pair_loss}


def _right_rows(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return (model(inputs).argmax(-1) == targets.argmax(-1)).sum()


def _named_losses(model: nn.Module, batch: Batch) -> dict[str, Any]:
    return {
        "mean": mean_loss(model, batch),
        "pair": pair_loss(model, batch),
        "device pair": device_pair_loss(model, batch),
        "accuracy": (_right_rows(model, batch), len(batch[0])),
    }


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6))
def test_means_follow_their_definition(sizes: list[int]) -> None:
    """Σ mean / batches of means, Σ sum / Σ weight of pairs, in float64; alone, and under names."""
    model = Net()
    data: list[Batch] = []
    for number, size in enumerate(sizes):
        data += batches(1, size, number)
    means: list[float] = []
    sums: list[float] = []
    right_rows = 0
    with torch.no_grad():
        for batch in data:
            means.append(mean_loss(model, batch).item())
            sums.append(pair_loss(model, batch)[0].item())
            right_rows += int(_right_rows(model, batch))
    expected = {
        "mean": math.fsum(means) / len(data),
        "pair": math.nan,
        "device pair": math.nan,
        "accuracy": math.nan,
    }
    rows = sum(sizes)
    if rows:
        expected["pair"] = math.fsum(sums) / (2 * rows)  # two numbers in a row
        expected["device pair"] = expected["pair"]
        expected["accuracy"] = right_rows / rows
    named = evaluate(model, data, _named_losses)
    assert list(named) == list(expected)
    assert named == pytest.approx(expected, rel=1e-14, nan_ok=True)
    for name, loss_fn in LOSSES.items():
        mean = evaluate(model, iter(data), loss_fn)
        assert type(named[name]) is float
        assert type(mean) is float
        assert mean == pytest.approx(named[name], rel=0, nan_ok=True)


def test_sums_are_larger_than_float32_counts() -> None:
    def loss_fn(model: nn.Module, batch: float) -> Any:
        return torch.tensor(batch), torch.tensor(1)

    assert evaluate(Net(), [2.0**24, 1.0, 1.0], loss_fn) == (2**24 + 2) / 3


def test_parameters_may_be_a_list() -> None:
    model: Any = Net()
    model.parameters = lambda: list(Net.parameters(model))
    assert evaluate(model, batches(1), mean_loss) == evaluate(Net(), batches(1), mean_loss)


@pytest.mark.parametrize("weight", [0, 0.0, torch.tensor(0)])
def test_loss_without_weight_is_infinite(weight: Any) -> None:
    def loss_fn(model: nn.Module, batch: Batch) -> Any:
        return mean_loss(model, batch), weight

    assert evaluate(Net(), batches(1), loss_fn) == math.inf


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_model_is_as_before_even_after_an_error() -> None:
    model = nn.Sequential(Net(dropout=0.5), nn.BatchNorm1d(2))
    model[0].first.eval()
    model[1].eval()
    modes = _modes(model)
    state = copy.deepcopy(model.state_dict())
    data = batches(3)

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        assert not any(_modes(model))
        assert not torch.is_grad_enabled()
        if batch is None:
            raise KeyError("on purpose")
        return mean_loss(model, batch)

    def interrupted() -> Iterator[Any]:
        yield data[0]
        raise KeyboardInterrupt

    assert evaluate(model, data, loss_fn) == evaluate(model, data, loss_fn)
    with pytest.raises(KeyError, match="on purpose"):
        evaluate(model, [data[0], None], loss_fn)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, interrupted(), loss_fn)
    assert _modes(model) == modes
    assert equal_trees(model.state_dict(), state)
    for parameter in model.parameters():
        assert parameter.grad is None
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loss_fn", [*LOSSES.values(), _named_losses])
def test_evaluation_synchronizes_once(loss_fn: Any, precision: Any) -> None:
    model = Net()
    data = batches(7)
    assert reads_of(lambda: evaluate(model, data, loss_fn, precision=precision)) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("loss_fn", LOSSES.values())
def test_evaluation_waits_for_gpu_once(loss_fn: Any) -> None:
    model = Net().cuda()
    data = [(inputs.cuda(), targets.cuda()) for inputs, targets in batches(3)]
    expected = evaluate(model, data, loss_fn)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            assert evaluate(model, data, loss_fn) == expected
        finally:
            torch.cuda.set_sync_debug_mode("default")
    messages = [str(warning.message) for warning in caught]
    synchronizations = [text for text in messages if "synchronizing CUDA operation" in text]
    assert len(synchronizations) == 1


@pytest.mark.parametrize(
    ("kind", "precision", "tolerance"),
    [("LSTM", "fp32", 1e-6), ("GRU", "bf16", 0.01), ("GRU", "fp16", 0.01)],
)
def test_carry_is_passed_from_batch_to_batch(kind: str, precision: Any, tolerance: float) -> None:
    model = Recurrent(kind)
    initial = model.initial()
    ((inputs, targets),) = batches(1, time=12)
    windows = list(zip(inputs.split(4, dim=1), targets.split(4, dim=1), strict=True))
    with torch.no_grad():
        exact = carried_loss(model, (inputs, targets), initial)[0].item()
    for _ in range(2):  # each call starts from the initial state
        loss = evaluate(model, windows, carried_loss, precision=precision, carry=initial)
        assert loss == pytest.approx(exact, rel=tolerance)
    apart = [evaluate(model, [window], carried_loss, carry=initial) for window in windows]
    assert loss != pytest.approx(sum(apart) / 3, rel=1e-3)


# Wrong calls.


TWO_BATCHES = [*batches(2), "not reached"]
TIMED = batches(1, time=2)


@pytest.fixture
def net() -> Iterator[Net]:
    """A model, which must still be in training mode when the test ends."""
    net = Net()
    yield net
    assert net.training


@pytest.fixture
def recurrent() -> Iterator[Recurrent]:
    """A model with a carry, which must still be in training mode when the test ends."""
    recurrent = Recurrent()
    yield recurrent
    assert recurrent.training


@wrong(ValueError, "batches is empty")
def test_no_batches(net: Net) -> None:
    evaluate(net, [], mean_loss)


@wrong(TypeError, "loss_fn = None", "callable")
def test_no_loss_fn(net: Net) -> None:
    evaluate(net, TWO_BATCHES, cast("Any", None))


@wrong(TypeError, "MSELoss", "wrap the criterion")
def test_criterion_as_loss_fn(net: Net) -> None:
    evaluate(net, TWO_BATCHES, nn.MSELoss())


def _in_turn(*loss_fns: Any) -> Any:
    """Return a loss_fn that calls the first of these for the first batch, and so on."""
    remaining = iter(loss_fns)

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        return next(remaining)(model, batch)

    return loss_fn


@wrong(TypeError, "a mean", "a pair")
def test_pair_after_a_mean(net: Net) -> None:
    evaluate(net, TWO_BATCHES, _in_turn(mean_loss, pair_loss))


@wrong(TypeError, "a mean", "a pair")
def test_mean_after_a_pair(net: Net) -> None:
    evaluate(net, TWO_BATCHES, _in_turn(pair_loss, mean_loss))


@wrong(ValueError, "loss_fn returned", "shape")
def test_loss_of_several_elements(net: Net) -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0])

    evaluate(net, TWO_BATCHES, loss_fn)


@wrong(ValueError, "precision = 'half'")
def test_unknown_precision(net: Net) -> None:
    evaluate(net, TWO_BATCHES, mean_loss, precision=cast("Any", "half"))


@wrong(TypeError, "carry = 3")
def test_carry_of_no_tensors(net: Net) -> None:
    evaluate(net, TWO_BATCHES, carried_loss, carry=3)


@wrong(TypeError, "(loss, carry)")
def test_loss_without_the_carry(recurrent: Recurrent) -> None:
    def loss_fn(model: nn.Module, batch: Any, carry: Any) -> Tensor:
        loss, _ = carried_loss(model, batch, carry)
        return loss

    evaluate(recurrent, TIMED, loss_fn, carry=recurrent.initial())


@wrong(ValueError, "carry")
def test_carry_of_a_different_structure(recurrent: Recurrent) -> None:
    evaluate(recurrent, TIMED, carried_loss, carry=list(recurrent.initial()))


@dataclass(frozen=True)
class WrongLosses:
    """What a loss_fn returns for one batch after the other, and what the message contains."""

    losses: list[Any]
    parts: list[str]


@pytest.mark.parametrize(
    "case",
    [
        WrongLosses([1.0], ["loss_fn returned"]),
        WrongLosses([{"a": 1.0}, {"b": 1.0}], ["the names ['b']", "the names ['a']"]),
        WrongLosses([{"a": 1.0}, torch.tensor(1.0)], ["a loss", "the names ['a']"]),
        WrongLosses([{"a": 1.0}, {"a": (1.0, 2)}], ["a pair", "a mean"]),
        WrongLosses([{}], ["loss_fn returned a dictionary", "must be strings"]),
        WrongLosses([{1: 1.0}], ["the keys [1]", "must be strings"]),
        WrongLosses([{"": 1.0}], ["the keys ['']", "must be strings"]),
        WrongLosses([{"a": "1"}], ["in 'a' loss_fn returned"]),
        WrongLosses([{"a": (1.0, "2")}], ["in 'a' loss_fn returned", "'2'"]),
    ],
)
def test_wrong_losses(net: Net, case: WrongLosses) -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        return batch

    with pytest.raises(TypeError) as caught:
        evaluate(net, case.losses, loss_fn)
    assert type(caught.value) is TypeError
    for part in case.parts:
        assert part in str(caught.value)


# Several ranks. `distributed/test_ranks` has the means over all of them, and the fillers.


def sharded_loss(local: Iterable[Batch]) -> Any:
    """Evaluate a model with FSDP on the batches of this rank."""
    return evaluate(wrapped("fsdp", Net()), local, pair_loss)


@pytest.mark.slow
@pytest.mark.ranks(3)
@pytest.mark.parametrize("split", SPLITS)
def test_ranks_make_the_same_passes(split: list[list[int]]) -> None:
    """With an uncounted filler; without it, a rank would wait for the shards of the others."""
    by_rank = batches_of(split)
    all_batches: list[Batch] = []
    for of_rank in by_rank:
        all_batches.extend(of_rank)
    expected = evaluate(Net(), all_batches, pair_loss)

    local = by_rank[processes.rank()]
    assert sharded_loss(local) == pytest.approx(expected)
    assert sharded_loss(Sized(local, len(local) + 2)) == pytest.approx(expected)
    one_without_length: Iterable[Batch] = local
    if processes.rank() == 1:
        one_without_length = iter(local)
    assert sharded_loss(one_without_length) == pytest.approx(expected)


def reads_with(most: int) -> int:
    """Return the reads of an evaluation of `most` batches, and half as many on rank 0."""
    local = batches(most)
    if processes.rank() == 0:
        local = local[: most // 2]
    return reads_of(lambda: evaluate(Net(), local, pair_loss))


@pytest.mark.slow
@pytest.mark.ranks(3)
def test_reads_do_not_depend_on_the_number_of_batches() -> None:
    """If the batches have a length, the ranks agree once on the number of passes."""
    assert reads_with(2) == reads_with(20)


def test_carry_stays_on_its_rank() -> None:
    """The mean is that of four batches, three of the first rank and one of the second."""
    data = [batches(3, time=4, seed=3), batches(1, time=4, seed=1)]
    models = [Recurrent(), Recurrent()]
    initial = models[0].initial()

    def evaluate_rank() -> float:
        rank = processes.rank()
        return evaluate(models[rank], data[rank], carried_loss, carry=initial)

    first = evaluate(models[0], data[0], carried_loss, carry=initial)
    second = evaluate(models[0], data[1], carried_loss, carry=initial)
    mean = (3 * first + second) / 4
    assert on_ranks(evaluate_rank, 2) == pytest.approx([mean, mean])


def _named_by_rank(model: nn.Module, batch: Any) -> dict[str, Any]:
    return {f"loss of {processes.rank()}": mean_loss(model, batch)}


def _errors_of_ranks(count: int, *loss_fns: Any) -> list[str]:
    """Evaluate `count` batches with one loss_fn per rank; return the errors of the ranks."""
    models = [Net() for _ in loss_fns]

    def evaluate_rank() -> str:
        rank = processes.rank()
        return error_of(evaluate, models[rank], batches(count), loss_fns[rank])

    return on_ranks(evaluate_rank, len(loss_fns))


def test_no_batches_on_all_ranks() -> None:
    for error in _errors_of_ranks(0, pair_loss, pair_loss):
        assert error.startswith("ValueError: batches is empty")


@pytest.mark.parametrize(
    "loss_fns",
    [(mean_loss, pair_loss), (_named_by_rank, _named_by_rank), (pair_loss, named_loss)],
)
def test_different_losses_on_ranks(loss_fns: Any) -> None:
    for error in _errors_of_ranks(2, *loss_fns):
        assert error.startswith(
            "TypeError: loss_fn returned different names on different ranks, "
            "or a mean on one and a pair"
        )


@wrong(RuntimeError, "WORLD_SIZE = 2, but there is no process group")
def test_several_processes_need_a_group(net: Net) -> None:
    with process(1, 2):
        evaluate(net, batches(2), mean_loss)
