"""The values that a loss function may return, those it may not, and the warning about odd weights."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import check_error, each_row
from support.training.models import Net, batches, mean_loss, pair_loss
from support.training.steps import make_step, train
from torch import tensor

from plateau_jax import CurveWarning
from torch_bridge import evaluate
from torch_bridge.training.loss import parse_loss

x = torch.ones((), requires_grad=True)
on_meta = torch.ones((), device="meta")
nan, inf = float("nan"), float("inf")


def update(kinds: str) -> None:
    """Run an update whose micro-batches have a mean (m), detached (d), a pair (p), or one of weight 0 (0)."""
    forms = {
        "m": mean_loss,
        "d": lambda model, batch: mean_loss(model, batch).detach(),
        "p": pair_loss,
        "0": lambda model, batch: (mean_loss(model, batch), 0),
    }
    losses = iter([forms[kind] for kind in kinds])
    make_step(loss_fn=lambda model, batch: next(losses)(model, batch))(*batches(len(kinds)))


def loss_on(device: str) -> Any:
    return make_step(loss_fn=lambda model, batch: mean_loss(model, batch).to(device))(*batches(1))


ERRORS = [
    (lambda: parse_loss(1.0), TypeError, "loss_fn returned 1.0", "scalar tensor"),
    (lambda: parse_loss({"loss": x}), TypeError, "loss_fn returned {'loss'", "pair"),
    (lambda: parse_loss((x,)), TypeError, "loss_fn returned", "pair"),
    (lambda: parse_loss((None, 1)), TypeError, "None as the sum", "tensor"),
    (lambda: parse_loss((x, True)), TypeError, "the weight True", "has_aux=True"),
    (lambda: parse_loss((x, {"logits": torch.ones(500, 7)})), TypeError, "the weight", "has_aux=True"),
    (lambda: parse_loss((x, torch.ones(500, 7))), ValueError, "weight", "(500, 7)", "has_aux=True"),
    (lambda: parse_loss((x, x)), ValueError, "weight", "requires grad", "detach()", "has_aux=True"),
    (lambda: parse_loss((x, -1)), ValueError, "weight -1", "not negative"),
    (lambda: parse_loss((x, nan)), ValueError, "weight nan", "finite"),
    (lambda: parse_loss((x, inf)), ValueError, "weight inf", "finite"),
    (lambda: parse_loss((on_meta, tensor(nan))), ValueError, "weight nan", "finite"),
    (lambda: parse_loss((on_meta, tensor(-1.0))), ValueError, "weight -1", "not negative"),
    (lambda: parse_loss(torch.ones(1)), ValueError, "loss of shape (1,)", "mean()"),
    (lambda: parse_loss(tensor(1)), ValueError, "loss", "int64", "floating-point"),
    (lambda: parse_loss(tensor(1j)), ValueError, "loss", "complex64", "floating-point"),
    (lambda: parse_loss((torch.ones(1), 2)), ValueError, "sum of shape (1,)", "mean()"),
    (lambda: update("mp"), TypeError, "a mean for one batch and a pair"),
    (lambda: update("md"), ValueError, "the loss has no gradient"),
    (lambda: update("00"), ValueError, "weight", "is zero"),
    (lambda: loss_on("meta"), ValueError, "a loss on meta", "parameters are on cpu"),
]


@each_row(ERRORS)
def test_invalid_losses_are_rejected(row: Any) -> None:
    check_error(row)


@pytest.mark.parametrize(
    "weight", [3, 2.5, np.int64(3), np.float32(2.5), np.float64(2.5), tensor(3), tensor(2.5), tensor(True)]
)
@pytest.mark.parametrize("pair", [tuple, list])
def test_valid_weights_are_accepted(weight: Any, pair: Any) -> None:
    total, parsed = parse_loss(pair([x, weight]))
    assert total is x
    assert float(parsed) == float(weight)


@pytest.mark.parametrize("weight", [tensor(3), tensor(3.0), tensor(3.0).bfloat16(), 3])
def test_host_weight_with_device_sum_is_accepted(weight: Any) -> None:
    """The meta device stands in for an accelerator."""
    parsed = parse_loss((on_meta, weight))[1]
    assert type(parsed) is float
    assert parsed == 3


def test_device_weight_is_as_exact_as_the_sum() -> None:
    for weight in (tensor(1 / 3, dtype=torch.float64), tensor(2**24 + 1)):
        assert parse_loss((torch.ones((), dtype=torch.float64), weight))[1] == weight.double()


_MESSAGE = r"a weight that is not a whole number.*has_aux=True and return \(loss, aux\)"
_FRACTIONS = [0.8125, 81.25, np.float32(0.8125), tensor(0.8125), tensor(-1.0)]
_COUNTS = [3, 3.0, np.int64(3), tensor(3), tensor(3.0), 1, tensor(1.0000001)]


def _returning(*weights: Any) -> Callable[..., Any]:
    """Return a loss function with these weights, the last again and again."""
    rest = list(weights)
    return lambda model, batch: (mean_loss(model, batch), rest.pop(0) if len(rest) > 1 else rest[0])


@pytest.mark.parametrize("weight", _FRACTIONS, ids=repr)
def test_weight_that_is_not_a_count_warns_once(weight: Any) -> None:
    step, data = make_step(loss_fn=_returning(weight)), batches(4)
    with pytest.warns(CurveWarning, match=_MESSAGE) as caught:
        step(data[0])
    assert caught[0].filename == __file__, "the line of the call"
    train(step, data)
    step(*data)
    with pytest.warns(CurveWarning, match=_MESSAGE) as caught:
        evaluate(Net(), data[1:], _returning(weight))
    assert len(caught) == 1


@pytest.mark.parametrize("accuracies", [[1.0, 1.0, 0.5], [1.0, 0.5, 0.0], [torch.nan, 0.5]], ids=repr)
def test_accuracy_of_1_does_not_end_the_check(accuracies: list[float]) -> None:
    with pytest.warns(CurveWarning, match=_MESSAGE):
        train(make_step(loss_fn=_returning(*map(tensor, accuracies))), batches(3))


@pytest.mark.parametrize("weight", _COUNTS, ids=repr)
def test_counts_do_not_warn(weight: Any) -> None:
    for data in (batches(1), batches(2)):
        step = make_step(loss_fn=_returning(weight))
        step(*data)
        step(*data)
        evaluate(Net(), data, _returning(weight))
    evaluate(Net(), data, lambda model, batch: {"weighted": (mean_loss(model, batch), 0.25)})


def test_loss_function_may_write_its_weights_into_one_tensor() -> None:
    weight = torch.zeros(())

    def loss_fn(model: Any, batch: Any, *, is_reused: bool) -> Any:
        count = torch.tensor(float(len(batch[0])))
        return mean_loss(model, batch) * count, weight.copy_(count) if is_reused else count

    first, second = batches(2)
    pieces = first, tuple(part[:3] for part in second)
    steps = [make_step(loss_fn=partial(loss_fn, is_reused=reused)) for reused in (False, True)]
    assert steps[0](*pieces).loss == steps[1](*pieces).loss
