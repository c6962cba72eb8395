"""The models and optimizers that a training step accepts, and its errors for others."""

import inspect
from typing import Any

import pytest
import torch
from support.training.steps import make_step
from torch import nn

from torch_bridge.training.optimizers.optimizers import check_optimizers, device_of

_ALL = {
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}


@pytest.mark.parametrize("kind", sorted(_ALL, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_every_torch_optimizer_is_accepted_or_rejected(kind: Any) -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = kind(model.parameters(), lr=0.1)
    if kind is torch.optim.LBFGS:
        with pytest.raises(TypeError, match="LBFGS needs a closure"):
            check_optimizers(model, [optimizer])
    else:
        check_optimizers(model, [optimizer])
        assert device_of([optimizer]) == torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_sgd_of_half_precision_is_rejected(dtype: torch.dtype) -> None:
    """On a CPU torch 2.13 leaves blocks of elements unchanged: github.com/pytorch/pytorch/issues/191763."""
    model = nn.Linear(64, 1, bias=False).to(dtype)
    step = make_step(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.25))
    step.optimizer.param_groups[0]["fused"] = True
    for call in (lambda: step(None), lambda: make_step(model=model, optimizer=step.optimizer)):
        with pytest.raises(ValueError, match=f"{dtype} parameters unchanged"):
            call()
    model.float()
    make_step(model=model, optimizer=step.optimizer)
