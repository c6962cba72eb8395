"""One loss from all micro-batches, a quotient of sums or an average of means; gradient norms."""

import pytest
import torch
from hypothesis import example, given, strategies as st
from support.examples import examples
from support.training.models import batches, device_pair_loss, mean_loss, pair_loss
from support.training.steps import make_step
from torch import nn
from torch.testing import assert_close

from torch_bridge.training.train_step.gradients import clip, gradients_of, norm_dtype, total_norm


def split(batch, rows):
    """Split a batch into micro-batches of these sizes."""
    inputs, targets = batch
    return list(zip(inputs.split(rows), targets.split(rows), strict=True))


def test_backward_runs_before_the_next_forward():
    """So only one micro-batch's activations are in memory at a time."""
    has_gradients = []

    def loss_fn(model, batch):
        has_gradients.append(all(parameter.grad is not None for parameter in model.parameters()))
        return mean_loss(model, batch)

    step = make_step(loss_fn=loss_fn)
    step(*batches(3))
    assert has_gradients == [False, True, True]


def loss_of_rows(model, batch):
    """Return a sum without a gradient for an empty micro-batch."""
    inputs, _ = batch
    if len(inputs) == 0:
        return torch.zeros(()), 0
    return pair_loss(model, batch)


@pytest.mark.parametrize("loss_fn", [pair_loss, device_pair_loss, loss_of_rows])
@examples(25)
@example([0, 5, 0, 3, 0])
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
def test_pairs_do_not_depend_on_the_split(loss_fn, rows):
    (batch,) = batches(1, sum(rows))
    micro_batches = split(batch, rows)
    # Plain descent: Adam would turn gradients that round to nothing into steps of full size.
    step = make_step("sgd", loss_fn=loss_fn)
    step_in_pieces = make_step("sgd", loss_fn=loss_fn)
    for _ in range(4):
        result = step_in_pieces(*micro_batches)
        expected = step(batch)
        assert_close(result, expected, rtol=1e-6, atol=0)
    weights = list(step_in_pieces.model.parameters())
    expected_weights = list(step.model.parameters())
    assert_close(weights, expected_weights, rtol=1e-6, atol=1e-7)


# Under fp16, sums are divided by the first of several weights: they could overflow.


@pytest.mark.parametrize(
    ("rows", "updates"),
    [
        ([4000], 1),
        ([3000, 1000], 1),
        # The first weight is small, so the scale must shrink first.
        ([100, 3900], 14),
        ([0, 4000], 14),
        ([0, 400, 3600, 0], 14),
    ],
    ids=repr,
)
@pytest.mark.parametrize("loss_fn", [pair_loss, device_pair_loss])
def test_large_sums_do_not_overflow(loss_fn, rows, updates):
    """65 536 times a gradient of sums over 4 000 rows is far beyond fp16's largest, 65 504."""
    (batch,) = batches(1, rows=4000)
    reference = make_step("sgd", loss_fn=pair_loss)
    expected = reference(batch)
    micro_batches = split(batch, rows)
    step = make_step("sgd", loss_fn=loss_fn, precision="fp16")
    results = [step(*micro_batches) for _ in range(updates)]
    first_applied = next(result for result in results if result.applied)
    assert_close(first_applied[:3], expected[:3], rtol=0.01, atol=0)


# The norm of the gradients.


def parameter_in(dtype):
    parameter = nn.Parameter(torch.zeros(3, 4, dtype=dtype))
    parameter.grad = torch.randn(3, 4).to(dtype)
    return parameter


@pytest.mark.parametrize(
    "dtypes",
    [
        [torch.float16],
        [torch.bfloat16],
        [torch.float32, torch.float64],
        [torch.bfloat16, torch.float32],
        [torch.float16, torch.float64],
    ],
    ids=str,
)
def test_norm_of_half_precision_and_mixed_dtypes(dtypes):
    parameters = [parameter_in(dtype) for dtype in dtypes]
    gradients = gradients_of(parameters)
    numbers = [gradient.double().flatten() for gradient in gradients]
    exact = torch.cat(numbers).norm()
    norm = total_norm(gradients, norm_dtype(parameters))
    assert_close(norm.double(), exact, rtol=1e-6, atol=0)
    clip(gradients, norm, 0.5)
    assert [gradient.dtype for gradient in gradients] == dtypes


def root_loss(model, batch):
    """Return a sum of square roots, whose derivative at zero is infinite."""
    return (model[0] * batch).sqrt().sum()


def test_nonfinite_gradient_under_finite_loss_raises():
    model = nn.ParameterList([torch.ones(2)])
    step = make_step("adamw", model, root_loss, on_nonfinite="raise")
    with pytest.raises(FloatingPointError, match=r"update 1 .*gradient norm (nan|inf)"):
        step(torch.zeros(2))
    result = step(torch.ones(2))
    assert result.applied == 1
