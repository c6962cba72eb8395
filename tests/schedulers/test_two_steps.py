"""SAM and its relatives: programs call `first_step` and `second_step`; torch only sees `step`."""

from typing import Any

import pytest
import torch
from support.training.models import Net, batches, mean_loss
from support.training.steps import CURVE
from torch.optim import SGD, AdamW, Optimizer

from torch_bridge import lambda_lr

PEAK = 0.1


class SharpnessAware(torch.optim.Optimizer):
    """Takes the gradients at the worst point nearby, in two steps around a second backward pass.

    Foret et al., Sharpness-Aware Minimization, 2021, arXiv:2010.01412. It shares its groups with
    the optimizer inside, as the programs' classes of this kind do.
    """

    def __init__(
        self, parameters: Any, base: type[Optimizer], *, radius: float = 0.05, **options: Any
    ) -> None:
        super().__init__(parameters, {"radius": radius, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                move = parameter.grad * (group["radius"] / (parameter.grad.norm() + 1e-12))
                parameter.add_(move)
                self.state[parameter]["move"] = move
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.state[parameter]["move"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> Any:
        raise AssertionError("programs call the two steps")


@pytest.mark.parametrize("base", [SGD, AdamW])
def test_program_of_two_steps_gets_no_warning(base: type[Optimizer]) -> None:
    """Torch's LambdaLR warns that the optimizer was not stepped."""
    model = Net()
    optimizer = SharpnessAware(model.parameters(), base, lr=PEAK)
    scheduler = lambda_lr(optimizer, CURVE)
    for step, batch in enumerate(batches(25)):
        mean_loss(model, batch).backward()
        optimizer.first_step()
        mean_loss(model, batch).backward()
        optimizer.second_step()
        assert optimizer.base_optimizer.param_groups[0]["lr"] == CURVE.learning_rate(step, PEAK)
        scheduler.step()
