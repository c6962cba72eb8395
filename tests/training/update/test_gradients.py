"""Gradients: norms and clipping with the bits of torch.nn.utils."""

import pytest
import torch
from support.training.models import batches
from support.training.steps import make_step, set_loss_scale, state_kept_by_skips
from support.training.trees import equal_trees
from torch import Tensor, nn

from torch_bridge.training.gradients import clip, gradients_of, norm_dtype, total_norm


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


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
def test_nonfinite_gradient_under_finite_loss_is_skipped(name: str) -> None:
    for precision in ("fp32", "bf16"):
        step = make_step(name, nn.ParameterList([torch.ones(2)]), _root_loss, precision=precision)
        step(torch.ones(2))
        before = state_kept_by_skips(step)
        result = step(torch.zeros(2))
        assert result.loss == 0
        assert not result.grad_norm.isfinite()
        assert equal_trees(state_kept_by_skips(step), before | {"skipped": 1})
    step = make_step(name, nn.ParameterList([torch.ones(2)]), _root_loss, on_nonfinite="raise")
    with pytest.raises(FloatingPointError, match=r"update 1 .*gradient norm (nan|inf)"):
        step(torch.zeros(2))
    assert int(step(torch.ones(2)).applied) == 1


def test_overflow_of_the_scale_does_not_raise() -> None:
    step, (batch,) = make_step("sgd", precision="fp16", on_nonfinite="raise"), batches(1)
    set_loss_scale(step, 2.0**30)
    results = [step(batch) for _ in range(20)]
    assert all(result.loss.isfinite() for result in results)
    skipped = int(results[-1].skipped)
    assert 10 < skipped < 20
    assert step.state_dict()["loss_scale"] == [2.0 ** (30 - skipped), 20 - skipped]
