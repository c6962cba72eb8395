"""Evaluation: the mean loss of all batches, one synchronization, and an unchanged model."""

import copy
import math
import re
import warnings

import pytest
import torch
from hypothesis import given, strategies as st
from support.raises import raises
from support.training.models import (
    LOSSES,
    Net,
    Recurrent,
    batches,
    carried_loss,
    mean_loss,
    pair_loss,
)
from support.training.reads import reads_of
from support.trees import assert_equal_trees
from torch import nn

from torch_bridge import evaluate


def _right_rows(model, batch):
    inputs, targets = batch
    return (model(inputs).argmax(-1) == targets.argmax(-1)).sum()


def _named_losses(model, batch):
    losses = {name: loss_fn(model, batch) for name, loss_fn in LOSSES.items()}
    return {**losses, "accuracy": (_right_rows(model, batch), len(batch[0]))}


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6))
def test_means_follow_their_definition(sizes):
    """Σ mean / batches of means, Σ sum / Σ weight of pairs, in float64; alone, and under names."""
    model = Net()
    data = []
    for number, size in enumerate(sizes):
        data += batches(1, size, number)
    means = []
    sums = []
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


def test_sums_are_larger_than_float32_counts():
    def loss_fn(model, batch):
        return torch.tensor(batch), torch.tensor(1)

    assert evaluate(Net(), [2.0**24, 1.0, 1.0], loss_fn) == (2**24 + 2) / 3


@pytest.mark.parametrize("weight", [0, 0.0, torch.tensor(0)])
def test_loss_without_weight_is_infinite(weight):
    def loss_fn(model, batch):
        return mean_loss(model, batch), weight

    assert evaluate(Net(), batches(1), loss_fn) == math.inf


def _modes(model):
    return [module.training for module in model.modules()]


def test_model_is_as_before_even_after_an_error():
    model = nn.Sequential(Net(dropout=0.5), nn.BatchNorm1d(2))
    model[0].first.eval()
    model[1].eval()
    modes = _modes(model)
    state = copy.deepcopy(model.state_dict())
    data = batches(3)

    def loss_fn(model, batch):
        assert not any(_modes(model))
        assert not torch.is_grad_enabled()
        if batch is None:
            raise KeyError("on purpose")
        return mean_loss(model, batch)

    def interrupted():
        yield data[0]
        raise KeyboardInterrupt

    assert evaluate(model, data, loss_fn) == evaluate(model, data, loss_fn)
    with pytest.raises(KeyError, match="on purpose"):
        evaluate(model, [data[0], None], loss_fn)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, interrupted(), loss_fn)
    assert _modes(model) == modes
    assert_equal_trees(model.state_dict(), state)
    for parameter in model.parameters():
        assert parameter.grad is None
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loss_fn", [*LOSSES.values(), _named_losses])
def test_evaluation_synchronizes_once(loss_fn, precision):
    model = Net()
    data = batches(7)
    assert len(reads_of(lambda: evaluate(model, data, loss_fn, precision=precision))) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("loss_fn", LOSSES.values())
def test_evaluation_waits_for_gpu_once(loss_fn):
    model = Net().cuda()
    data = batches(3, device="cuda")
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
def test_carry_is_passed_from_batch_to_batch(kind, precision, tolerance):
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


@pytest.fixture
def net():
    """A model, which must still be in training mode when the test ends."""
    net = Net()
    yield net
    assert net.training


@raises(ValueError, "batches is empty")
def test_no_batches(net):
    evaluate(net, [], mean_loss)


def test_swapped_model_and_batches(net):
    with pytest.raises(TypeError, match=r"^model = .* must be a torch.nn.Module"):
        evaluate([torch.ones(2)], net, lambda model, batch: batch)


@pytest.mark.parametrize(
    ("losses", "part"),
    [
        ([1.0], "loss_fn returned"),
        ([{"a": 1.0}, {"b": 1.0}], "returned {'a': 'mean'} and {'b': 'mean'}"),
        ([{"a": 1.0}, torch.tensor(1.0)], "returned {'a': 'mean'} and {'': 'mean'}"),
        ([{"a": 1.0}, {"a": (1.0, 2)}], "returned {'a': 'mean'} and {'a': 'pair'}"),
        ([{}], "must be strings"),
        ([{"": 1.0}], "the keys ['']"),
        ([{"a": (1.0, "2")}], "in 'a' loss_fn returned the weight '2'"),
    ],
)
def test_wrong_losses(net, losses, part):
    """The loss_fn returns these, one for each batch."""

    def loss_fn(model, batch):
        return batch

    with pytest.raises(TypeError, match=re.escape(part)) as caught:
        evaluate(net, losses, loss_fn)
    assert type(caught.value) is TypeError


def test_several_processes_need_a_group(net, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        evaluate(net, batches(2), mean_loss)
