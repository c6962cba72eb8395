"""What programs do to a scheduler that `isinstance(scheduler, LambdaLR)` accepts.

Each function under `same` is such a program. It runs under torch's `LambdaLR` and under
`lambda_lr`, with the same curve, and the learning rates of all updates agree to one unit in the
last place of float32: torch computes base · curve(step) in double. `test_writes` has the programs
that get an error or a warning.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.schedulers.runs import lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim.lr_scheduler import (
    LambdaLR,
    OneCycleLR,
    SequentialLR,
)

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


def multiplier(step: int) -> float:
    return CURVE(step)


class Training:
    """An optimizer, its scheduler, and the learning rates that its updates used.

    Args:
        scheduler_class: `LambdaLR` or `lambda_lr`.
        form: Makes a learning rate from a number.
    """

    def __init__(self, scheduler_class: Any, form: Any) -> None:
        self.scheduler_class = scheduler_class
        self.form = form
        self.lrs: list[list[float]] = []
        self.start()

    def start(self) -> None:
        """Build the optimizer and the scheduler, as the program does when it is started."""
        lrs = [self.form(0.5), self.form(0.3)]
        self.optimizer = optimizer_with(lrs, momentum=0.5)
        schedule: Any = CURVE
        if self.scheduler_class is LambdaLR:
            schedule = multiplier  # the state of torch's scheduler has the attributes of an object
        self.scheduler: Any = self.scheduler_class(self.optimizer, schedule)

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step_optimizer(self) -> None:
        self.lrs.append(lrs_of(self.optimizer))
        self.optimizer.step()

    def train(self, updates: int) -> None:
        for _ in range(updates):
            self.step_optimizer()
            self.scheduler.step()

    def scale(self, factor: float) -> None:
        """Write new learning rates, as a user does."""
        for group in self.groups:
            group["lr"] = group["lr"] * factor


Program = Callable[[Training], None]

TORCHS_WARNINGS = "ignore:The epoch param|Detected call|To get the last|Seems like:UserWarning"


def same(program: Program) -> Callable[..., None]:
    """Make a test of a program: it has the same learning rates under both, and nothing warns."""

    @pytest.mark.filterwarnings(TORCHS_WARNINGS)
    @pytest.mark.parametrize("updates", [0, 12])
    @pytest.mark.parametrize("form", [float, torch.tensor])
    def test(form: Any, updates: int) -> None:
        lrs: list[Any] = []
        for scheduler_class in (LambdaLR, lambda_lr):
            training = Training(scheduler_class, form)
            training.train(updates)
            program(training)
            training.train(8)
            lrs.append(training.lrs)
        np.testing.assert_allclose(lrs[1], lrs[0], rtol=2.0**-23)

    test.__name__ = program.__name__
    test.__doc__ = program.__doc__
    return test


# The step of the scheduler.


# Bases and learning rates.


# States and copies.


@same
def test_resumes_from_a_file(training: Training) -> None:
    states = through_file([training.optimizer.state_dict(), training.scheduler.state_dict()])
    training.start()
    training.optimizer.load_state_dict(states[0])
    training.scheduler.load_state_dict(states[1])


@same
def test_edits_the_step_in_a_state(training: Training) -> None:
    state = training.scheduler.state_dict()
    state["last_epoch"] += 7
    training.scheduler.load_state_dict(state)
    training.scheduler.step()


@same
def test_plots_with_a_copy(training: Training) -> None:
    """The run continues with its own scheduler, which the plot leaves alone."""
    plotted = copy.deepcopy(training.scheduler)
    for _ in range(30):
        plotted.step()


# Derived classes and wrapped methods.


@same
def test_derives_a_class_with_a_floor(training: Training) -> None:
    class WithFloor(training.scheduler_class):
        def get_lr(self) -> list[Any]:
            return [max(lr, 0.0625) for lr in super().get_lr()]

    training.scheduler = WithFloor(training.optimizer, CURVE, training.scheduler.last_epoch - 1)


# Other schedulers that hold this one.


@same
def test_is_followed_by_one_cycle(training: Training) -> None:
    """OneCycleLR writes its own `initial_lr` into the groups."""
    training.start()
    one_cycle = OneCycleLR(training.optimizer, 0.5, 20, cycle_momentum=False)
    schedulers = [training.scheduler, one_cycle]
    training.scheduler = SequentialLR(training.optimizer, schedulers, [6])
