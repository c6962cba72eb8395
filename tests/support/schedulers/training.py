"""Programs that train with a scheduler, each kind of it, for the tests of warnings."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from support.schedulers.runs import lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, SequentialLR

from plateau_jax import DataClock, HoldBelow, PlateauCurve
from torch_bridge import lambda_lr

LONG = PlateauCurve(10_000, min_lr_ratio=0.1)
WARMUP = PlateauCurve(10_000, warmup_steps=100)
CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
SHORT = PlateauCurve(10)
FLOOR = PlateauCurve(10, min_lr_ratio=0.1)
MOMENTUM: Any = partial(SGD, momentum=0.9)


class Training:
    """A program that trains: an optimizer with two groups, and the schedulers that it steps."""

    def __init__(self, kind: Any = SGD, form: Any = float, lr: float = 0.1) -> None:
        options = {"weight_decay": 0.5}
        if kind is SGD:
            options["momentum"] = 0.5
        self.kind = kind
        self.form = form
        self.optimizer = optimizer_with([form(lr), form(lr)], kind, **options)
        self.schedulers: list[Any] = []

    def use(self, *schedulers: Any) -> None:
        """Step these schedulers from now on."""
        self.schedulers = list(schedulers)

    def update(self, count: int = 1) -> None:
        for _ in range(count):
            self.optimizer.step()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for scheduler in self.schedulers:
                scheduler.step()

    def train(self, count: int) -> None:
        """Make updates, and a scheduler step after each."""
        self.repeat(count, updates=1)

    def repeat(self, count: int, *, updates: int, steps: int = 1) -> None:
        """Make these updates, and then these scheduler steps, `count` times."""
        for _ in range(count):
            self.update(updates)
            self.step(steps)

    def write(self, **options: float) -> None:
        """Write into the groups, as a user does."""
        for group in self.optimizer.param_groups:
            for name, value in options.items():
                if isinstance(group.get(name), torch.Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value

    def save(self) -> Any:
        schedulers = [scheduler.state_dict() for scheduler in self.schedulers]
        return through_file({"optimizer": self.optimizer.state_dict(), "schedulers": schedulers})

    def load_optimizer(self, states: Any) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(states["optimizer"]))

    def load_schedulers(self, states: Any) -> None:
        for scheduler, state in zip(self.schedulers, states["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(state))

    def load(self, states: Any) -> None:
        self.load_optimizer(states)
        self.load_schedulers(states)

    def resumed(self) -> "Training":
        """Return the program as another process starts it."""
        return Training(self.kind, self.form)

    def lr(self) -> float:
        return lrs_of(self.optimizer)[0]


def states_after_20_updates(kind: Any) -> Any:
    """Return the states of an earlier run with a different peak."""
    run = Training(kind, lr=0.01)
    run.use(lambda_lr(run.optimizer, LONG))
    run.train(20)
    return run.save()


# The kinds of schedulers.


def with_arguments(scheduler: Any, **arguments: Any) -> Any:
    """Let a scheduler be stepped like all others, without its metric or count."""
    scheduler.step = partial(scheduler.step, **arguments)
    return scheduler


def sequence(optimizer: Any, *schedulers: Any, at: int) -> Any:
    return SequentialLR(optimizer, list(schedulers), [at])


def constant(optimizer: Any) -> Any:
    return ConstantLR(optimizer, factor=1.0, total_iters=10)


def held(optimizer: Any, curve: Any) -> Any:
    never_holds = HoldBelow(-1.0, 1)
    return with_arguments(lambda_lr(optimizer, curve, clock=never_holds), metric=0.5)


def counting(optimizer: Any, curve: Any) -> Any:
    return lambda_lr(optimizer, curve, clock=DataClock(8, count=8))


def curve_per_group(optimizer: Any, curve: Any) -> Any:
    return lambda_lr(optimizer, [curve, curve])


def chained(optimizer: Any, curve: Any) -> Any:
    return ChainedScheduler([lambda_lr(optimizer, curve), constant(optimizer)], optimizer)


def first_in_sequence(optimizer: Any, curve: Any) -> Any:
    return sequence(optimizer, lambda_lr(optimizer, curve), constant(optimizer), at=3000)


KINDS = [lambda_lr, held, counting, curve_per_group, chained, first_in_sequence]
every_kind = pytest.mark.parametrize("build", KINDS)
