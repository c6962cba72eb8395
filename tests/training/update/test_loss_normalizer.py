"""One loss from all micro-batches, a quotient of sums or an average of means, and the gradients' norm."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.models import batches, device_pair_loss, mean_loss, pair_loss
from support.training.steps import make_step, set_loss_scale
from torch import Tensor, nn

from torch_bridge.training.gradients import clip, gradients_of, norm_dtype, total_norm


def test_backward_runs_before_the_next_forward() -> None:
    """So only one micro-batch's activations are in memory at a time."""
    has_gradients: list[bool] = []

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        has_gradients.append(all(parameter.grad is not None for parameter in model.parameters()))
        return mean_loss(model, batch)

    make_step(loss_fn=loss_fn)(*batches(3))
    assert has_gradients == [False, True, True]


@pytest.mark.parametrize("loss_fn", [pair_loss, device_pair_loss])
@examples(25)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
def test_pairs_do_not_depend_on_the_split(loss_fn: Callable[..., Any], rows: list[int]) -> None:
    (batch,) = batches(1, sum(rows))
    pieces = list(zip(*(part.split(rows) for part in batch), strict=True))
    # Plain descent: Adam would turn gradients that round to nothing into steps of full size.
    step, in_pieces = (make_step("sgd", loss_fn=loss_fn) for _ in range(2))
    for _ in range(4):
        torch.testing.assert_close(in_pieces(*pieces), step(batch), rtol=1e-6, atol=0)
    parameters = (list(trained.model.parameters()) for trained in (in_pieces, step))
    torch.testing.assert_close(*parameters, rtol=1e-6, atol=1e-7)


def test_empty_micro_batches() -> None:
    """One without a gradient counts for nothing; if all are empty, the update is skipped."""

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        return pair_loss(model, batch) if len(batch[0]) else (torch.zeros(()), 0)

    first, second = batches(2)
    empty = first[0][:0], first[1][:0]
    expected = make_step(loss_fn=pair_loss)(first, second)
    for pieces in ((empty, first, second), (first, empty, second), (first, second, empty)):
        torch.testing.assert_close(make_step(loss_fn=loss_fn)(*pieces), expected, rtol=1e-6, atol=0)
    step = make_step(loss_fn=device_pair_loss)
    for pieces in ((empty,), (empty, empty), (empty,) * 3):
        result = step(*pieces)
        assert not result.loss.isfinite()
    assert (result.applied, result.skipped) == (0, 3)


# Under fp16, sums are divided by the first weight of the first update with several: they could overflow.


@pytest.mark.parametrize("rows", [[4000], [3000, 1000], [100, 3900], [0, 4000], [0, 400, 3600, 0]], ids=repr)
@pytest.mark.parametrize("loss_fn", [pair_loss, device_pair_loss])
def test_large_sums_do_not_overflow(loss_fn: Any, rows: list[int]) -> None:
    """65 536 times a gradient of sums over 4 000 rows would be far beyond fp16, whose largest is 65 504."""
    (batch,) = batches(1, rows=4000)
    expected = make_step("sgd", loss_fn=pair_loss)(batch)
    pieces = list(zip(*(part.split(rows) for part in batch), strict=True))
    step = make_step("sgd", loss_fn=loss_fn, precision="fp16")
    # If the first weight is small, the scale must shrink first.
    results = [step(*pieces) for _ in range(1 if rows[0] >= 1000 else 14)]
    result = next(result for result in results if result.applied)
    torch.testing.assert_close(result[:3], expected[:3], rtol=0.01, atol=0)


def _weighed_loss(model: nn.Module, batch: Any) -> Any:
    inputs, targets, weight = batch
    return mean_loss(model, (inputs, targets)) * weight, torch.tensor(weight)


def _weighed(*weights: float, seed: int = 0) -> list[Any]:
    return [(*batch, weight) for batch, weight in zip(batches(len(weights), seed=seed), weights, strict=True)]


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_jump_of_weights_costs_a_few_updates(first: float) -> None:
    """The scale halves until the larger gradients fit; then updates are applied again."""
    step = make_step("sgd", loss_fn=_weighed_loss, precision="fp16")
    step(*_weighed(first, 1.0))
    assert step.state_dict()["loss_scale"][2:] == [1.0]
    skipped = [int(step(*_weighed(1.0, 4000.0, seed=seed)).skipped) for seed in range(25)]
    assert skipped[-1] < 20
    assert skipped[-1] == skipped[-5]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_first", [True, False])
def test_nonfinite_weight_does_not_persist(value: float, is_first: bool) -> None:
    steps = [make_step("sgd", loss_fn=_weighed_loss, precision="fp16") for _ in range(2)]
    for step in steps:
        set_loss_scale(step, 2.0**10)
        if not is_first:
            step(*_weighed(3.0, 5.0))
    for weights in ([value, 2.0], [2.0, value], [value, value]):
        steps[0](*_weighed(*weights))
    assert steps[0].state_dict()["skipped"] == 3
    assert steps[0].state_dict()["loss_scale"][2:] == [1.0 if is_first else 3.0]
    for seed in range(3):
        one, other = (step(*_weighed(3.0, 5.0, 6.0, seed=seed)) for step in steps)
        assert one.applied == other.applied
        torch.testing.assert_close(one[:2], other[:2], rtol=2e-3, atol=0)


# The norm of the gradients.


def _parameters(shapes: list[tuple[int, ...]], dtype: torch.dtype, size: float) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = (torch.randn(parameter.shape) * size).to(dtype)
    return parameters


_HALF, _BRAIN, _SINGLE, _DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.mark.parametrize(
    "dtypes", [[_HALF], [_BRAIN], [_SINGLE, _DOUBLE], [_BRAIN, _SINGLE], [_HALF, _DOUBLE]], ids=str
)
def test_norm_of_half_precision_and_mixed_dtypes(dtypes: list[torch.dtype]) -> None:
    parameters = [parameter for dtype in dtypes for parameter in _parameters([(3, 4)], dtype, 1.0)]
    gradients = gradients_of(parameters)
    exact = torch.cat([gradient.double().flatten() for gradient in gradients]).norm()
    norm = total_norm(gradients, norm_dtype(parameters))
    torch.testing.assert_close(norm.double(), exact, rtol=1e-6, atol=0)
    clip(gradients, norm, 0.5)
    assert [gradient.dtype for gradient in gradients] == dtypes


def _root_loss(model: nn.ParameterList, batch: Tensor) -> Tensor:
    """Return a sum of square roots, whose derivative at zero is infinite."""
    return (model[0] * batch).sqrt().sum()


def test_nonfinite_gradient_under_finite_loss_raises() -> None:
    step = make_step("adamw", nn.ParameterList([torch.ones(2)]), _root_loss, on_nonfinite="raise")
    with pytest.raises(FloatingPointError, match=r"update 1 .*gradient norm (nan|inf)"):
        step(torch.zeros(2))
    assert int(step(torch.ones(2)).applied) == 1
