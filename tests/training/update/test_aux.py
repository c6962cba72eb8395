"""Outputs of a loss function besides the loss."""

from typing import Any

import pytest
import torch
from support.distributed.processes import run
from support.training.models import batches, mean_loss, nonfinite, pair_loss
from support.training.steps import make_step
from support.training.trees import equal_trees
from support.training.update.aux_by_rank import aux_of_updates
from torch import nn


def _aux(model: nn.Module, batch: Any) -> dict[str, Any]:
    outputs = model(batch[0])
    return {"outputs": outputs, "parts": [outputs.mean(), (outputs > 0).sum()]}


def _with_aux(loss_fn: Any) -> Any:
    return lambda model, batch: (loss_fn(model, batch), _aux(model, batch))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loss_fn", [mean_loss, pair_loss])
@pytest.mark.parametrize("pieces", [1, 3])
def test_aux_does_not_change_the_update(precision: Any, loss_fn: Any, pieces: int) -> None:
    data = batches(6)
    step = make_step(loss_fn=_with_aux(loss_fn), has_aux=True, precision=precision)
    without_aux = make_step(loss_fn=loss_fn, precision=precision)
    for number in range(0, 6, pieces):
        micro = data[number : number + pieces]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=False):
            expected = [_aux(step.model, batch) for batch in micro]
        result = step(*micro)
        assert equal_trees(tuple(result[:4]), tuple(without_aux(*micro)[:4]))
        assert isinstance(result.aux, tuple)
        assert len(result.aux) == pieces
        assert not any(aux["outputs"].requires_grad for aux in result.aux)
        if precision == "fp32":
            assert equal_trees(list(result.aux), expected)
    assert equal_trees(step.state_dict()["model"], without_aux.state_dict()["model"])


def test_skipped_update_returns_aux() -> None:
    (batch,) = batches(1)
    assert make_step()(batch).aux == ()
    result = make_step(loss_fn=_with_aux(mean_loss), has_aux=True)(nonfinite(batch))
    assert result.skipped == 1
    assert result.aux[0]["outputs"].isnan().all()


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
@pytest.mark.parametrize("loss", ["mean", "pair"])
def test_each_rank_returns_its_own_aux(wrapper: str, loss: str) -> None:
    for pieces in (1, 3):
        assert run(aux_of_updates, wrapper, loss, pieces) == [[], []]
