"""Evaluation with several processes: every sample counts once, and all ranks make the same passes."""

import math

import pytest
import torch
from support.data.batches_by_rank import process
from support.distributed import processes
from support.evaluated import (
    FORMS,
    SPLITS,
    batches_of,
    count_reads,
    errors,
    evaluate_carried,
    evaluate_loaded,
    evaluate_named,
    evaluate_splits,
    named_loss,
)
from support.training.models import Net, Recurrent, batches, carried_loss, mean_loss
from torch import nn

from torch_bridge import evaluate

pytestmark = pytest.mark.slow


def _exact(split: list[list[int]], loss: str) -> float:
    """Compute the loss by definition, of a network behind a normalization without statistics yet."""
    model = nn.Sequential(nn.BatchNorm1d(3), Net()).eval()
    data = [batch for local in batches_of(split) for batch in local]
    with torch.no_grad():
        errors = [(model(inputs).double() - targets).square() for inputs, targets in data]
    if loss == "mean":
        return math.fsum(error.mean().item() for error in errors) / len(errors)
    return math.fsum(error.sum().item() for error in errors) / sum(error.numel() for error in errors)


@pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp"])
def test_every_sample_counts_once_despite_fillers(kind: str) -> None:
    first, *others = processes.run(evaluate_splits, kind, processes=3)
    assert all(other == first for other in others)
    assert len(first) == len(SPLITS) * len(FORMS)
    for evaluation in first:
        split = SPLITS[evaluation.split]
        assert evaluation.value == pytest.approx(_exact(split, evaluation.loss), rel=1e-6)
        assert evaluation.passes == FORMS[evaluation.form][1](max(map(len, split)))
        assert evaluation.as_before


def test_named_means_cover_batches_of_all_ranks() -> None:
    """Pairs by their weights, means by batch; a rank may have no batch at all."""
    first, *others = processes.run(evaluate_named, processes=3)
    assert all(other == first for other in others)
    for mean, split in zip(first, SPLITS, strict=True):
        each = [named_loss(Net(), batch) for local in batches_of(split) for batch in local]
        expected = {"mean": sum(one["mean"].item() for one in each) / len(each)}
        for name in ("pair", "large"):
            expected[name] = sum(one[name][0].item() for one in each) / sum(one[name][1] for one in each)
        assert mean == pytest.approx(expected, rel=1e-6)


def test_carry_stays_on_its_rank() -> None:
    pieces = [batches(count, time=4, seed=count) for count in (3, 1)]
    losses = []
    with torch.no_grad():
        for local in pieces:
            model = Recurrent()
            carry = model.initial()
            for batch in local:
                loss, carry = carried_loss(model, batch, carry)
                losses.append(loss.item())
    means = processes.run(evaluate_carried, pieces)
    assert means == [pytest.approx(sum(losses) / 4, rel=1e-6)] * 2
    assert means[0] == means[1]


def test_loaders_of_all_ranks_cover_the_data_once() -> None:
    numbers, exact = [1, 7, 8, 9], []
    for rows in numbers:
        (samples,) = batches(1, rows)
        with torch.no_grad():
            exact.append((Net()(samples[0]).double() - samples[1]).square().mean().item())
    means = processes.run(evaluate_loaded, numbers, 2)
    assert means[0] == pytest.approx(exact, rel=1e-6)
    assert means[0] == means[1]


def test_reads_do_not_grow_with_batches() -> None:
    for few, many in processes.run(count_reads):
        assert few == many


def test_errors_are_raised_on_all_ranks() -> None:
    empty = "ValueError: batches is empty"
    mixed = "TypeError: loss_fn returned a mean on one rank and a pair (sum, weight) on another"
    names = "TypeError: loss_fn returned different names on different ranks"
    assert processes.run(errors) == [[empty, empty, mixed, names, names]] * 2


def test_several_processes_need_a_group() -> None:
    model = Net()
    with process(1, 2), pytest.raises(RuntimeError, match="WORLD_SIZE = 2, but there is no process group"):
        evaluate(model, batches(2), mean_loss)
    assert model.training
