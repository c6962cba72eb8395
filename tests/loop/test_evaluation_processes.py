"""Evaluation with several processes: every sample counts once, and all ranks make the same passes."""

import math

import pytest
import torch
from support.data.batches_by_rank import process
from support.distributed import processes
from support.evaluated import (
    CARRIED,
    CASES,
    LOADED,
    SPLITS,
    batches_of,
    evaluate_otherwise,
    evaluate_splits,
    named_loss,
)
from support.training.models import Net, Recurrent, batches, carried_loss, mean_loss, pair_loss
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
    assert others == [first, first]
    assert first == pytest.approx([_exact(split, loss) for (split, _), loss in CASES], rel=1e-6)


def test_named_carried_and_loaded_batches() -> None:
    """Pairs by their weights, means by batch; a rank may have no batch at all; a carry stays on its rank."""
    first, second = processes.run(evaluate_otherwise)
    assert {**first, "reads": second["reads"]} == second
    for mean, split in zip(first["named"], SPLITS, strict=True):
        each = [named_loss(Net(), batch) for local in batches_of(split)[:2] for batch in local]
        expected = {"mean": sum(one["mean"].item() for one in each) / len(each)}
        for name in ("pair", "large"):
            expected[name] = sum(one[name][0].item() for one in each) / sum(one[name][1] for one in each)
        assert mean == pytest.approx(expected, rel=1e-6)
    alone = [evaluate(model, local, carried_loss, carry=model.initial())
             for model, local in ((Recurrent(), local) for local in CARRIED)]  # fmt: skip
    assert first["carried"] == pytest.approx((3 * alone[0] + alone[1]) / 4, rel=1e-6)
    exact = [evaluate(Net(), batches(1, rows), pair_loss) for rows in LOADED]
    assert first["loaded"] == pytest.approx(exact, rel=1e-6)
    for few, many in (first["reads"], second["reads"]):
        assert few == many
    empty = "ValueError: batches is empty"
    differ = "TypeError: loss_fn returned different names on different ranks, or a mean on one and a pair"
    assert first["errors"] == [empty, empty, *3 * [f"{differ} (sum, weight) on another"]]


def test_several_processes_need_a_group() -> None:
    model = Net()
    with process(1, 2), pytest.raises(RuntimeError, match="WORLD_SIZE = 2, but there is no process group"):
        evaluate(model, batches(2), mean_loss)
    assert model.training
