"""A compiled optimizer under a curve, with the README's lines: no recompilation, and a rate of 0."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support import trainers
from support.runs import through_a_file
from support.trainers import CURVE, execute, rates, readme, same_weights

from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

ABOVE_ZERO = replace(CURVE, init_lr_ratio=0.25)


class Run:
    """A model with an input that is always 0: the gradient of its weights is 0."""

    def __init__(self, curve):
        torch._dynamo.reset()
        self.model = trainers.net()
        names = {"torch": torch, "model": self.model, "curve": curve, "lambda_lr": lambda_lr}
        execute(readme("`torch.compile`"), names)
        self.optimizer, self.scheduler, self.update = map(names.get, ("optimizer", "scheduler", "update"))

    def train(self, first, last):
        """Make these updates, and return the rates that they used."""
        inputs, targets = trainers.dataset(48).tensors
        inputs[:, 0] = 0
        used = []
        for update in range(first, last):
            rows = slice(update * 4, update * 4 + 4)
            trainers.loss_of(self.model, (inputs[rows], targets[rows])).backward()
            used.append([group["lr"].item() for group in self.optimizer.param_groups])
            self.update()
            self.scheduler.step()
            self.model.zero_grad()
        return used

    def parts(self):
        return self.model, self.optimizer, self.scheduler


def as_float32(rates):
    return np.float32(rates).tolist()


@torch._dynamo.config.patch(error_on_recompile=True)
def test_resumed_it_is_as_uninterrupted_and_never_compiled_again():
    whole = Run(ABOVE_ZERO)
    assert whole.train(0, 12) == as_float32(rates(ABOVE_ZERO, range(12)))
    interrupted = Run(ABOVE_ZERO)
    interrupted.train(0, 5)
    resumed = Run(ABOVE_ZERO)
    for part, state in zip(
        resumed.parts(), through_a_file([part.state_dict() for part in interrupted.parts()]), strict=True
    ):
        part.load_state_dict(state)
    assert resumed.train(5, 12) == as_float32(rates(ABOVE_ZERO, range(5, 12)))
    assert same_weights(resumed.model, whole.model)


def test_a_rate_of_zero_makes_nan_of_weights_without_gradient():
    """pytorch/pytorch#126514: if this fails, torch has fixed it, and the README's warning can go."""
    run = Run(CURVE)
    assert run.train(0, 1) == [[0.0]]
    weights = run.model[0].weight
    assert weights[:, 0].isnan().all()
    assert weights[:, 1:].isfinite().all()
