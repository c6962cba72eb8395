"""Gradients: norms and clipping with the bits of torch.nn.utils."""

import torch
from hypothesis import given, strategies as st
from support.training.trees import equal_trees
from torch import nn

from torch_bridge.training.update.gradients import clip, gradients_of, norm_dtype, total_norm

_shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)


def _parameters(shapes: list[tuple[int, ...]], dtype: torch.dtype, size: float) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = (torch.randn(parameter.shape) * size).to(dtype)
    return parameters


@given(
    _shapes,
    st.sampled_from([torch.float32, torch.float64, torch.complex64]),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
    st.floats(1e-6, 10),
)
def test_clip_has_the_bits_of_clip_grad_norm(
    shapes: list[tuple[int, ...]], dtype: torch.dtype, size: float, max_norm: float
) -> None:
    parameters = _parameters(shapes, dtype, size)
    gradients = [gradient.clone() for gradient in gradients_of(parameters)]
    expected = nn.utils.clip_grad_norm_(parameters, max_norm)
    norm = total_norm(gradients, norm_dtype(parameters))
    clip(gradients, norm, max_norm)
    assert equal_trees(norm, expected)
    assert equal_trees(gradients, gradients_of(parameters))


def test_norm_of_half_precision_and_mixed_dtypes() -> None:
    for dtypes in (
        (torch.float16,),
        (torch.bfloat16,),
        (torch.float32, torch.float64),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float64),
    ):
        parameters = [parameter for dtype in dtypes for parameter in _parameters([(3, 4)], dtype, 1.0)]
        gradients = gradients_of(parameters)
        exact = torch.cat([gradient.double().flatten() for gradient in gradients]).norm()
        norm = total_norm(gradients, norm_dtype(parameters))
        torch.testing.assert_close(norm.double(), exact, rtol=1e-6, atol=0)
        clip(gradients, norm, 0.5)
        assert [gradient.dtype for gradient in gradients] == list(dtypes)


@given(st.lists(st.integers(0, 4), max_size=12))
def test_sparse_gradient_is_its_values(rows: list[int]) -> None:
    sparse, dense = (nn.Embedding(5, 3, sparse=flag) for flag in (True, False))
    dense.load_state_dict(sparse.state_dict())
    for module in (sparse, dense):
        module(torch.tensor(rows, dtype=torch.long)).square().sum().backward()
        gradients = gradients_of(module.parameters())
        clip(gradients, total_norm(gradients, None), 0.5)
    torch.testing.assert_close(sparse.weight.grad.to_dense(), dense.weight.grad)


def test_parameters_without_gradient_are_skipped() -> None:
    parameters = _parameters([(2,), (3,)], torch.float32, 1.0)
    parameters[0].grad = None
    assert gradients_of(parameters) == [parameters[1].grad]
