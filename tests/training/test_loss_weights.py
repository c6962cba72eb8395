"""Weights of losses: those that are not counts warn once, and a loss function may reuse its tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.training.models import Net, batches, mean_loss
from support.training.steps import make_step, train

from plateau_jax import CurveWarning
from torch_bridge import evaluate

_MESSAGE = r"a weight that is not a whole number.*has_aux=True and return \(loss, aux\)"

_FRACTIONS: dict[str, Callable[[], Any]] = {
    "float": lambda: 0.8125,
    "above 1": lambda: 81.25,
    "NumPy scalar": lambda: np.float32(0.8125),
    "CPU scalar": lambda: torch.tensor(0.8125),
    "negative": lambda: torch.tensor(-1.0),
}
_COUNTS: dict[str, Callable[[], Any]] = {
    "int": lambda: 3,
    "float": lambda: 3.0,
    "NumPy scalar": lambda: np.int64(3),
    "CPU scalar": lambda: torch.tensor(3),
    "float scalar": lambda: torch.tensor(3.0),
    "1": lambda: 1,
    "shares that add up to 1": lambda: torch.full((10,), 0.1).sum(),  # 1.0000001
}


def _returning(weights: Callable[[], Any]) -> Any:
    return lambda model, batch: (mean_loss(model, batch), weights())


@pytest.mark.parametrize("weight", _FRACTIONS.values(), ids=_FRACTIONS)
def test_weight_that_is_not_a_count_warns_once(weight: Callable[[], Any]) -> None:
    step, data = make_step(loss_fn=_returning(weight)), batches(4)
    with pytest.warns(CurveWarning, match=_MESSAGE) as caught:
        step(data[0])
    assert caught[0].filename == __file__, "the line of the call"
    train(step, data)
    step(*data)
    with pytest.warns(CurveWarning, match=_MESSAGE) as caught:
        evaluate(Net(), data[1:], _returning(weight))
    assert len(caught) == 1


@pytest.mark.parametrize("accuracies", [[1.0, 1.0, 0.5], [1.0, 0.5, 0.0]])
def test_accuracy_of_1_does_not_end_the_check(accuracies: list[float]) -> None:
    step, data = make_step(loss_fn=_returning(map(torch.tensor, accuracies).__next__)), batches(3)
    with pytest.warns(CurveWarning, match=_MESSAGE):
        train(step, data)


@pytest.mark.parametrize("weight", _COUNTS.values(), ids=_COUNTS)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_counts_do_not_warn(weight: Callable[[], Any], micro_batches: int) -> None:
    step, data = make_step(loss_fn=_returning(weight)), batches(micro_batches)
    step(*data)
    step(*data)
    evaluate(Net(), data, _returning(weight))


def test_pairs_in_a_dictionary_do_not_warn() -> None:
    def metrics(model: Any, batch: Any) -> Any:
        return {"weighted": (mean_loss(model, batch), 0.25)}

    evaluate(Net(), batches(2), metrics)
    step = make_step(loss_fn=lambda model, batch: (mean_loss(model, batch), torch.tensor(float("nan"))))
    assert int(step(*batches(1)).skipped) == 1


def test_loss_function_may_write_its_weights_into_one_tensor() -> None:
    weight = torch.zeros(())

    def loss_fn(model: Any, batch: Any, *, is_reused: bool) -> Any:
        count = torch.tensor(float(len(batch[0])))
        return mean_loss(model, batch) * count, weight.copy_(count) if is_reused else count

    first, second = batches(2)
    short = tuple(part[:3] for part in second)
    losses = [
        make_step(loss_fn=partial(loss_fn, is_reused=reused))(first, short).loss for reused in (False, True)
    ]
    assert losses[0] == losses[1]
