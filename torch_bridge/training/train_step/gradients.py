"""Gradients: collected, measured and clipped, with the bits of torch.nn.utils in less host time."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from plateau_jax.arguments import checks
from torch_bridge.training.distributed.dtensors import local_shard

_vector_norm = cast("Callable[[Tensor], Tensor]", torch.linalg.vector_norm)  # untyped in torch


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the parameters' gradients, skipping None, to be changed in place.

    For a sparse gradient, its values; for a DTensor, this rank's shard.
    """
    gradients: list[Tensor] = []
    for parameter in parameters:
        gradient: Any = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            gradient = parameter.grad = gradient.coalesce()
            gradient = gradient._values()
        if type(gradient) is not Tensor:  # few are, and a call for each would cost every update
            gradient = local_shard(gradient)
        gradients.append(gradient)
    return gradients


def norm_dtype(parameters: Iterable[nn.Parameter]) -> torch.dtype | None:
    """Return the dtype of norms, at least float32; None if the gradients' own dtypes suffice."""
    dtypes = {parameter.dtype for parameter in parameters}
    if all(dtype.itemsize >= 4 for dtype in dtypes):
        return None
    if torch.float64 in dtypes:
        return torch.float64
    return torch.float32


def total_norm(gradients: list[Tensor], dtype: torch.dtype | None) -> Tensor:
    """Return the 2-norm of all gradients together, a scalar."""
    norms = torch._foreach_norm(gradients, 2.0, dtype=dtype)
    return _vector_norm(torch.stack(norms))


def clip(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scale the gradients by min(1, max_norm/(norm + 1e-6)), in place."""
    # The same operators as max_norm / (norm + 1e-6) in torch, without torch's Python functions
    # around them.
    factor = norm.add(1e-6).reciprocal_()
    if max_norm != 1.0:  # the usual one: multiplying by it changes no bit
        factor.mul_(max_norm)
    torch._foreach_mul_(gradients, factor.clamp_(max=1.0))


def check_max_norm(max_norm: Any) -> None:
    if max_norm is not None and not checks.number("max_norm", max_norm) > 0:
        raise ValueError(checks.must("max_norm", max_norm, "be positive, or None for no clipping"))
