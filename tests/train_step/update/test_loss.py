"""The values that a loss function may return or may not, and the warning about odd weights."""

import numpy as np
import pytest
import torch
from support.raises import raises
from support.training.models import Net, batches, mean_loss
from support.training.steps import make_step, train
from torch import tensor

from plateau_jax import CurveWarning
from torch_bridge import evaluate
from torch_bridge.training.train_step.loss import parse_loss

LOSS = torch.ones((), requires_grad=True)
ON_META = torch.ones((), device="meta")
"""The meta device stands in for an accelerator."""
INF = float("inf")


# Values that are rejected.


@pytest.mark.parametrize(
    ("outputs", "parts"),
    [
        (1.0, ["loss_fn returned 1.0", "scalar tensor"]),
        ((LOSS, True), ["the weight True", "has_aux=True"]),
    ],
)
def test_outputs_of_a_wrong_type(outputs, parts):
    with raises(TypeError, *parts):
        parse_loss(outputs)


@pytest.mark.parametrize(
    ("outputs", "parts"),
    [
        ((LOSS, torch.ones(500, 7)), ["weight", "(500, 7)", "has_aux=True"]),
        ((LOSS, LOSS), ["weight", "requires grad", "detach()", "has_aux=True"]),
        ((LOSS, -1), ["weight -1", "not negative"]),
        ((LOSS, INF), ["weight inf", "finite"]),
        (torch.ones(1), ["loss of shape (1,)", "mean()"]),
        (tensor(1j), ["loss", "complex64", "floating-point"]),
    ],
)
def test_outputs_of_a_wrong_value(outputs, parts):
    with raises(ValueError, "loss_fn", *parts):
        parse_loss(outputs)


def detached_loss(model, batch):
    return mean_loss(model, batch).detach()


def loss_of_no_weight(model, batch):
    return mean_loss(model, batch), 0


def loss_on_meta(model, batch):
    return mean_loss(model, batch).to("meta")


@raises(RuntimeError, "does not require grad")
def test_detached_loss():
    """In the last micro-batch; the first one has made gradients."""
    loss_fns = iter([mean_loss, detached_loss])
    make_step(loss_fn=lambda *arguments: next(loss_fns)(*arguments))(*batches(2))


@raises(ValueError, "weight", "is zero")
def test_weights_of_zero():
    make_step(loss_fn=loss_of_no_weight)(*batches(2))


@raises(ValueError, "a loss on meta", "parameters are on cpu")
def test_loss_on_another_device():
    make_step(loss_fn=loss_on_meta)(*batches(1))


# Values that are accepted.


@pytest.mark.parametrize(
    "weight",
    [
        3,
        2.5,
        np.int64(3),
        np.float32(2.5),
        np.float64(2.5),
        tensor(3),
        tensor(2.5),
        tensor(True),
    ],
)
@pytest.mark.parametrize("pair", [tuple, list])
def test_valid_weights_are_accepted(weight, pair):
    total, parsed = parse_loss(pair([LOSS, weight]))
    assert total is LOSS
    assert float(parsed) == float(weight)


@pytest.mark.parametrize("weight", [tensor(3), tensor(3.0), tensor(3.0).bfloat16(), 3])
def test_host_weight_with_device_sum_is_accepted(weight):
    _, parsed = parse_loss((ON_META, weight))
    assert type(parsed) is float
    assert parsed == 3


@pytest.mark.parametrize("weight", [tensor(1 / 3, dtype=torch.float64), tensor(2**24 + 1)])
def test_device_weight_is_as_exact_as_the_sum(weight):
    _, parsed = parse_loss((torch.ones((), dtype=torch.float64), weight))
    assert parsed == weight.double()


# The warning about weights that are not counts: an accuracy, or another metric.

NOT_A_COUNT = r"a weight that is not a whole number.*has_aux=True and return \(loss, aux\)"


def loss_with_weights(*weights):
    """Return a loss function with these weights, the last again and again."""
    remaining = list(weights)

    def loss_fn(model, batch):
        weight = remaining[0]
        if len(remaining) > 1:
            remaining.pop(0)
        return mean_loss(model, batch), weight

    return loss_fn


@pytest.mark.parametrize(
    "weight", [0.8125, 81.25, np.float32(0.8125), tensor(0.8125), tensor(-1.0)], ids=repr
)
def test_weight_that_is_not_a_count_warns_once(weight):
    step = make_step(loss_fn=loss_with_weights(weight))
    data = batches(4)
    with pytest.warns(CurveWarning, match=NOT_A_COUNT) as caught:
        step(data[0])
    assert caught[0].filename == __file__, "the line of the call"
    train(step, data)
    step(*data)
    with pytest.warns(CurveWarning, match=NOT_A_COUNT) as caught:
        evaluate(Net(), data[1:], loss_with_weights(weight))
    assert len(caught) == 1


@pytest.mark.parametrize(
    "accuracies", [[1.0, 1.0, 0.5], [1.0, 0.5, 0.0], [torch.nan, 0.5]], ids=repr
)
def test_accuracy_of_1_does_not_end_the_check(accuracies):
    step = make_step(loss_fn=loss_with_weights(*map(tensor, accuracies)))
    with pytest.warns(CurveWarning, match=NOT_A_COUNT):
        train(step, batches(3))


@pytest.mark.parametrize("num_batches", [1, 2])
@pytest.mark.parametrize(
    "weight", [3, 3.0, np.int64(3), tensor(3), tensor(3.0), 1, tensor(1.0000001)], ids=repr
)
def test_counts_do_not_warn(weight, num_batches):
    data = batches(num_batches)
    step = make_step(loss_fn=loss_with_weights(weight))
    step(*data)
    step(*data)
    evaluate(Net(), data, loss_with_weights(weight))


def test_loss_function_may_write_its_weights_into_one_tensor():
    weight = torch.zeros(())

    def count_of(batch):
        inputs, _ = batch
        return torch.tensor(float(len(inputs)))

    def new_weights(model, batch):
        count = count_of(batch)
        return mean_loss(model, batch) * count, count

    def reused_weight(model, batch):
        count = count_of(batch)
        return mean_loss(model, batch) * count, weight.copy_(count)

    first, second = batches(2)
    shorter = tuple(part[:3] for part in second)
    expected = make_step(loss_fn=new_weights)(first, shorter)
    assert make_step(loss_fn=reused_weight)(first, shorter).loss == expected.loss
