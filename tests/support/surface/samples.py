"""Objects whose attributes and states the surface shows."""

from typing import Any

import torch
from torch import Tensor, nn

from plateau_jax import Curve, StagedCurve
from torch_bridge import TrainStep
from torch_bridge.training.train_step.result import StepResult

CURVE = StagedCurve([(10, 1.0), (50,), (40, 0.0)])


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2))]


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters(), lr=0.5, momentum=0.9)


def train_step(curve: Curve = CURVE, **options: Any) -> TrainStep:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return TrainStep(model, optimizer, _mean_loss, curve, **options)


def step_with_two_optimizers() -> TrainStep:
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD([parameter], lr=0.5) for parameter in model.parameters()]
    return TrainStep(model, optimizers, _mean_loss, CURVE)


def _mean_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).mean()


def step_result(groups: int) -> StepResult:
    loss = torch.tensor(0.5)
    return StepResult(loss, loss, torch.ones(groups), torch.tensor([1, 0, 0, 1]))
