"""The models and optimizers that a training step accepts, and its errors for others."""

import inspect
from typing import Any

import pytest
import torch
from support.training.models import Net, mean_loss
from support.training.optimizers import make_optimizer
from torch import nn

from torch_bridge.training.optimizers.optimizers import check_model, device_of, unwrap_optimizers

_ALL = {
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}


@pytest.mark.parametrize("kind", sorted(_ALL, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_every_torch_optimizer_is_accepted_or_refused(kind: Any) -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = kind(model.parameters(), lr=0.1)
    if kind is torch.optim.LBFGS:
        with pytest.raises(TypeError, match="LBFGS needs a closure"):
            unwrap_optimizers(model, optimizer)
    else:
        assert unwrap_optimizers(model, optimizer) == [optimizer]
        assert device_of([optimizer]) == torch.device("cpu")


def test_optimizer_with_closure_is_refused() -> None:
    class LineSearch(torch.optim.Optimizer):
        def step(self, closure: Any) -> None:
            closure()

    model = Net()
    with pytest.raises(TypeError, match="LineSearch needs a closure"):
        unwrap_optimizers(model, LineSearch(model.parameters(), {"lr": 0.1}))


def test_invalid_models_and_optimizers_are_refused() -> None:
    model = Net()
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        check_model(mean_loss)
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer"):
        unwrap_optimizers(model, "adamw")
    with pytest.raises(ValueError, match="4 of the optimizer's 4 parameters are not the model's"):
        unwrap_optimizers(model, make_optimizer("adamw", Net()))
    more = [*model.parameters(), nn.Parameter(torch.ones(1))]
    with pytest.raises(ValueError, match="1 of the optimizer's 5 parameters are not the model's"):
        unwrap_optimizers(model, torch.optim.SGD(more))
