"""The objects of the calls and states that the surface shows."""

from typing import Any

import torch
from torch import Tensor, nn

from plateau_jax import BatchPlan, Curve, DataClock, HoldUntilFlat, StagedCurve
from torch_bridge import TrainStep
from torch_bridge.training.result import StepResult

CURVE = StagedCurve([(10, 1.0), (50,), (40, 0.0)])
PLAN = BatchPlan([(0, 8), (80, 16)])
SCALED_CURVE: Curve = PLAN.scale(CURVE, 8, reference=16)
UNTIL_FLAT = HoldUntilFlat(3, limit=9)
CLOCK = DataClock(8, count=4)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.5, momentum=0.9)


def stepped_optimizer() -> torch.optim.Optimizer:
    stepped = optimizer()
    [parameter] = stepped.param_groups[0]["params"]
    parameter.grad = torch.ones(2)
    stepped.step()
    return stepped


def mean_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).mean()


def carrying_loss(model: nn.Module, batch: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
    return mean_loss(model, batch), carry + 1


def train_step(curve: Curve = CURVE, loss_fn: Any = mean_loss, **options: Any) -> TrainStep:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return TrainStep(model, optimizer, loss_fn, curve, **options)


def step_result(groups: int = 1) -> StepResult:
    loss = torch.tensor(0.5)
    return StepResult(loss, loss, torch.ones(groups), torch.tensor([1, 0, 0, 1]))
